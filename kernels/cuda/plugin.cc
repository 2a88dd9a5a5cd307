// SPDX-License-Identifier: MIT
// The compute plugin `cuda`: its descriptor, options and creation.
//
// How to add an op of a family (docs/ops.md is the contract, kernels/cpu the reference):
//   1. kernels/cuda/<family>/<op>.cuh   the kernel: raw pointers, extents, scalars; includes CUDA
//      headers, common/device.cuh and plain-data SDK headers (tenon/numeric.h, tenon/ops/*.h).
//   2. kernels/cuda/<family>/<op>.cu    the launcher `Status op(void* self, const P& p, Stream&)
//      noexcept`: TENON_TRY(kernels::check_op(p)) (kernels/shared/op_checks.h: move the CPU's
//      checks there and let both use them), return {} where there is no row, launch on
//      native(stream), end with `return launched(P::kOp.name)`. No allocation, no synchronisation.
//   3. `void add_<family>(Registry& r)` in one file of the family: r.add<P>(&op, class, regimes,
//      scratch); two registrations with kDecode and kPrefill where the regimes differ in bits.
//   4. kernels/cuda/<family>/CMakeLists.txt: `tenon_cuda_family(<family> <op>.cu)`.
// Rules: class I means fixed splits by the row's own data, sums in a fixed order, no float atomics.
// Device-side misuse is skipped and counted with fault(). Arithmetic is IEEE and not contracted
// (device/math_modes); write fmaf where fusing is meant.
#include "tenon/plugin.h"

#include "device/clusters.h"
#include "device/device.h"

namespace tenon::cuda {

namespace {

constexpr OptionSpec kOptions[] = {
    {.key = "device",
     .type = OptionType::integer,
     .default_value = "0",
     .help = "number of the GPU, in the order of CUDA_VISIBLE_DEVICES",
     .min = 0,
     .max = 63},
    {.key = "graphs",
     .type = OptionType::boolean,
     .default_value = "true",
     .help = "let models capture their decode work at warm-up and replay it"},
    {.key = "pinned",
     .type = OptionType::choice,
     .default_value = "\"auto\"",
     .help = "host memory that the GPU uses: allocated by the driver, or registered pages; auto: "
             "registered where CPU and GPU share memory",
     .choices = "auto|allocated|registered"},
    {.key = "clusters",
     .type = OptionType::integer,
     .default_value = "16",
     .help = "most thread blocks of a cluster where the GPU has room for more than 8; attention of "
             "few rows is slower with fewer",
     .min = kLeastCluster,
     .max = kMostCluster},
};

// Above the CPU's score, so that `plugin = "auto"` takes a usable GPU.
constexpr int32_t kUsable = 10;

int wanted_device(const Options* options) {
    return options == nullptr ? 0 : static_cast<int>(options->integer("device"));
}

Status probe(const ProbeEnv& env, ProbeResult* out) noexcept {
    return guard([&]() -> Status {
        const Result<GpuFacts> facts = inspect_gpu(wanted_device(env.options));
        out->score = facts.ok() ? kUsable : 0;
        set_text(out->reason, facts.ok() ? tenon::format("{}, {} kernels, {} bytes", facts->name,
                                                         facts->arch, facts->memory_bytes)
                                         : facts.status().message().str());
        return {};
    });
}

Status create(Host& host, const Options& options, Object** out) noexcept {
    return guard([&]() -> Status {
        CudaDevice* device = nullptr;
        TENON_TRY(CudaDevice::create(&host, wanted_device(&options), options.flag("graphs"),
                                     options.text("pinned").view(),
                                     static_cast<int>(options.integer("clusters")), &device));
        *out = static_cast<Device*>(device);
        return {};
    });
}

constexpr Component kComponents[] = {{sizeof(Component),
                                      PluginKind::compute,
                                      "cuda",
                                      "NVIDIA GPUs: device memory, streams, graphs, and the ops",
                                      kOptions,
                                      {},
                                      &probe,
                                      &create}};

}  // namespace

}  // namespace tenon::cuda

TENON_PLUGIN("cuda", "0.1.0", "NVIDIA GPU backend (Hopper and GB10)", "MIT", experimental,
             tenon::cuda::kComponents)
