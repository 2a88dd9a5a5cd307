// SPDX-License-Identifier: MIT
// index.score, index.blocks, index.topk and the fused index.select.
#include <algorithm>

#include "common/registry.h"
#include "index/launch.cuh"

namespace tenon::cuda {

namespace {

using namespace index;
using kernels::check_op;
using kernels::dim;
using kernels::ScoreShape;

// Rows of a batch, by the shared memory that the histogram of a selection needs; 0: none fits.
int share_of(const Context& c, int64_t Hi) {
    const int64_t bytes =
        Hi > 32 ? int64_t{sizeof(ScoreShared<8>)} : int64_t{sizeof(ScoreShared<4>)};
    const int64_t rows = (c.smem_block - bytes) / (kBins * static_cast<int64_t>(sizeof(unsigned)));
    return static_cast<int>(std::clamp<int64_t>(rows, 0, kShare));
}

bool plain_scores(const Context& c, const Pages& keys, int64_t Hi, int64_t Di) {
    return !tensor_scores(keys, Di) || share_of(c, Hi) == 0;
}

template <class P>
ScoreArgs score_args(const Context& c, const P& p, const ScoreShape& s) {
    ScoreArgs a{};
    a.iq = p.iq.template as<const __nv_bfloat16>();
    a.w = p.w.template as<const __nv_bfloat16>();
    a.w_scale = p.w_scale;
    a.keys = keys_of(p.keys);
    a.row = p.rows.row.template as<const RowInfo>();
    a.seg = p.rows.seg.template as<const SegInfo>();
    a.T = static_cast<int>(s.T);
    a.S = static_cast<int>(p.rows.S);
    a.Hi = static_cast<int>(s.Hi);
    a.Di = static_cast<int>(s.Di);
    a.cand = s.C > 0 ? p.cand.template as<const int>() : nullptr;
    a.C = static_cast<int>(s.C);
    a.block = p.block;
    a.N = s.N;
    a.share = share_of(c, s.Hi);
    a.skip_visible = -1;
    a.hist_visible = -1;
    a.faults = c.faults;
    return a;
}

int64_t score_scratch(void* self, const IndexScore& p) noexcept {
    const int64_t Hi = dim(p.iq, 1);
    if (p.rows.T == 0 || plain_scores(context(self), p.keys, Hi, dim(p.iq, 2))) {
        return 0;
    }
    Parts parts(nullptr);
    take_prepared(parts, p.rows.T, Hi);
    return parts.used();
}

Status check_scratch(const char* op, const TensorView& scratch, int64_t needed) {
    kernels::Check c(op);
    c.scratch(scratch, needed);
    return c.take();
}

Status score(void* self, const IndexScore& p, Stream& stream) noexcept {
    ScoreShape s{};
    TENON_TRY(check_op(p, &s));
    TENON_TRY(check_scratch(IndexScore::kOp.name, p.scratch, score_scratch(self, p)));
    if (s.T == 0 || s.N == 0) {
        return {};
    }
    const Context& c = context(self);
    ScoreArgs a = score_args(c, p, s);
    a.out = p.out.as<float>();
    a.stride = p.out.stride[0];
    Parts parts(p.scratch.data);
    const bool plain = plain_scores(c, p.keys, s.Hi, s.Di);
    if (!plain) {
        a.prepared = take_prepared(parts, s.T, s.Hi);
    }
    return cuda_status(
        enqueue_scores(c, a, p.keys.format == RowFormat::bf16, plain, true, native(stream)),
        IndexScore::kOp.name);
}

// Block maxima, then a selection among blocks.
struct BlockScratch {
    float* best = nullptr;
    SelectArgs select{};
};
BlockScratch take_blocks(Parts& parts, int64_t T, int64_t blocks) {
    BlockScratch b;
    b.best = parts.take<float>(T * blocks);
    take_selection(parts, b.select, T, blocks);
    return b;
}
int64_t block_columns(int64_t N, int32_t block) {
    return (N + block - 1) / std::max(block, 1);
}

struct BlockCall {
    const float* scores;
    int64_t stride, N;
    const Rows& rows;
    int32_t ratio, block;
    const TensorView& cand;
    const TensorView& count;
};
cudaError_t enqueue_blocks(const Context& c, const BlockCall& call, BlockScratch b,
                           cudaStream_t stream) {
    BlockArgs m{};
    m.scores = call.scores;
    m.stride = call.stride;
    m.N = call.N;
    m.row = call.rows.row.as<const RowInfo>();
    m.T = static_cast<int>(call.rows.T);
    m.ratio = call.ratio;
    m.block = call.block;
    m.C = static_cast<int>(call.cand.shape[1]);
    m.best = b.best;
    m.columns = block_columns(call.N, call.block);
    m.faults = c.faults;
    const bool choice = m.columns > m.C;  // else every row keeps all its blocks
    if (choice) {
        const cudaError_t result = enqueue_block_max(m, stream);
        if (result != cudaSuccess) {
            return result;
        }
    }
    SelectArgs a = b.select;
    a.values = b.best;
    a.stride = m.columns;
    a.N = m.columns;
    a.row = m.row;
    a.T = m.T;
    a.ratio = call.ratio;
    a.units = call.block;
    a.K = m.C;
    a.out = call.cand.as<int>();
    a.count = call.count.as<int>();
    a.faults = c.faults;
    return enqueue_selection(a, m.columns, false, stream);
}

int64_t blocks_scratch(void*, const IndexBlocks& p) noexcept {
    Parts parts(nullptr);
    if (p.rows.T > 0) {
        take_blocks(parts, p.rows.T, block_columns(dim(p.scores, 1), p.block));
    }
    return parts.used();
}

Status blocks(void* self, const IndexBlocks& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    TENON_TRY(check_scratch(IndexBlocks::kOp.name, p.scratch, blocks_scratch(self, p)));
    if (p.rows.T == 0) {
        return {};
    }
    Parts parts(p.scratch.data);
    const int64_t N = p.scores.shape[1];
    const BlockScratch b = take_blocks(parts, p.rows.T, block_columns(N, p.block));
    return cuda_status(enqueue_blocks(context(self),
                                      {p.scores.as<const float>(), p.scores.stride[0], N, p.rows,
                                       p.ratio, p.block, p.cand, p.count},
                                      b, native(stream)),
                       IndexBlocks::kOp.name);
}

int64_t topk_scratch(void*, const IndexTopk& p) noexcept {
    Parts parts(nullptr);
    SelectArgs a{};
    if (p.rows.T > 0) {
        take_selection(parts, a, p.rows.T, dim(p.scores, 1));
    }
    return parts.used();
}

SelectArgs select_args(const Context& c, const Rows& rows, int32_t ratio, const TensorView& cand,
                       int32_t block, const TensorView& sel, const TensorView& count) {
    SelectArgs a{};
    a.row = rows.row.as<const RowInfo>();
    a.T = static_cast<int>(rows.T);
    a.ratio = ratio;
    a.units = 1;
    if (!cand.null()) {
        a.cand = cand.as<const int>();
        a.C = static_cast<int>(cand.shape[1]);
    }
    a.block = block;
    a.K = static_cast<int>(sel.shape[1]);
    a.out = sel.as<int>();
    a.count = count.as<int>();
    a.faults = c.faults;
    return a;
}

Status topk(void* self, const IndexTopk& p, Stream& stream) noexcept {
    TENON_TRY(check_op(p));
    TENON_TRY(check_scratch(IndexTopk::kOp.name, p.scratch, topk_scratch(self, p)));
    if (p.rows.T == 0) {
        return {};
    }
    SelectArgs a = select_args(context(self), p.rows, p.ratio, p.cand, p.block, p.sel, p.count);
    a.values = p.scores.as<const float>();
    a.stride = p.scores.stride[0];
    a.N = p.scores.shape[1];
    Parts parts(p.scratch.data);
    take_selection(parts, a, p.rows.T, a.N);
    return cuda_status(enqueue_selection(a, a.N, false, native(stream)), IndexTopk::kOp.name);
}

struct SelectScratch {
    float* scores = nullptr;
    int64_t stride = 0;
    Prepared prepared{};
    SelectArgs select{};
    BlockScratch blocks{};
};
SelectScratch take_select(Parts& parts, const IndexSelect& p, const ScoreShape& s, bool plain) {
    SelectScratch x;
    x.stride = (s.N + 3) / 4 * 4;
    x.scores = parts.take<float>(s.T * x.stride);
    if (!plain) {
        x.prepared = take_prepared(parts, s.T, s.Hi);
    }
    take_selection(parts, x.select, s.T, s.N);
    if (!p.blocks.null()) {
        x.blocks = take_blocks(parts, s.T, block_columns(s.N, p.block));
    }
    return x;
}

ScoreShape select_shape(const IndexSelect& p) {
    const int64_t C = p.cand.null() ? 0 : dim(p.cand, 1);
    const int64_t N = C > 0 ? std::min(p.N, C * std::max(p.block, 1)) : p.N;
    return {p.rows.T, dim(p.iq, 1), dim(p.iq, 2), N, C};
}

int64_t select_scratch(void* self, const IndexSelect& p) noexcept {
    const ScoreShape s = select_shape(p);
    Parts parts(nullptr);
    if (s.T > 0) {
        take_select(parts, p, s, plain_scores(context(self), p.keys, s.Hi, s.Di));
    }
    return parts.used();
}

Status select(void* self, const IndexSelect& p, Stream& stream) noexcept {
    ScoreShape s{};
    TENON_TRY(check_op(p, &s));
    TENON_TRY(check_scratch(IndexSelect::kOp.name, p.scratch, select_scratch(self, p)));
    if (s.T == 0) {
        return {};
    }
    const Context& c = context(self);
    const bool plain = plain_scores(c, p.keys, s.Hi, s.Di);
    Parts parts(p.scratch.data);
    const SelectScratch x = take_select(parts, p, s, plain);
    const int64_t K = p.sel.shape[1];
    const bool is_long = s.N > kShortRow;

    ScoreArgs a = score_args(c, p, s);
    a.out = x.scores;
    a.stride = x.stride;
    a.prepared = x.prepared;
    a.prepared.hist = is_long ? x.select.hist : nullptr;
    a.prepared.state = x.select.state;
    a.skip_visible = p.blocks.null() ? K : std::min(K, p.blocks.shape[1] * p.block);
    a.hist_visible = is_long && s.C == 0 ? a.skip_visible : -1;
    cudaError_t result = cudaSuccess;
    if (s.N > 0) {
        result =
            enqueue_scores(c, a, p.keys.format == RowFormat::bf16, plain, false, native(stream));
    }
    if (result == cudaSuccess && !p.blocks.null()) {
        result = enqueue_blocks(
            c, {x.scores, x.stride, s.N, p.rows, p.keys.ratio, p.block, p.blocks, p.block_count},
            x.blocks, native(stream));
    }
    if (result == cudaSuccess) {
        SelectArgs b = select_args(c, p.rows, p.keys.ratio, p.cand, p.block, p.sel, p.count);
        b.values = x.scores;
        b.stride = x.stride;
        b.N = s.N;
        b.hist = x.select.hist;
        b.state = x.select.state;
        b.listed = x.select.listed;
        b.sure = x.select.sure;
        result = enqueue_selection(b, s.N, !plain && s.C == 0, native(stream));
    }
    return cuda_status(result, IndexSelect::kOp.name);
}

}  // namespace

void add_index(Registry& r) {
    r.add<IndexScore>(&score, Exactness::invariant, kBoth, &score_scratch);
    r.add<IndexBlocks>(&blocks, Exactness::exact, kBoth, &blocks_scratch);
    r.add<IndexTopk>(&topk, Exactness::exact, kBoth, &topk_scratch);
    r.add<IndexSelect>(&select, Exactness::invariant, kBoth, &select_scratch);
}

}  // namespace tenon::cuda
