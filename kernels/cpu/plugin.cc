// SPDX-License-Identifier: MIT
// The compute plugin `cpu`: its descriptor, options and creation.
#include "tenon/plugin.h"

#include "common/simd.h"
#include "device/device.h"

namespace tenon::cpu {

namespace {

constexpr OptionSpec kOptions[] = {
    {.key = "threads",
     .type = OptionType::integer,
     .default_value = "0",
     .help =
         "worker threads, 0 = all cores of affinity and cgroup quota; results do not depend on it",
     .min = 0,
     .max = 1024},
    {.key = "simd",
     .type = OptionType::choice,
     .default_value = "\"auto\"",
     .help = "auto: SIMD kernels where the CPU has fused multiply-add; reference: plain loops only",
     .choices = "auto|reference",
     .tag = OptionTag::agree},
};

Status probe(const ProbeEnv&, ProbeResult* out) noexcept {
    out->score = 1;
    set_text(out->reason, simd_usable() ? "SIMD kernels usable"
                                        : "no fused multiply-add here: reference kernels only");
    return {};
}

Status create(Host& host, const Options& options, Object** out) noexcept {
    return guard([&]() -> Status {
        DeviceOptions wanted;
        wanted.threads = options.integer("threads");
        wanted.reference = options.text("simd") == StrView("reference");
        auto* device = new CpuDevice(&host, wanted);
        host.log(
            LogLevel::info, "cpu",
            format("ready threads={} kernels={}", device->info().threads, device->info().arch));
        *out = static_cast<Device*>(device);
        return {};
    });
}

constexpr Component kComponents[] = {{sizeof(Component),
                                      PluginKind::compute,
                                      "cpu",
                                      "host memory, thread pool, reference and SIMD ops",
                                      kOptions,
                                      {},
                                      &probe,
                                      &create}};

}  // namespace

}  // namespace tenon::cpu

TENON_PLUGIN("cpu", "0.1.0", "CPU backend: exact reference ops and SIMD versions", "MIT", stable,
             tenon::cpu::kComponents)
