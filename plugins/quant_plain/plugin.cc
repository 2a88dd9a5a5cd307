// SPDX-License-Identifier: MIT
// Descriptor of the plugin `plain`.
#include "tenon/plugin.h"

#include "backend_cuda.h"
#include "format.h"

namespace {

const tenon::OptionSpec kOptions[] = {
    {"activation_quant", tenon::OptionType::boolean, "false",
     "round inputs of FP8 and FP4 weights to E4M3 first, as the official inference code does", 0, 0,
     nullptr, tenon::OptionTag::agree, false},
};

tenon::Status probe(const tenon::ProbeEnv&, tenon::ProbeResult* out) noexcept {
    out->score = 10;
    tenon::set_text(out->reason,
                    tenon::plain::has_cuda()
                        ? "reads f32, bf16, f16, FP8 and packed FP4 on CPUs and NVIDIA GPUs"
                        : "reads f32, bf16, f16, FP8 and packed FP4 on the CPU");
    return {};
}

tenon::Status create(tenon::Host&, const tenon::Options& options, tenon::Object** out) noexcept {
    return tenon::guard(
        [&] { *out = tenon::plain::make_format(options.flag("activation_quant")); });
}

const tenon::Component kComponents[] = {
    {sizeof(tenon::Component),
     tenon::PluginKind::quant,
     "plain",
     "matrices as ordinary checkpoints hold them: f32, bf16, f16, FP8, packed FP4",
     tenon::Span<const tenon::OptionSpec>(kOptions),
     {},
     &probe,
     &create},
};

}  // namespace

TENON_PLUGIN("plain", "0.1.0", "Weights of ordinary checkpoints", "MIT", stable,
             tenon::Span<const tenon::Component>(kComponents))
