// SPDX-License-Identifier: MIT
// linear.plain: decode reads the weight once for eight rows; prefill has tensor-core tiles where
// both factors are bf16.
#include "linear/plain.cuh"
#include "linear/tile.cuh"

#include "common/registry.h"
#include "kernels/shared/op_checks.h"

namespace tenon::cuda {

namespace {

using namespace kernels;

// From this many columns on four of them share the reads of x; fewer spread over more blocks.
constexpr int64_t kWideN = 512;

template <class X, class W, class Y>
void launch(const LinearPlain& p, cudaStream_t stream) {
    const PlainArgs<X, W, Y> a{p.x.as<const X>(),
                               p.x.stride[0],
                               p.w.as<const W>(),
                               p.bias.data,
                               p.bias.dtype == DType::bf16,
                               p.y.as<Y>(),
                               p.y.stride[0],
                               p.x.shape[0],
                               p.w.shape[0],
                               p.x.shape[1]};
    const int64_t cols = a.N >= kWideN ? 4 : 1;
    const dim3 grid(static_cast<unsigned>((a.N + cols - 1) / cols),
                    static_cast<unsigned>((a.T + kPlainRows - 1) / kPlainRows));
    const auto kernel =
        a.K % 8 == 0 ? cols == 4 ? &plain_kernel<4, 8, X, W, Y> : &plain_kernel<1, 8, X, W, Y>
                     : &plain_kernel<1, 1, X, W, Y>;
    if (a.K % 8 != 0) {
        const dim3 narrow(static_cast<unsigned>(a.N), grid.y);
        kernel<<<narrow, kPlainThreads, 0, stream>>>(a);
        return;
    }
    kernel<<<grid, kPlainThreads, 0, stream>>>(a);
}

template <class X, class W>
void launch_out(const LinearPlain& p, cudaStream_t stream) {
    p.y.dtype == DType::bf16 ? launch<X, W, uint16_t>(p, stream) : launch<X, W, float>(p, stream);
}

template <class X>
void launch_weight(const LinearPlain& p, cudaStream_t stream) {
    p.w.dtype == DType::bf16 ? launch_out<X, uint16_t>(p, stream) : launch_out<X, float>(p, stream);
}

Status plain(void*, const LinearPlain& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    if (p.x.shape[0] == 0 || p.w.shape[0] == 0) {
        return {};
    }
    p.x.dtype == DType::bf16 ? launch_weight<uint16_t>(p, native(stream))
                             : launch_weight<float>(p, native(stream));
    return launched(LinearPlain::kOp.name);
}

template <class Y>
void launch_tile(const LinearPlain& p, cudaStream_t stream) {
    const TileArgs<Y> a{p.x.as<const uint16_t>(),
                        p.x.stride[0],
                        p.w.as<const uint16_t>(),
                        p.bias.data,
                        p.bias.dtype == DType::bf16,
                        p.y.as<Y>(),
                        p.y.stride[0],
                        p.x.shape[0],
                        p.w.shape[0],
                        p.x.shape[1]};
    const dim3 grid(static_cast<unsigned>((a.N + kTileN - 1) / kTileN),
                    static_cast<unsigned>((a.T + kTileM - 1) / kTileM));
    tile_kernel<Y><<<grid, kTileThreads, 0, stream>>>(a);
}

Status plain_prefill(void* self, const LinearPlain& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    const bool tiles =
        p.x.dtype == DType::bf16 && p.w.dtype == DType::bf16 && p.x.shape[1] % 8 == 0;
    if (!tiles) {
        return plain(self, p, stream);
    }
    if (p.x.shape[0] == 0 || p.w.shape[0] == 0) {
        return {};
    }
    p.y.dtype == DType::bf16 ? launch_tile<uint16_t>(p, native(stream))
                             : launch_tile<float>(p, native(stream));
    return launched(LinearPlain::kOp.name);
}

}  // namespace

void add_linear(Registry& r) {
    r.add<LinearPlain>(&plain, Exactness::invariant, kDecode);
    r.add<LinearPlain>(&plain_prefill, Exactness::invariant, kPrefill);
}

}  // namespace tenon::cuda
