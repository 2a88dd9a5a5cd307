// SPDX-License-Identifier: MIT
// A plugin whose descriptor breaks many rules at once, and that exports a second symbol.
#include "tenon/plugin.h"

#include <iterator>

extern "C" __attribute__((visibility("default"))) int a_second_symbol() {
    return 1;
}

namespace tenon::testing {
namespace {

constexpr OptionSpec kOptions[] = {
    {.key = "Depth",
     .type = OptionType::integer,
     .default_value = "9",
     .help = "",
     .min = 1,
     .max = 8},
    {.key = "mode",
     .type = OptionType::choice,
     .default_value = "\"slow\"",
     .help = "one of two",
     .choices = "fast|faster"},
    {.key = "pause", .type = OptionType::time, .default_value = "30", .help = "a wait"},
};
constexpr Need kNeeds[] = {{.facet = "quant.format"}};

Status probe(const ProbeEnv&, ProbeResult* result) noexcept {
    static int calls = 0;
    result->score = ++calls;
    return {};
}

Status create(Host&, const Options&, Object** out) noexcept {
    static_cast<void>(out);
    return Status(Code::io, "");
}

constexpr Component kComponents[] = {{.struct_size = sizeof(Component),
                                      .kind = PluginKind::overlay,
                                      .name = "Faulty-Name",
                                      .summary = "",
                                      .options = {kOptions, std::size(kOptions)},
                                      .needs = {kNeeds, std::size(kNeeds)},
                                      .probe = &probe,
                                      .create = &create}};

}  // namespace
}  // namespace tenon::testing

TENON_PLUGIN("Faulty", "1.0", "two\nlines", "", stable, tenon::testing::kComponents)
