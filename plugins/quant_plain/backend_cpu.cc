// SPDX-License-Identifier: MIT
// Ordinary weights in host memory: packed with SIMD kernels, or the reference form where the device
// asks for it or the CPU has no fused multiply-add.
#include "kernels.h"
#include "matrix.h"

namespace tenon::plain {

std::unique_ptr<quant::Backend<Part>> make_cpu_backend(Device& device) {
    const Kernels* kernels = packed::wants_reference(device) ? nullptr : simd_kernels();
    if (kernels == nullptr) {
        return std::make_unique<quant::CpuBackend<Part>>(device, &make_reference_matrix,
                                                         &reference_bytes);
    }
    return std::make_unique<quant::CpuBackend<Part>>(
        device, [kernels](const Part& part) { return make_simd_matrix(part, *kernels); },
        &simd_bytes);
}

}  // namespace tenon::plain
