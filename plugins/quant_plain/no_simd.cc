// SPDX-License-Identifier: MIT
// Stands in for kernels_simd.cc where Highway is missing at build time.
#include "kernels.h"

namespace tenon::plain {

const Kernels* simd_kernels() {
    return nullptr;
}

}  // namespace tenon::plain
