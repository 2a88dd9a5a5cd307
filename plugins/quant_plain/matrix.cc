// SPDX-License-Identifier: MIT
// Staging of inputs for ordinary matrices.
#include "matrix.h"

#include <algorithm>
#include <cmath>

#include "tenon/numeric.h"

namespace tenon::plain {

bool PlainMatrix::stages_for(const Matrix& other) const {
    const auto* o = dynamic_cast<const PlainMatrix*>(&other);
    return o != nullptr && o->in() == in() && o->quantise_input_ == quantise_input_;
}

void PlainMatrix::stage(const packed::RowsIn& x, int64_t rows, std::byte* staged) const {
    for (int64_t r = 0; r < rows; ++r) {
        auto* to = reinterpret_cast<float*>(staged + r * staged_bytes());
        if (x.dtype == DType::f32) {
            std::copy_n(x.f32_row(r), in(), to);
        } else {
            const uint16_t* from = x.bf16_row(r);
            for (int64_t i = 0; i < in(); ++i) {
                to[i] = bf16_to_f32(from[i]);
            }
        }
        if (quantise_input_) {
            quantise_row(to, in());
        }
    }
}

void quantise_row(float* x, int64_t count) {
    for (int64_t first = 0; first < count; first += kScaleGroup) {
        const int64_t last = std::min(count, first + kScaleGroup);
        float largest = 1e-4f;
        bool is_nan = false;
        for (int64_t i = first; i < last; ++i) {
            largest = std::max(largest, std::abs(x[i]));
            is_nan = is_nan || std::isnan(x[i]);
        }
        if (is_nan || std::isinf(largest)) {
            continue;  // the row is lost anyway; it must stay visible
        }
        const float scale = e8m0_to_f32(e8m0_ceil(largest * (1.0f / 448.0f)));
        for (int64_t i = first; i < last; ++i) {
            x[i] = e4m3_to_f32(f32_to_e4m3(x[i] / scale)) * scale;
        }
    }
}

}  // namespace tenon::plain
