// SPDX-License-Identifier: MIT
// IEEE arithmetic on the GPU, asserted once per device (ops.md 1.5).
#include "device/math_modes.h"

#include <algorithm>

#include "common/built_for.h"
#include "common/context.h"
#include "device/math_modes.cuh"

namespace tenon::cuda {

Status check_math_modes() {
    constexpr float kIn[6] = {0x1p-127f, 1.0f, 3.0f, 2.0f, 1.0f + 0x1p-12f, -(1.0f + 0x1p-11f)};
    constexpr MathModes kExpected = {0x1p-126f, 0x1.555556p-2f, 0x1.6a09e6p+0f, 0.0f, 0x1p-24f};
    struct Memory {
        float in[6];
        MathModes out;
    };
    Memory* memory = nullptr;
    TENON_TRY(cuda_status(cudaMallocHost(&memory, sizeof(Memory)), "math modes"));
    std::copy(kIn, kIn + 6, memory->in);
    memory->out = {};
    math_modes_kernel<<<1, 1>>>(memory->in, &memory->out);
    Status status = launched("math modes");
    if (status.ok()) {
        status = cuda_status(cudaStreamSynchronize(nullptr), "math modes");
    }
    const MathModes got = memory->out;
    static_cast<void>(cudaFreeHost(memory));
    TENON_TRY(std::move(status));
    const auto expect = [](const char* mode, float found, float expected) {
        return found == expected ? Status()
                                 : error(Code::internal,
                                         "{}: found {}, expected {}; kernels were compiled "
                                         "without IEEE arithmetic",
                                         mode, found, expected);
    };
    TENON_TRY(expect("subnormals", got.subnormal, kExpected.subnormal));
    TENON_TRY(expect("division", got.quotient, kExpected.quotient));
    TENON_TRY(expect("square root", got.root, kExpected.root));
    TENON_TRY(expect("contraction", got.contracted, kExpected.contracted));
    return expect("fma", got.fused, kExpected.fused);
}

int kernels_built_for() {
    return built_for(reinterpret_cast<const void*>(&math_modes_kernel));
}

}  // namespace tenon::cuda
