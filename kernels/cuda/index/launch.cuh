// SPDX-License-Identifier: MIT
// Steps that the launchers of the index ops share: scratch layouts, scoring, selecting. Included
// once.
#pragma once

#include <algorithm>
#include <bit>

#include "common/context.h"
#include "index/score.cuh"
#include "index/select.cuh"
#include "kernels/shared/token_checks.h"

namespace tenon::cuda::index {

/// Hands out 256-aligned parts of a scratch buffer; with a null base it only counts.
class Parts {
  public:
    explicit Parts(void* base) : base_(static_cast<uint8_t*>(base)) {}
    template <class E>
    E* take(int64_t n) {
        uint8_t* at = base_ == nullptr ? nullptr : base_ + used_;
        used_ += (n * static_cast<int64_t>(sizeof(E)) + 255) / 256 * 256;
        return reinterpret_cast<E*>(at);
    }
    int64_t used() const { return used_; }

  private:
    uint8_t* base_;
    int64_t used_ = 0;
};

/// Head count as the kernels pad it: 32 or 64.
inline int padded_heads(int64_t Hi) {
    return Hi <= 32 ? 32 : 64;
}
/// Whether the tensor-core kernel takes this geometry.
inline bool tensor_scores(const Pages& keys, int64_t Di) {
    return keys.format == RowFormat::q4u && Di == kWidth;
}
inline unsigned spans(int64_t n, int64_t span, int64_t most) {
    return static_cast<unsigned>(std::clamp<int64_t>((n + span - 1) / span, 1, most));
}

template <int kTiles, bool kPaged>
cudaError_t launch_scores(const Context& c, const ScoreArgs& a, cudaStream_t stream) {
    auto* kernel = &score_kernel<kTiles, kPaged>;
    const size_t bytes =
        sizeof(ScoreShared<kTiles>) +
        (a.hist_visible >= 0 ? static_cast<size_t>(a.share) * kBins * sizeof(unsigned) : 0);
    const cudaError_t result = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (result != cudaSuccess) {
        return result;
    }
    const bool two = 2 * (bytes + 1024) <= static_cast<size_t>(c.smem_block) + 1024;
    kernel<<<static_cast<unsigned>(c.sms * (two ? 2 : 1)), kScoreThreads, bytes, stream>>>(a);
    return cudaGetLastError();
}

template <int kTiles>
cudaError_t launch_scores(const Context& c, const ScoreArgs& a, cudaStream_t stream) {
    const bool paged = a.cand == nullptr && a.keys.rows_per_page % kTile == 0;
    return paged ? launch_scores<kTiles, true>(c, a, stream)
                 : launch_scores<kTiles, false>(c, a, stream);
}

/// Parts of scratch that the tensor-core kernel needs.
inline Prepared take_prepared(Parts& parts, int64_t T, int64_t Hi) {
    const int64_t Hp = padded_heads(Hi);
    Prepared p{};
    p.q = parts.take<uint8_t>(T * Hp * kWidth);
    p.weight = parts.take<float>(T * Hp);
    p.wide = parts.take<int>(T);
    p.batch = parts.take<Batch>(T);
    p.first_tile = parts.take<int>(T + 1);
    p.batches = parts.take<int>(1);
    return p;
}

/// Scratch of a selection over rows of up to `candidates`; only long rows need any.
inline void take_selection(Parts& parts, SelectArgs& a, int64_t T, int64_t candidates) {
    if (candidates <= kShortRow) {
        return;
    }
    // hist and state lie together, so that one fill clears both.
    a.hist = parts.take<unsigned>(T * kBins);
    a.state = parts.take<unsigned>(T * 4);
    a.listed = parts.take<uint64_t>(T * kListed);
    a.sure = parts.take<int>(T * kMaxKept);
}

inline Keys keys_of(const Pages& p) {
    Keys k{};
    k.pool = p.pool.as<const uint8_t>();
    k.table = p.table.as<const int>();
    k.page_bytes = p.pool.shape[1];
    k.codes_at = p.codes_at;
    k.scales_at = p.scales_at;
    k.pages = static_cast<int>(p.pool.shape[0]);
    k.table_slots = static_cast<int>(p.table.shape[0]);
    k.table_width = static_cast<int>(p.table.shape[1]);
    k.rows_per_page = p.rows_per_page;
    k.ratio = p.ratio;
    const auto rows = static_cast<unsigned>(p.rows_per_page);
    k.page_shift = std::has_single_bit(rows) ? std::countr_zero(rows) : -1;
    return k;
}

/// Enqueues scoring. `fill`: columns without a score become -inf. `plain`: the kernel for any
/// geometry.
inline cudaError_t enqueue_scores(const Context& c, const ScoreArgs& a, bool bf16_keys, bool plain,
                                  bool fill, cudaStream_t stream) {
    const int Hp = padded_heads(a.Hi);
    const auto T = static_cast<unsigned>(a.T);
    if (plain) {
        score_plain_kernel<<<dim3(spans(a.N, 256, 1024), T), 256, 0, stream>>>(a, Hp, bf16_keys);
        return cudaGetLastError();
    }
    prepare_kernel<<<dim3(T, fill ? spans(a.N, 16384, 64) : 1), 256, 0, stream>>>(a, Hp, fill);
    return Hp == 32 ? launch_scores<4>(c, a, stream) : launch_scores<8>(c, a, stream);
}

/// Enqueues a selection; `counted`: the histogram of long rows is already there.
inline cudaError_t enqueue_selection(const SelectArgs& a, int64_t candidates, bool counted,
                                     cudaStream_t stream) {
    const auto T = static_cast<unsigned>(a.T);
    const bool is_long = candidates > kShortRow;
    const dim3 grid(is_long ? spans(candidates, kSpan, 1 << 20) : 1, T);
    if (is_long && !counted) {
        const size_t bytes = reinterpret_cast<uint8_t*>(a.state + int64_t{a.T} * 4) -
                             reinterpret_cast<uint8_t*>(a.hist);
        const cudaError_t result = cudaMemsetAsync(a.hist, 0, bytes, stream);
        if (result != cudaSuccess) {
            return result;
        }
        hist_kernel<<<grid, kHistThreads, 0, stream>>>(a);
    }
    select_kernel<<<grid, kSelectThreads, 0, stream>>>(a);
    return cudaGetLastError();
}

inline cudaError_t enqueue_block_max(const BlockArgs& a, cudaStream_t stream) {
    const dim3 grid(spans(a.columns, 1024, 1 << 20), static_cast<unsigned>(a.T));
    block_max_kernel<<<grid, 256, 0, stream>>>(a);
    return cudaGetLastError();
}

}  // namespace tenon::cuda::index
