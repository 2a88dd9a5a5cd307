// SPDX-License-Identifier: MIT
// The plugin `prefill_interleave`: decode rounds between slices of a prompt.
#include "tenon/plugin.h"

#include <iterator>

#include "interleave.h"

namespace tenon::interleave {
namespace {

constexpr const char* kName = "prefill_interleave";
constexpr const char* kKey = "prefill_interleave_ms";

constexpr OptionSpec kOptions[] = {
    {.key = kKey,
     .type = OptionType::integer,
     .default_value = "200",
     .help = "prompt work between two decode rounds; 0 = prompt first",
     .min = 0,
     .max = 600'000}};

Status probe(const ProbeEnv&, ProbeResult* result) noexcept {
    result->score = 10;
    set_text(result->reason, "plans only");
    return {};
}

Status create(Host&, const Options& options, Object** out) noexcept {
    return guard([&] {
        const OptionValue* ms = options.find(kKey);
        *out = new Interleave(1000 * (ms != nullptr && ms->is_set ? ms->integer : 200));
    });
}

constexpr Component kComponents[] = {{.struct_size = sizeof(Component),
                                      .kind = PluginKind::overlay,
                                      .name = kName,
                                      .summary = "decode rounds between slices of a prompt",
                                      .options = {kOptions, std::size(kOptions)},
                                      .needs = {},
                                      .probe = &probe,
                                      .create = &create}};

}  // namespace
}  // namespace tenon::interleave

TENON_PLUGIN("prefill_interleave", "0.1.0", "Decode rounds between slices of a prompt", "MIT",
             stable, tenon::interleave::kComponents)
