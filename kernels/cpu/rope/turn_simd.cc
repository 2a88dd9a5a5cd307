// SPDX-License-Identifier: MIT
// rope.turn with SIMD: a pair is one 32-bit word, a in its low half, b in its high half. The
// reference's bits.
#include "common/simd_targets.h"
#include "rope/turn.h"
#include "tenon/numeric.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rope/turn_simd.cc"
#include <hwy/foreach_target.h>

#include "common/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tenon::cpu::HWY_NAMESPACE {

#if TENON_SIMD

// `pairs` is a multiple of kLanes.
void turn_vector(const uint16_t* x, const float* cosine, const float* sine, bool inverse,
                 int64_t pairs, uint16_t* out) {
    const D16 d;
    const DU32 du;
    const auto sign = hn::Set(du, inverse ? 0x80000000u : 0u);
    for (int64_t j = 0; j < pairs; j += static_cast<int64_t>(kLanes)) {
        const auto word = hn::LoadU(du, reinterpret_cast<const uint32_t*>(x + 2 * j));
        const V a = hn::BitCast(d, hn::ShiftLeft<16>(word));
        const V b = hn::BitCast(d, hn::And(word, hn::Set(du, 0xFFFF0000u)));
        const V c = hn::LoadU(d, cosine + j);
        const V s = hn::BitCast(d, hn::Xor(sign, hn::BitCast(du, hn::LoadU(d, sine + j))));
        const auto first = round_bits(hn::MulSub(a, c, hn::Mul(b, s)));
        const auto second = round_bits(hn::MulAdd(a, s, hn::Mul(b, c)));
        hn::StoreU(hn::Or(first, hn::ShiftLeft<16>(second)), du,
                   reinterpret_cast<uint32_t*>(out + 2 * j));
    }
}

Status turn(void* self, const RopeTurn& p, Stream&) noexcept {
    TurnShape s{};
    TENON_TRY(check_op(p, &s));
    const int64_t whole = s.R / 2 / static_cast<int64_t>(kLanes) * static_cast<int64_t>(kLanes);
    share(context(self), s.T, 8, s.n * s.R / 2, [&](int64_t begin, int64_t end, int32_t) HWY_ATTR {
        for (int64_t t = begin; t < end; ++t) {
            copy_unturned(p, s, t);
            const float* cosine = p.cs.row<const float>(t);
            const float* sine = cosine + s.R / 2;
            for (int64_t i = 0; i < s.n; ++i) {
                const int64_t at = i * s.D + s.D - s.R;
                const uint16_t* x = p.x.row<const uint16_t>(t) + at;
                uint16_t* out = p.out.row<uint16_t>(t) + at;
                turn_vector(x, cosine, sine, p.inverse, whole, out);
                for (int64_t j = whole; j < s.R / 2; ++j) {
                    turn_pair(x + 2 * j, cosine[j], p.inverse ? -sine[j] : sine[j], out + 2 * j);
                }
            }
        }
    });
    return {};
}

OpCall<RopeTurn> rope_turn_target() {
    return &turn;
}
#else
OpCall<RopeTurn> rope_turn_target() {
    return nullptr;
}
#endif

}  // namespace tenon::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tenon::cpu {

HWY_EXPORT(rope_turn_target);
OpCall<RopeTurn> rope_turn_simd() {
    return HWY_DYNAMIC_DISPATCH(rope_turn_target)();
}

}  // namespace tenon::cpu
#endif  // HWY_ONCE
