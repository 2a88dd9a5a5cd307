// SPDX-License-Identifier: MIT
// Steps that the launchers of the index ops share: scratch layouts, scoring, selecting. Included
// once.
#pragma once

#include <algorithm>
#include <bit>

#include "common/context.h"
#include "index/score.cuh"
#include "index/score_pages.cuh"
#include "index/select_long.cuh"
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

template <class... P, class... A>
cudaError_t chained(void (*kernel)(P...), dim3 grid, unsigned threads, size_t bytes,
                    cudaStream_t stream, const A&... args) {
    launch_dependent(kernel, grid, dim3(threads), bytes, stream, args...);
    return cudaGetLastError();
}

inline dim3 prepare_grid(const ScoreArgs& a, bool fill) {
    return dim3(static_cast<unsigned>(a.T) + 1, fill ? spans(a.N, 16384, 64) : 1);
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
    return chained(kernel, dim3(static_cast<unsigned>(c.sms * (two ? 2 : 1))), kScoreThreads, bytes,
                   stream, a);
}

template <int kTiles>
cudaError_t launch_scores(const Context& c, const ScoreArgs& a, cudaStream_t stream) {
    const bool paged = a.cand == nullptr && a.keys.rows_per_page % kTile == 0;
    return paged ? launch_scores<kTiles, true>(c, a, stream)
                 : launch_scores<kTiles, false>(c, a, stream);
}

/// Whether the int8 kernel takes it: whole tiles of keys lie together.
inline bool whole_tiles(const ScoreArgs& a) {
    const Keys& k = a.keys;
    return a.cand == nullptr && k.rows_per_page % kTile == 0 &&
           ((k.page_bytes | k.codes_at | k.scales_at) & 15) == 0;
}

/// Enqueues the int8 kernel and its set-up; false: a block has too little shared memory.
template <int kBlocks, bool kSplit, int kStages, int kShared>
bool launch_pages(const Context& c, ScoreArgs a, bool fill, cudaError_t& result,
                  cudaStream_t stream) {
    constexpr int kWarps = kPageWarps<kBlocks, kSplit>;
    constexpr size_t kRow = kBlocks * 32 * kWidth * (kSplit ? 2 : 1);
    const size_t bytes = sizeof(PageShared<kWarps / 4, kBlocks, kStages, kShared>) +
                         kShared * (kRow + (a.hist_visible >= 0 ? kBins * sizeof(unsigned) : 0));
    if (bytes > static_cast<size_t>(c.smem_block)) {
        return false;
    }
    a.share = kShared;
    auto* kernel = &score_pages_kernel<kBlocks, kSplit, kStages, kShared>;
    result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes));
    if (result == cudaSuccess) {
        result = chained(&prepare_kernel<true>, prepare_grid(a, fill), 256, 0, stream, a,
                         kBlocks * 32, fill);
    }
    if (result == cudaSuccess) {
        result = chained(kernel, dim3(static_cast<unsigned>(c.sms)), kWarps * 32, bytes, stream, a);
    }
    return true;
}
/// The form where a block has the shared memory, else the one with less.
template <int kBlocks, bool kSplit>
bool launch_pages(const Context& c, const ScoreArgs& a, bool fill, cudaError_t& result,
                  cudaStream_t stream) {
    constexpr int kMany = kSplit ? 1 : 8;  // rows that share keys
    constexpr int kFew = kSplit ? 1 : 2;
    return launch_pages<kBlocks, kSplit, 3, kMany>(c, a, fill, result, stream) ||
           launch_pages<kBlocks, kSplit, 1, kFew>(c, a, fill, result, stream);
}

/// Parts of scratch that the tensor-core kernels need.
inline Prepared take_prepared(Parts& parts, int64_t T, int64_t Hi) {
    const int64_t Hp = padded_heads(Hi);
    Prepared p{};
    p.q = parts.take<uint8_t>(T * Hp * kWidth);
    p.weight = parts.take<float>(T * Hp);
    p.pair = parts.take<int4>(T * Hp / 2);
    p.factor = parts.take<float>(T * Hp * kGroups);
    p.row_factor = parts.take<float>(T);
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
        return chained(&score_plain_kernel, dim3(spans(a.N, 256, 1024), T), 256, 0, stream, a, Hp,
                       bf16_keys);
    }
    cudaError_t result = cudaSuccess;
    if (whole_tiles(a)) {
        // The form follows from the shape; it changes no bits.
        const bool taken = Hp == 64         ? launch_pages<2, false>(c, a, fill, result, stream)
                           : a.T >= 2 * a.S ? launch_pages<1, false>(c, a, fill, result, stream)
                                            : launch_pages<1, true>(c, a, fill, result, stream);
        if (taken) {
            return result;
        }
    }
    result = chained(&prepare_kernel<false>, prepare_grid(a, fill), 256, 0, stream, a, Hp, fill);
    if (result != cudaSuccess) {
        return result;
    }
    return Hp == 32 ? launch_scores<4>(c, a, stream) : launch_scores<8>(c, a, stream);
}

/// Enqueues a selection; `counted`: the histogram of long rows is already there.
inline cudaError_t enqueue_selection(const SelectArgs& a, int64_t candidates, bool counted,
                                     cudaStream_t stream) {
    const auto T = static_cast<unsigned>(a.T);
    if (candidates <= kShortRow) {
        return chained(&select_short_kernel, dim3(1, T), kShortThreads, 0, stream, a);
    }
    const dim3 grid(spans(candidates, kSpan, 1 << 20), T);
    if (!counted) {
        cudaError_t result = chained(&clear_kernel, dim3(1, T), 512, 0, stream, a);
        if (result == cudaSuccess) {
            result = chained(&hist_kernel, grid, kHistThreads, 0, stream, a);
        }
        if (result != cudaSuccess) {
            return result;
        }
    }
    return chained(&select_long_kernel, grid, kLongThreads, 0, stream, a);
}

inline cudaError_t enqueue_block_max(const BlockArgs& a, cudaStream_t stream) {
    const dim3 grid(spans(a.columns, 1024, 1 << 20), static_cast<unsigned>(a.T));
    return chained(&block_max_kernel, grid, 256, 0, stream, a);
}

}  // namespace tenon::cuda::index
