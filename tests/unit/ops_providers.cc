// SPDX-License-Identifier: MIT
// The op providers of the unit tests: reference kernels and SIMD kernels of this machine.
#include "unit/ops_providers.h"

#include "common/simd.h"

namespace tenon::testing {

std::vector<OpProvider> op_providers() {
    std::vector<OpProvider> out = {cpu_provider("cpu_reference", 1, true)};
    if (cpu::simd_usable()) {
        out.push_back(cpu_provider("cpu_simd", 3, false));
    } else if (static bool said = false; !std::exchange(said, true)) {
        std::printf("cpu_simd is skipped: this CPU or build has no fused multiply-add target\n");
    }
    return out;
}

std::optional<OpProvider> op_oracle() {
    return cpu_provider("cpu_reference", 1, true);
}

}  // namespace tenon::testing
