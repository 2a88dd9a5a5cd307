// SPDX-License-Identifier: MIT
// kvq.quantize and kvq.dequantize on whole rows.
#include "tenon/ops/kvq.h"

#include "common/check.h"
#include "common/registry.h"
#include "kvq/quantise.h"
#include "tenon/numeric.h"

namespace tenon::cpu {

namespace {

template <bool kSimd>
Status quantize(void* self, const KvqQuantize& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = rows_of(p.x);
    const int64_t n = dim(p.x, 1);
    const RowQuantiser& quantiser = row_quantiser<kSimd>();
    const bool packs = !p.codes.null() || !p.scales.null();
    share(context(self), T, 1, n * 6, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            const uint16_t* x = p.x.row<uint16_t>(t);
            if (packs) {  // before `values`, which may be x
                quantiser.pack(p.format, x, n, p.codes.row<uint8_t>(t), p.scales.row<uint8_t>(t));
            }
            if (!p.values.null()) {
                quantiser.values(p.format, x, n, p.values.row<uint16_t>(t));
            }
        }
    });
    return {};
}

Status dequantize(void* self, const KvqDequantize& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    const int64_t T = rows_of(p.out);
    const int64_t n = dim(p.out, 1);
    constexpr int64_t kPiece = 32;
    share(context(self), T, 1, n * 2, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            for (int64_t i = 0; i < n; i += kPiece) {
                const int64_t m = n - i < kPiece ? n - i : kPiece;
                float values[kPiece];
                unpack_row(p.format, p.codes.row<uint8_t>(t) + code_bytes(p.format, i),
                           p.scales.row<uint8_t>(t) + scale_bytes(p.format, i), m, values);
                for (int64_t j = 0; j < m; ++j) {
                    p.out.row<uint16_t>(t)[i + j] = f32_to_bf16(values[j]);
                }
            }
        }
    });
    return {};
}

}  // namespace

void add_kvq(Registry& r) {
    r.add_best<KvqQuantize>(&quantize<false>,
                            simd_quantiser() != nullptr ? &quantize<true> : nullptr,
                            Exactness::exact);
    r.add<KvqDequantize>(&dequantize, Exactness::exact);
}

}  // namespace tenon::cpu
