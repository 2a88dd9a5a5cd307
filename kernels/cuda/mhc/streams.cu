// SPDX-License-Identifier: MIT
// mhc.collapse, mhc.expand, mhc.reduce_expand and mhc.mean.
#include "mhc/streams.cuh"

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

using namespace kernels;

constexpr int kThreads = 128;

// Rows are the y axis of the grid, which ends at 65535.
constexpr int64_t kRowsAtOnce = 32768;

dim3 grid_of(int64_t threads, int64_t rows) {
    return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads),
                static_cast<unsigned>(rows));
}

template <class F>
void for_rows(int64_t T, F&& launch) {
    for (int64_t t = 0; t < T; t += kRowsAtOnce) {
        launch(t, T - t < kRowsAtOnce ? T - t : kRowsAtOnce);
    }
}

Status collapse(void*, const MhcCollapse& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const int64_t d = p.h.shape[2];
    if (d == 0) {
        return {};
    }
    for_rows(p.h.shape[0], [&](int64_t t, int64_t n) {
        collapse_kernel<<<grid_of(d / 8, n), kThreads, 0, native(stream)>>>(
            p.h.as<const uint16_t>() + t * 4 * d, p.pre.as<const float>() + t * 4,
            p.out.as<uint16_t>() + t * d, d);
    });
    return launched(MhcCollapse::kOp.name);
}

// P: MhcExpand with y, or MhcReduceExpand with parts of W ranks.
template <class Y, class P>
void launch_expand(const P& p, const void* y, int64_t W, cudaStream_t stream) {
    const int64_t T = p.h.shape[0];
    const int64_t d = p.h.shape[2];
    for_rows(T, [&](int64_t t, int64_t n) {
        expand_kernel<Y><<<grid_of(d / 8, n), kThreads, 0, stream>>>(
            static_cast<const Y*>(y) + t * d, W, T * d,
            p.h.template as<const uint16_t>() + t * 4 * d,
            p.post.template as<const float>() + t * 4, p.comb.template as<const float>() + t * 16,
            p.out.template as<uint16_t>() + t * 4 * d, d);
    });
}

Status expand(void*, const MhcExpand& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    if (p.h.shape[2] == 0) {
        return {};
    }
    p.y.dtype == DType::bf16 ? launch_expand<uint16_t>(p, p.y.data, 1, native(stream))
                             : launch_expand<float>(p, p.y.data, 1, native(stream));
    return launched(MhcExpand::kOp.name);
}

Status reduce_expand(void*, const MhcReduceExpand& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    if (p.h.shape[2] == 0) {
        return {};
    }
    launch_expand<float>(p, p.parts.data, p.parts.shape[0], native(stream));
    return launched(MhcReduceExpand::kOp.name);
}

Status mean(void*, const MhcMean& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const int64_t d = p.h.shape[2];
    if (d == 0) {
        return {};
    }
    for_rows(p.h.shape[0], [&](int64_t t, int64_t n) {
        mean_kernel<<<grid_of(d, n), kThreads, 0, native(stream)>>>(
            p.h.as<const uint16_t>() + t * 4 * d, p.out.row<uint16_t>(t), p.out.stride[0], d);
    });
    return launched(MhcMean::kOp.name);
}

}  // namespace

void add_mhc_streams(Registry& r) {
    r.add<MhcCollapse>(&collapse, Exactness::invariant);
    r.add<MhcExpand>(&expand, Exactness::invariant);
    r.add<MhcReduceExpand>(&reduce_expand, Exactness::invariant);
    r.add<MhcMean>(&mean, Exactness::invariant);
}

}  // namespace tenon::cuda
