// SPDX-License-Identifier: MIT
// Descriptor of the plugin `exl3`.
#include "tenon/plugin.h"

#include "backend_cuda.h"
#include "format.h"

namespace {

tenon::Status probe(const tenon::ProbeEnv&, tenon::ProbeResult* out) noexcept {
    out->score = 100;
    tenon::set_text(out->reason, tenon::exl3::has_cuda() ? "reads EXL3 on CPUs and NVIDIA GPUs"
                                                         : "reads EXL3 on the CPU");
    return {};
}

tenon::Status create(tenon::Host&, const tenon::Options&, tenon::Object** out) noexcept {
    return tenon::guard([&] { *out = tenon::exl3::make_format(); });
}

const tenon::Component kComponents[] = {
    {sizeof(tenon::Component),
     tenon::PluginKind::quant,
     "exl3",
     "EXL3 weights: 1 to 8 bits and half rates, three codebooks",
     {},
     {},
     &probe,
     &create},
};

}  // namespace

TENON_PLUGIN("exl3", "0.1.0", "EXL3 trellis-quantised weights", "MIT", stable,
             tenon::Span<const tenon::Component>(kComponents))
