// SPDX-License-Identifier: MIT
// The host's own keys of each profile section (architecture.md 7.1); components add theirs.
#pragma once

#include "tenon/plugin.h"

namespace tenon {

struct SectionSpec {
    const char* name;  ///< "" = the top level
    Span<const OptionSpec> keys;
    bool has_plugin = false;  ///< the key `plugin` chooses a component of `kind`
    PluginKind kind = PluginKind::compute;
    bool repeated = false;  ///< [[overlay]], [[frontend]]
};

Span<const SectionSpec> profile_sections();
const SectionSpec* find_section(std::string_view name);

constexpr int64_t kProfileVersion = 1;

}  // namespace tenon
