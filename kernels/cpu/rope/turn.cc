// SPDX-License-Identifier: MIT
// rope.turn, reference: adjacent pairs of the last R channels.
#include "rope/turn.h"

#include <cstring>

#include "common/registry.h"

namespace tenon::cpu {

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
    TENON_TRY(check_op(p, &s));
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
