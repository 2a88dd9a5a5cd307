// SPDX-License-Identifier: MIT
// What the plugins have in common that break one rule, chosen by their option `fault`.
#pragma once

#include "tenon/plugin.h"

#include <iterator>
#include <string>

namespace tenon::testing {

/// The option; `choices` begins with "none".
constexpr OptionSpec fault_option(const char* choices) {
    return {.key = "fault",
            .type = OptionType::choice,
            .default_value = "\"none\"",
            .help = "the rule to break",
            .choices = choices};
}

inline Status probe_faulty(const ProbeEnv&, ProbeResult* result) noexcept {
    result->score = 1;
    set_text(result->reason, "for tests of the suite");
    return {};
}

/// T(host, fault).
template <class T>
Status create_faulty(Host& host, const Options& options, Object** out) noexcept {
    return guard([&] {
        const StrView fault = options.text("fault");
        *out = new T(host, fault.empty() ? "none" : fault.str());
    });
}

template <class T>
constexpr Component faulty_component(PluginKind kind, const char* name,
                                     Span<const OptionSpec> options) {
    return {.struct_size = sizeof(Component),
            .kind = kind,
            .name = name,
            .summary = "breaks one rule",
            .options = options,
            .needs = {},
            .probe = &probe_faulty,
            .create = &create_faulty<T>};
}

}  // namespace tenon::testing
