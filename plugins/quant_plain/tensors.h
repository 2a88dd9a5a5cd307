// SPDX-License-Identifier: MIT
// Reads and checks the tensors of one matrix in an ordinary checkpoint format (docs/dsv41.md 2) and
// decodes pieces of it.
#pragma once

#include "plugins/quant_common/backend.h"

namespace tenon::plain {

using quant::Want;

/// How the elements of `base.weight` are stored.
enum class Encoding : uint8_t {
    f32,
    bf16,
    f16,
    fp8,  ///< E4M3 with one E8M0 scale per 32 x 32 elements
    fp4,  ///< two E2M1 a byte, the low half first, with one E8M0 scale per 32 elements of a row
};
const char* encoding_name(Encoding encoding);
constexpr bool has_scales(Encoding e) {
    return e == Encoding::fp8 || e == Encoding::fp4;
}
constexpr int64_t kScaleGroup = 32;

/// Bytes of `count` elements of a row; count is even for fp4.
constexpr int64_t row_bytes(Encoding e, int64_t count) {
    switch (e) {
        case Encoding::f32:
            return 4 * count;
        case Encoding::bf16:
        case Encoding::f16:
            return 2 * count;
        case Encoding::fp8:
            return count;
        case Encoding::fp4:
            break;
    }
    return count / 2;
}

/// One stored matrix [out, in], checked. Views live as long as the weight source; nothing is
/// assumed about their alignment.
struct Tensors {
    std::string base;
    WeightSource* source = nullptr;
    Encoding encoding = Encoding::bf16;
    int64_t out = 0;
    int64_t in = 0;
    int64_t bytes = 0;                ///< weight and scale in the checkpoint
    const uint8_t* weight = nullptr;  ///< null if only shapes were asked for
    const uint8_t* scale = nullptr;   ///< E8M0 codes, or null
    int64_t scale_columns = 0;

    const uint8_t* row(int64_t o) const { return weight + o * row_bytes(encoding, in); }
    /// Scale code of element (o, i).
    uint8_t scale_code(int64_t o, int64_t i) const {
        const int64_t row = encoding == Encoding::fp8 ? o / kScaleGroup : o;
        return scale[row * scale_columns + i / kScaleGroup];
    }
};

/// Rows [o0, o0 + out) and columns [i0, i0 + in) of a stored matrix.
struct Part {
    const Tensors* tensors = nullptr;
    int64_t o0 = 0, out = 0, i0 = 0, in = 0;
    bool quantise_input = false;  ///< inputs are rounded to E4M3 first (docs/dsv41.md 3.3)
};

/// errors  not_found: no `base.weight`; invalid_argument: it is there, but malformed
Status read_tensors(WeightSource& source, const std::string& base, Want want, Tensors* out);

/// Scale codes of a part: [scale_rows, scale_columns], one column per 32 inputs, from row
/// `first_scale_row` of the stored ones on.
int64_t first_scale_row(const Part& part);
int64_t scale_rows(const Part& part);
int64_t scale_columns(const Part& part);

/// Checks `count` bytes of a part's dense elements [out, in], from byte `at` on, both whole
/// elements: no NaN, no infinity. errors  invalid_argument: names row and column of the matrix
Status check_codes(const Part& part, const uint8_t* bytes, int64_t count, int64_t at);
/// The same for its scales: of a usable size.
Status check_scales(const Part& part, const uint8_t* bytes, int64_t count, int64_t at);
/// Both, of a part whose data was asked for.
Status check_values(const Part& part);

/// Exact values of elements [i0, i0 + count) of row o, as f32. i0 is even for fp4.
void decode_row(const Tensors& t, int64_t o, int64_t i0, int64_t count, float* out);

}  // namespace tenon::plain
