// SPDX-License-Identifier: MIT
// Without Highway there are no SIMD versions.
#include "activate.h"

namespace tenon::packed {

ActivateFn activate_simd() {
    return nullptr;
}

}  // namespace tenon::packed
