// SPDX-License-Identifier: MIT
// rope.turn, reference: adjacent pairs of the last R channels.
#include "rope/turn.h"

#include <cstring>

#include "common/registry.h"

namespace tenon::cpu {

Status check_rope_turn(const RopeTurn& p, TurnShape* shape) {
    const int64_t T = rows_of(p.x);
    const int64_t n = p.x.rank == 3 ? p.x.shape[1] : 1;
    const int64_t D = dim(p.x, p.x.rank == 3 ? 2 : 1);
    const int64_t R = dim(p.cs, 1);
    Check c(RopeTurn::kOp.name);
    if (p.x.rank == 3) {
        c.strided("x", p.x, kBf16, {T, n, D}).strided("out", p.out, kBf16, {T, n, D});
    } else {
        c.strided("x", p.x, kBf16, {T, D}).strided("out", p.out, kBf16, {T, D});
    }
    c.dense("cs", p.cs, kF32, {T, R}).in_range("R", R, 0, D).multiple("R", R, 2);
    c.in_place("out", p.out, "x", p.x);
    *shape = {T, n, D, R};
    return c.take();
}

void copy_unturned(const RopeTurn& p, const TurnShape& s, int64_t t) {
    if (p.out.data == p.x.data) {
        return;
    }
    for (int64_t i = 0; i < s.n; ++i) {
        std::memcpy(p.out.row<uint16_t>(t) + i * s.D, p.x.row<uint16_t>(t) + i * s.D,
                    static_cast<size_t>(s.D - s.R) * 2);
    }
}

namespace {

Status turn(void* self, const RopeTurn& p, Stream&) noexcept {
    TurnShape s{};
    TENON_TRY(check_rope_turn(p, &s));
    share(context(self), s.T, 1, s.n * s.R * 4, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t t = begin; t < end; ++t) {
            copy_unturned(p, s, t);
            const float* cosine = p.cs.row<float>(t);
            const float* sine = cosine + s.R / 2;
            for (int64_t i = 0; i < s.n; ++i) {
                const uint16_t* x = p.x.row<uint16_t>(t) + i * s.D + s.D - s.R;
                uint16_t* out = p.out.row<uint16_t>(t) + i * s.D + s.D - s.R;
                for (int64_t j = 0; j < s.R / 2; ++j) {
                    turn_pair(x + 2 * j, cosine[j], p.inverse ? -sine[j] : sine[j], out + 2 * j);
                }
            }
        }
    });
    return {};
}

}  // namespace

void add_rope_turn(Registry& r) {
    r.add_best<RopeTurn>(&turn, rope_turn_simd(), Exactness::exact);
}

}  // namespace tenon::cpu
