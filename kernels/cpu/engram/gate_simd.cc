// SPDX-License-Identifier: MIT
// engram.gate with SIMD: the three sums of a stream in one pass, then the update lane by lane.
#include "common/simd_targets.h"
#include "engram/gate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engram/gate_simd.cc"
#include <hwy/foreach_target.h>

#include "common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu::HWY_NAMESPACE {

#if TENON_SIMD

template <class Kv, class W>
struct Gate {
    const EngramGate& p;

    void stream(int64_t t, int64_t j, int64_t d) const {
        uint16_t* h = p.h.row<uint16_t>(t) + j * d;
        const Kv* key = p.kv.row<const Kv>(t) + j * d;
        const Kv* value = p.kv.row<const Kv>(t) + 4 * d;
        const W* qw = p.q_weight.row<const W>(j);
        const W* kw = p.k_weight.row<const W>(j);
        F16 dot = zero16();
        F16 square_h = zero16();
        F16 square_key = zero16();
        for (int64_t i = 0; i < d; i += 16) {
            const F16 x = load16(h + i);
            const F16 k = round16(load16(key + i));
            const F16 weighted = mul16(mul16(x, load16(qw + i)), load16(kw + i));
            dot = fma16(weighted, k, dot);
            square_h = fma16(x, x, square_h);
            square_key = fma16(k, k, square_key);
        }
        const auto n = static_cast<float>(d);
        const F16 g =
            set16(engram_gate_value(sum1(dot), sum1(square_h) / n, sum1(square_key) / n, p.eps, d));
        for (int64_t i = 0; i < d; i += 16) {
            const F16 v = round16(load16(value + i));
            store16(add16(load16(h + i), mul16(g, v)), h + i);
        }
    }
    void all(Context& c) const {
        const int64_t d = p.h.shape[2];
        share(c, p.rows.T, 4, d * 2, [&](int64_t begin, int64_t end, int32_t) HWY_ATTR {
            for (int64_t t = begin; t < end; ++t) {
                const RowInfo& row = row_infos(p.rows)[t];
                if (row.slot < 0 || (row.flags & kRowImage) != 0) {
                    continue;
                }
                for (int64_t j = 0; j < 4; ++j) {
                    stream(t, j, d);
                }
            }
        });
    }
};

template <class Kv>
Status for_weights(Context& c, const EngramGate& p) {
    const bool q16 = p.q_weight.dtype == DType::bf16;
    if (q16) {
        Gate<Kv, uint16_t>{p}.all(c);
    } else {
        Gate<Kv, float>{p}.all(c);
    }
    return {};
}

Status gate(void* self, const EngramGate& p, Stream&) noexcept {
    TENON_TRY(check_op(p));
    return p.kv.dtype == DType::bf16 ? for_weights<uint16_t>(context(self), p)
                                     : for_weights<float>(context(self), p);
}

OpCall<EngramGate> engram_gate_target() {
    return &gate;
}
#else
OpCall<EngramGate> engram_gate_target() {
    return nullptr;
}
#endif

}  // namespace tenon::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::cpu {

HWY_EXPORT(engram_gate_target);
OpCall<EngramGate> engram_gate_simd() {
    return HWY_DYNAMIC_DISPATCH(engram_gate_target)();
}

}  // namespace tenon::cpu
#endif  // HWY_ONCE
