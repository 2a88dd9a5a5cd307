// SPDX-License-Identifier: MIT
// All CUDA ops: families.inc is generated from the tenon_cuda_family() calls of the folders.
#include "common/registry.h"

namespace tenon::cuda {

#define X(family) void add_##family(Registry& r);
#include "families.inc"
#undef X

void add_all(Registry& r) {
#define X(family) add_##family(r);
#include "families.inc"
#undef X
}

}  // namespace tenon::cuda
