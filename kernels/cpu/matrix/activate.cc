// SPDX-License-Identifier: MIT
#include "activate.h"

#include <algorithm>
#include <cmath>

#include "tenon/numeric.h"

namespace tenon::packed {

void activate_reference(float limit, float weight, const float* gate, const float* up, int64_t cols,
                        uint16_t* a) {
    for (int64_t c = 0; c < cols; ++c) {
        float g = round_bf16(gate[c]);
        float u = round_bf16(up[c]);
        if (limit > 0) {
            g = std::min(g, limit);
            u = std::min(std::max(u, -limit), limit);
        }
        const double z = g;
        const auto silu = static_cast<float>(z / (1.0 + std::exp(-z)));
        a[c] = f32_to_bf16(weight * silu * u);
    }
}

}  // namespace tenon::packed
