// SPDX-License-Identifier: MIT
// Attention of one block: projections, window rows, compressor, indexer, sparse attention
// (dsv41.md 3.5-3.7).
#include <cmath>

#include "forward_call.h"

namespace tenon::dsv41 {

namespace {

/// Score tiles start on multiples of this, so that every view of a tile stays 16-byte aligned.
constexpr int64_t kTileRows = 16;

/// Rows of scores start on 16 bytes.
constexpr int64_t score_stride(int64_t width) {
    return (width + 3) / 4 * 4;
}

}  // namespace

/// Everything that reads x: queries' latent, window row, and in a kv source the compressor's
/// inputs.
Status Forward::project_inputs(const RowGroup& g, const Block& b) {
    const Activations& a = *p_.act;
    const int64_t n = g.rows.T;
    TensorView ys[4] = {a.qa.rows(g.row0, n), a.kv.rows(g.row0, n)};
    uint64_t count = 2;
    if (b.kind.owns_kv) {
        // At ratio 1 the row itself is the latent (bf16); at ratio 2 sums stay f32 until pooled.
        ys[count++] = b.kind.ratio == 1 ? a.latent.rows(0, n) : a.pool_a.rows(0, n);
        if (b.kind.ratio > 1) {
            ys[count++] = a.pool_s.rows(0, n);
        }
    }
    return linear_group(b.weights->inputs, a.x.rows(g.row0, n), {ys, count}, g.regime);
}

/// Norms of the query latent and of the window row; the window row is turned, quantised and perhaps
/// stored.
Status Forward::prepare_rows(const RowGroup& g, const Block& b, const TensorView& cs) {
    const ModelConfig& c = *p_.config;
    const OpSet& o = ops(g.regime);
    const Activations& a = *p_.act;
    const int64_t n = g.rows.T;
    const TensorView qa = a.qa.rows(g.row0, n);
    const TensorView kv = a.kv.rows(g.row0, n);
    const bool store = b.mode == AttnMode::causal && g.store_first;
    if (o.attn_qkv_prep) {
        AttnQkvPrep f;
        f.qa_raw = qa;
        f.qa_weight = b.weights->q_norm;
        f.qa = qa;
        f.kv_raw = kv;
        f.kv_weight = b.weights->kv_norm;
        f.kv = kv;
        f.cs = cs;
        f.eps = c.norm_eps;
        f.rows = g.rows;
        f.ring = store ? b.ring : Ring();
        return call(o.attn_qkv_prep, f);
    }
    TENON_TRY(call(o.norm_rms, NormRms{qa, b.weights->q_norm, qa, c.norm_eps}));
    TENON_TRY(call(o.norm_rms, NormRms{kv, b.weights->kv_norm, kv, c.norm_eps}));
    TENON_TRY(call(o.rope_turn, RopeTurn{kv, cs, false, kv}));
    TENON_TRY(call(o.kvq_quantize, KvqQuantize{kv, RowFormat::q8, kv, {}, {}}));
    return store ? call(o.window_store, WindowStore{kv, g.rows, b.ring}) : Status();
}

/// New compressed rows and index keys of a kv source. Keys come from the latent before rotation.
Status Forward::compress(const RowGroup& g, const Block& b) {
    const ModelConfig& c = *p_.config;
    const OpSet& o = ops(g.regime);
    const Activations& a = *p_.act;
    const BlockWeights& w = *b.weights;
    const int64_t n = g.rows.T;
    const TensorView latent = a.latent.rows(0, n);
    const TensorView cs = (b.kind.ratio == 1 ? a.cs_compress : a.cs_latent).rows(g.row0, n);
    const Pages comp = p_.state->compressed(b.layer);
    const Pages keys = p_.state->index_keys(b.layer);
    if (o.compress_emit) {
        CompressEmit f;
        if (b.kind.ratio == 1) {
            f.latent_raw = latent;
        } else {
            f.a = a.pool_a.rows(0, n);
            f.s = a.pool_s.rows(0, n);
            f.raw = p_.state->raw(b.layer);
        }
        f.norm_weight = w.latent_norm;
        f.eps = c.norm_eps;
        f.cs = cs;
        f.rows = g.rows;
        f.comp = comp;
        f.latent = b.kind.ratio == 1 ? a.latent_turned.rows(0, n) : latent;
        TENON_TRY(call(o.compress_emit, f));
    } else {
        if (b.kind.ratio > 1) {
            TENON_TRY(call(o.compress_pool, CompressPool{a.pool_a.rows(0, n), a.pool_s.rows(0, n),
                                                         g.rows, p_.state->raw(b.layer), latent}));
        }
        TENON_TRY(call(o.norm_rms, NormRms{latent, w.latent_norm, latent, c.norm_eps}));
        const TensorView turned = a.latent_turned.rows(0, n);
        TENON_TRY(call(o.rope_turn, RopeTurn{latent, cs, false, turned}));
        TENON_TRY(call(o.cache_store, CacheStore{turned, g.rows, comp, RowFormat::q4e}));
    }
    const TensorView input =
        o.compress_emit && b.kind.ratio == 1 ? a.latent_turned.rows(0, n) : latent;
    const TensorView key = a.index_key.rows(0, n);
    TENON_TRY(linear(w.index_key, input, key, g.regime));
    if (o.index_key_emit) {
        return call(o.index_key_emit,
                    IndexKeyEmit{key, w.index_key_norm, c.norm_eps, cs, g.rows, keys});
    }
    TENON_TRY(call(o.norm_rms, NormRms{key, w.index_key_norm, key, c.norm_eps}));
    TENON_TRY(call(o.rope_turn, RopeTurn{key, cs, false, key}));
    return call(o.cache_store, CacheStore{key, g.rows, keys, RowFormat::q4u});
}

Status Forward::select_tile(const RowGroup& g, const Block& b, int64_t first, int64_t count,
                            int64_t visible) {
    const ModelConfig& c = *p_.config;
    const OpSet& o = ops(g.regime);
    const Activations& a = *p_.act;
    const Rows rows{g.rows.row.rows(first, count), g.rows.seg, count, g.rows.S};
    const TensorView sel = a.sel.rows(g.row0 + first, count);
    const TensorView sel_count = a.sel_count.rows(g.row0 + first, count);
    const bool all_fit = visible <= c.index_topk;
    const int64_t candidate_rows = int64_t{c.candidate_blocks} * c.candidate_block;
    // While all visible rows fit into the candidate blocks the stage is the identity.
    const bool staged = c.candidate_source >= 0 && visible > candidate_rows;
    const bool publishes = staged && b.layer == c.candidate_source;
    const bool restricted = staged && b.layer > c.candidate_source;
    const TensorView cand = staged ? a.cand.rows(g.row0 + first, count) : TensorView();
    const int64_t width = restricted ? candidate_rows : std::max<int64_t>(visible, 1);
    TensorView scores = make_view(a.scores.data, DType::f32, {count, width}, a.scores.place);
    scores.stride[0] = score_stride(width);
    if (!all_fit) {
        IndexScore s;
        s.iq = a.iq.rows(first, count);
        s.w = a.index_weights.rows(first, count);
        s.w_scale =
            1.0F / std::sqrt(static_cast<float>(c.index_dim) * static_cast<float>(c.index_heads));
        s.keys = p_.state->index_keys(b.kind.kv_source);
        s.rows = rows;
        s.cand = restricted ? cand : TensorView();
        s.block = std::max(c.candidate_block, 1);
        s.out = scores;
        TENON_TRY(call(o.index_score, s));
        if (publishes) {
            IndexBlocks k;
            k.scores = scores;
            k.rows = rows;
            k.ratio = b.kind.ratio;
            k.block = c.candidate_block;
            k.cand = cand;
            k.count = a.cand_count.rows(g.row0 + first, count);
            TENON_TRY(call(o.index_blocks, k));
        }
    }
    IndexTopk t;
    t.scores = scores;
    t.rows = rows;
    t.ratio = b.kind.ratio;
    t.cand = restricted ? cand : TensorView();
    t.block = std::max(c.candidate_block, 1);
    t.sel = sel;
    t.count = sel_count;
    return call(o.index_topk, t);
}

/// The compressed rows that each row of the group attends, for this layer and those that reuse its
/// list.
Status Forward::select(const RowGroup& g, const Block& b) {
    const ModelConfig& c = *p_.config;
    const OpSet& o = ops(g.regime);
    const Activations& a = *p_.act;
    const BlockWeights& w = *b.weights;
    const int64_t n = g.rows.T;
    const int64_t visible = g.visible_end / b.kind.ratio;
    const TensorView cs = a.cs_compress.rows(g.row0, n);
    const TensorView iq = a.iq.rows(0, n);
    const TensorView weights = a.index_weights.rows(0, n);
    if (visible > c.index_topk) {
        if (o.index_query_prep) {
            IndexQueryPrep f;
            f.iq = iq;
            f.cs = cs;
            f.x = a.x.rows(g.row0, n);
            f.weights_proj = w.index_weights;
            f.w = weights;
            TENON_TRY(call(o.index_query_prep, f));
        } else {
            TENON_TRY(call(o.rope_turn, RopeTurn{iq, cs, false, iq}));
            const TensorView flat = make_view(iq.data, DType::bf16,
                                              {n, int64_t{c.index_heads} * c.index_dim}, iq.place);
            TENON_TRY(call(o.kvq_quantize, KvqQuantize{flat, RowFormat::q4u, flat, {}, {}}));
            TENON_TRY(call(o.linear_plain,
                           LinearPlain{a.x.rows(g.row0, n), w.index_weights, {}, weights, {}}));
        }
    }
    if (o.index_select && visible > c.index_topk) {
        const int64_t candidate_rows = int64_t{c.candidate_blocks} * c.candidate_block;
        const bool staged = c.candidate_source >= 0 && visible > candidate_rows;
        IndexSelect s;
        s.iq = iq;
        s.w = weights;
        s.w_scale =
            1.0F / std::sqrt(static_cast<float>(c.index_dim) * static_cast<float>(c.index_heads));
        s.keys = p_.state->index_keys(b.kind.kv_source);
        s.rows = g.rows;
        s.block = std::max(c.candidate_block, 1);
        if (staged && b.layer > c.candidate_source) {
            s.cand = a.cand.rows(g.row0, n);
        }
        if (staged && b.layer == c.candidate_source) {
            s.blocks = a.cand.rows(g.row0, n);
            s.block_count = a.cand_count.rows(g.row0, n);
        }
        s.sel = a.sel.rows(g.row0, n);
        s.count = a.sel_count.rows(g.row0, n);
        s.N = visible;
        TENON_TRY(call(o.index_select, s));
    } else {
        const int64_t width = std::max<int64_t>(visible, 1);
        const int64_t fitting =
            a.scores.bytes() / (4 * score_stride(width)) / kTileRows * kTileRows;
        const int64_t tile = std::max(fitting, kTileRows);
        for (int64_t first = 0; first < n; first += tile) {
            TENON_TRY(select_tile(g, b, first, std::min(tile, n - first), visible));
        }
    }
    keep(b, "chosen", a.sel.rows(g.row0, n));
    if (b.layer == c.candidate_source &&
        visible > int64_t{c.candidate_blocks} * c.candidate_block) {
        keep("candidates", a.cand.rows(g.row0, n));
    }
    return {};
}

Status Forward::attend(const RowGroup& g, const Block& b, const TensorView& cs) {
    const ModelConfig& c = *p_.config;
    const OpSet& o = ops(g.regime);
    const Activations& a = *p_.act;
    const int64_t n = g.rows.T;
    AttnSparse s;
    s.q = a.q.rows(0, n);
    s.kv = a.kv.rows(g.row0, n);
    s.ring = b.ring;
    if (b.kind.ratio > 0) {
        s.comp = p_.state->compressed(b.kind.kv_source);
        s.sel = a.sel.rows(g.row0, n);
        s.count = a.sel_count.rows(g.row0, n);
    }
    s.sink = b.weights->sink;
    s.scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim));
    s.window = c.window;
    s.half = b.half;
    s.mode = b.mode;
    s.rows = g.rows;
    s.out = a.o.rows(0, n);
    if (o.attn_sparse_turn) {
        AttnSparseTurn f;
        f.q = s.q;
        f.kv = s.kv;
        f.ring = s.ring;
        f.comp = s.comp;
        f.sel = s.sel;
        f.count = s.count;
        f.sink = s.sink;
        f.scale = s.scale;
        f.window = s.window;
        f.half = s.half;
        f.mode = s.mode;
        f.rows = s.rows;
        f.cs = cs;
        f.out = s.out;
        return call(o.attn_sparse_turn, f);
    }
    TENON_TRY(call(o.rope_turn, RopeTurn{s.q, cs, false, s.q}));
    TENON_TRY(call(o.attn_sparse, s));
    return call(o.rope_turn, RopeTurn{s.out, cs, true, s.out});
}

Status Forward::attention(const RowGroup& all, const RowGroup& g, const Block& b) {
    const ModelConfig& c = *p_.config;
    const Activations& a = *p_.act;
    const OpSet& o = ops(g.regime);
    const int64_t n = g.rows.T;
    const int64_t skipped = all.rows.T - n;
    const int64_t world = p_.ranks.world;
    const int64_t groups = c.o_groups / world;
    const int64_t width = int64_t{c.heads} * c.head_dim / world;
    const TensorView& turns = b.kind.ratio == 0 ? a.cs_main : a.cs_compress;
    const TensorView cs = turns.rows(g.row0, n);

    TENON_TRY(project_inputs(all, b));
    TENON_TRY(prepare_rows(all, b, turns.rows(all.row0, all.rows.T)));
    keep(b, "window_kv", a.kv.rows(all.row0, all.rows.T));
    if (b.kind.owns_kv) {
        TENON_TRY(compress(all, b));
    }
    const bool stores = b.mode == AttnMode::causal && !g.store_first;
    if (stores && skipped > 0) {
        // The first rows that attend find the window rows before them in the ring.
        const TailLayer& layer =
            all.tail_layers[all.tail_layers.size - static_cast<uint64_t>(c.layers - b.layer)];
        const Rows before{all.rows.row.rows(0, skipped), layer.store_seg, skipped, 1};
        TENON_TRY(call(o.window_store, WindowStore{a.kv.rows(all.row0, skipped), before, b.ring}));
    }
    if (n == 0) {
        return {};
    }
    const TensorView flat_q = make_view(a.q.data, DType::bf16, {n, width}, a.q.place);
    TensorView ys[2] = {flat_q};
    uint64_t count = 1;
    if (b.kind.owns_index) {
        ys[count++] = make_view(a.iq.data, DType::bf16, {n, int64_t{c.index_heads} * c.index_dim},
                                a.iq.place);
    }
    TENON_TRY(linear_group(b.weights->queries, a.qa.rows(g.row0, n), {ys, count}, g.regime));
    if (b.kind.owns_index) {
        TENON_TRY(select(g, b));
    }
    TENON_TRY(attend(g, b, cs));
    if (stores) {
        TENON_TRY(call(o.window_store, WindowStore{a.kv.rows(g.row0, n), g.rows, b.ring}));
    }
    const TensorView out = make_view(a.o.data, DType::bf16, {n, groups, width / groups}, a.o.place);
    const TensorView u =
        make_view(a.u.data, DType::bf16, {n, groups, int64_t{c.o_rank}}, a.u.place);
    TENON_TRY(linear(b.weights->wo_a, out, u, g.regime));
    const TensorView flat_u = make_view(a.u.data, DType::bf16, {n, groups * c.o_rank}, a.u.place);
    TENON_TRY(linear(b.weights->wo_b, flat_u, a.y.rows(0, n), g.regime));
    keep(b, "attn_out", a.y.rows(0, n));
    return {};
}

}  // namespace tenon::dsv41
