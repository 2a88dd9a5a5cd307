// SPDX-License-Identifier: MIT
// EXL3 weights in host memory.
#include "matrix.h"

namespace tenon::exl3 {

std::unique_ptr<quant::Backend<Part>> make_cpu_backend(Device& device) {
    return std::make_unique<quant::CpuBackend<Part>>(
        device, &make_reference_matrix,
        [](const Part& part) { return reference_bytes(part.k, part.n, part.with_bias); });
}

}  // namespace tenon::exl3
