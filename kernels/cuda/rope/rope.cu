// SPDX-License-Identifier: MIT
// rope.angles and rope.turn.
#include "rope/rope.cuh"

#include <algorithm>

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

using namespace kernels;

constexpr int kThreads = 128;

unsigned blocks(int64_t n) {
    return static_cast<unsigned>((n + kThreads - 1) / kThreads);
}

Status angles(void*, const RopeAngles& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const int64_t half = rows_of(p.freq);
    Check c(RopeAngles::kOp.name);
    c.unsupported(half > kMaxHalf, "freq", "more than 256 frequencies");
    TENON_TRY(c.take());
    if (p.rows.T == 0 || half == 0) {
        return {};
    }
    Frequencies freq{};
    std::copy_n(p.freq.as<const float>(), half, freq.value);
    angles_kernel<<<blocks(p.rows.T * half), kThreads, 0, native(stream)>>>(
        p.rows.row.as<const RowInfo>(), freq, static_cast<int32_t>(half), p.step, p.rows.T,
        p.cs.as<float>());
    return launched(RopeAngles::kOp.name);
}

Status turn(void*, const RopeTurn& p, Stream& stream) noexcept {
    TurnShape s{};
    TENON_TRY(check_op(p, &s));
    Check c(RopeTurn::kOp.name);
    c.unsupported(s.D % 2 != 0, "x", "an odd number of channels");
    TENON_TRY(c.take());
    const bool copies = p.out.data != p.x.data;
    const int64_t pairs = s.T * s.n * (copies ? s.D : s.R) / 2;
    if (pairs == 0) {
        return {};
    }
    const TurnArgs a{p.x.as<const uint32_t>(),
                     p.out.as<uint32_t>(),
                     p.x.stride[0] / 2,
                     p.out.stride[0] / 2,
                     p.cs.as<const float>(),
                     s.T,
                     s.n,
                     s.D,
                     s.R,
                     p.inverse,
                     copies};
    turn_kernel<<<blocks(pairs), kThreads, 0, native(stream)>>>(a);
    return launched(RopeTurn::kOp.name);
}

}  // namespace

void add_rope(Registry& r) {
    r.add<RopeAngles>(&angles, Exactness::invariant);
    r.add<RopeTurn>(&turn, Exactness::exact);
}

}  // namespace tenon::cuda
