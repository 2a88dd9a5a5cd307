// SPDX-License-Identifier: MIT
// Backbone: embedding, mixing sites, Engram, experts, head.
#include "forward.h"

#include "forward_call.h"

namespace tenon::dsv41 {

void Forward::init(const ForwardParts& parts) {
    p_ = parts;
    main_freq_ = p_.config->frequencies(false);
    compress_freq_ = p_.config->frequencies(true);
}

void Forward::keep(const Block& block, const char* what, const TensorView& value) {
    if (tracer_ != nullptr && !measuring_ && block.layer >= 0) {
        tracer_->keep("layers." + std::to_string(block.layer) + "." + what, value);
    }
}

void Forward::keep(const char* name, const TensorView& value) {
    if (tracer_ != nullptr && !measuring_) {
        tracer_->keep(name, value);
    }
}

Status Forward::linear(const Linear& w, const TensorView& x, const TensorView& y, Regime regime) {
    if (measuring_) {
        scratch_need_ =
            std::max(scratch_need_, w.weight->scratch_bytes(x.shape[0], regime, y.dtype));
        return {};
    }
    return w.weight->linear({x, y, regime, p_.act->scratch}, *p_.stream);
}

Status Forward::linear_group(const LinearGroup& w, const TensorView& x, Span<const TensorView> ys,
                             Regime regime) {
    if (measuring_) {
        DType types[8];
        for (uint64_t i = 0; i < ys.size; ++i) {
            types[i] = ys[i].dtype;
        }
        scratch_need_ =
            std::max(scratch_need_, w.scratch_bytes(x.shape[0], regime, {types, ys.size}));
        return {};
    }
    return w.run(x, ys, regime, p_.act->scratch, *p_.stream);
}

Status Forward::sum_over_ranks(const TensorView& partial) {
    if (!has_ranks() || measuring_) {
        return {};
    }
    return p_.communicator->all_reduce_sum(partial, *p_.stream);
}

Status Forward::angles(const RowGroup& g) {
    const ModelConfig& c = *p_.config;
    const OpSet& o = ops(g.regime);
    const int64_t half = c.rope_dim / 2;
    const TensorView main = make_view(main_freq_.data(), DType::f32, {half});
    TENON_TRY(call(o.rope_angles, RopeAngles{g.rows, main, 1, p_.act->cs_main.rows(0, g.rows.T)}));
    if (c.kv_sources.empty()) {
        return {};
    }
    const TensorView compress = make_view(compress_freq_.data(), DType::f32, {half});
    TENON_TRY(call(o.rope_angles,
                   RopeAngles{g.rows, compress, 1, p_.act->cs_compress.rows(0, g.rows.T)}));
    if (c.max_ratio() > 1) {
        TENON_TRY(call(o.rope_angles, RopeAngles{g.rows, compress, c.max_ratio(),
                                                 p_.act->cs_latent.rows(0, g.rows.T)}));
    }
    return {};
}

Status Forward::embed(const RowGroup& g) {
    EmbedGather e;
    e.ids = g.ids;
    e.table = p_.weights->embed;
    e.inject = g.inject;
    e.inject_index = g.inject_index;
    e.out = p_.act->h.rows(0, g.rows.T);
    e.pre = pre_in(0).rows(0, g.rows.T);
    return call(ops(g.regime).embed_gather, e);
}

Status Forward::engram(const RowGroup& g, const LayerKind& kind, const EngramWeights& w,
                       EngramFeed* feed) {
    const ModelConfig& c = *p_.config;
    const OpSet& o = ops(g.regime);
    const int64_t n = g.rows.T;
    EngramDecode decode;
    if (measuring_) {
        const int64_t columns = c.engram.columns() / p_.ranks.world;
        decode.values = make_view(p_.act->scratch.data, DType::u8, {n, columns, c.engram.width});
        decode.scales =
            make_view(p_.act->scratch.data, DType::u8, {n, columns, c.engram.width / 32});
    } else {
        TENON_TRY(feed->rows_of(kind.engram, &decode.values, &decode.scales));
    }
    decode.rows = g.rows;
    decode.out = p_.act->engram_values.rows(0, n);
    TENON_TRY(call(o.engram_decode, decode));
    const TensorView kv = p_.act->engram_kv.rows(0, n);
    TENON_TRY(linear(w.wkv, decode.out, kv, g.regime));
    const TensorView h = p_.act->h.rows(0, n);
    if (has_ranks() && o.engram_reduce_gate && !measuring_) {
        TensorView parts = p_.act->engram_parts;
        parts.shape[1] = n;
        parts.stride[0] = n * parts.shape[2];
        TENON_TRY(p_.communicator->all_gather(parts, kv, *p_.stream));
        return call(o.engram_reduce_gate,
                    EngramReduceGate{parts, h, w.q_weight, w.k_weight, c.norm_eps, g.rows});
    }
    TENON_TRY(sum_over_ranks(kv));
    return call(o.engram_gate, EngramGate{kv, h, w.q_weight, w.k_weight, c.norm_eps, g.rows});
}

Status Forward::take_tap(const RowGroup& g, int32_t tap) {
    const int64_t d = p_.config->hidden;
    TensorView out = p_.act->taps.rows(0, g.tail.T);
    out.data = out.as<uint16_t>() + tap * d;
    out.shape[1] = d;
    return call(ops(g.regime).mhc_mean, MhcMean{p_.act->h.rows(g.tail_row0, g.tail.T), out});
}

Status Forward::start_site(const RowGroup& g, const Site& site) {
    const ModelConfig& c = *p_.config;
    const OpSet& o = ops(g.regime);
    const int64_t n = g.rows.T;
    const Activations& a = *p_.act;
    const SiteWeights& w = *site.weights;
    const TensorView h = a.h.rows(g.row0, n);
    const TensorView x = a.x.rows(g.row0, n);
    const TensorView pre = pre_out(site.index).rows(g.row0, n);
    const TensorView post = a.post.rows(g.row0, n);
    const TensorView comb = a.comb.rows(g.row0, n);
    if (o.mhc_mix_collapse_norm) {
        MhcMixCollapseNorm f;
        f.h = h;
        f.fn = w.fn;
        f.scale = w.scale;
        f.base = w.base;
        f.eps = c.norm_eps;
        f.hc_eps = c.mix_eps;
        f.iters = c.mix_iters;
        f.pre_in = pre_in(site.index).rows(g.row0, n);
        f.norm_weight = w.norm;
        f.x = x;
        f.pre = pre;
        f.post = post;
        f.comb = comb;
        return call(o.mhc_mix_collapse_norm, f);
    }
    MhcMix mix;
    mix.h = h;
    mix.fn = w.fn;
    mix.scale = w.scale;
    mix.base = w.base;
    mix.eps = c.norm_eps;
    mix.hc_eps = c.mix_eps;
    mix.iters = c.mix_iters;
    mix.pre = pre;
    mix.post = post;
    mix.comb = comb;
    TENON_TRY(call(o.mhc_mix, mix));
    TENON_TRY(call(o.mhc_collapse, MhcCollapse{h, pre_in(site.index).rows(g.row0, n), x}));
    return call(o.norm_rms, NormRms{x, w.norm, x, c.norm_eps});
}

Status Forward::finish_site(const RowGroup& g, int32_t site, const Site* next) {
    const ModelConfig& c = *p_.config;
    const OpSet& o = ops(g.regime);
    const int64_t n = g.rows.T;
    const Activations& a = *p_.act;
    const TensorView h = a.h.rows(g.row0, n);
    const TensorView y = a.y.rows(0, n);
    const TensorView post = a.post.rows(g.row0, n);
    const TensorView comb = a.comb.rows(g.row0, n);
    const bool seam = next != nullptr && o.mhc_seam;
    TensorView parts;
    if (has_ranks() && !measuring_) {
        if (seam || o.mhc_reduce_expand) {
            parts = a.parts;
            parts.shape[1] = n;
            parts.stride[0] = n * parts.shape[2];
            TENON_TRY(p_.communicator->all_gather(parts, y, *p_.stream));
        } else {
            TENON_TRY(sum_over_ranks(y));
        }
    }
    if (seam) {
        MhcSeam s;
        s.parts = parts;
        s.y = parts.null() ? y : TensorView();
        s.h = h;
        s.post_in = post;
        s.comb_in = comb;
        s.fn = next->weights->fn;
        s.scale = next->weights->scale;
        s.base = next->weights->base;
        s.eps = c.norm_eps;
        s.hc_eps = c.mix_eps;
        s.iters = c.mix_iters;
        s.pre_in = pre_out(site).rows(g.row0, n);
        s.norm_weight = next->weights->norm;
        s.out = h;
        s.x = a.x.rows(g.row0, n);
        s.pre = pre_out(next->index).rows(g.row0, n);
        s.post = post;
        s.comb = comb;
        return call(o.mhc_seam, s);
    }
    if (!parts.null()) {
        TENON_TRY(call(o.mhc_reduce_expand, MhcReduceExpand{parts, h, post, comb, h}));
    } else {
        TENON_TRY(call(o.mhc_expand, MhcExpand{y, h, post, comb, h}));
    }
    return next == nullptr ? Status() : start_site(g, *next);
}

Status Forward::experts(const RowGroup& g, const Block& b) {
    const ModelConfig& c = *p_.config;
    const OpSet& o = ops(g.regime);
    const int64_t n = g.rows.T;
    const Activations& a = *p_.act;
    const BlockWeights& w = *b.weights;
    const TensorView x = a.x.rows(g.row0, n);
    const TensorView ids =
        make_view(a.expert_ids.data, DType::i32, {n, b.experts_per_token}, a.expert_ids.place);
    const TensorView weights = make_view(a.expert_weights.data, DType::f32,
                                         {n, b.experts_per_token}, a.expert_weights.place);
    // Drafts are text: the drafter never uses the bias of image rows (dsv41.md 13.5).
    const TensorView bias_image = b.layer < 0 ? TensorView() : w.gate_bias_image;
    if (o.route_gate_topk) {
        RouteGateTopk r;
        r.x = x;
        r.gate = w.gate;
        r.bias = w.gate_bias;
        r.bias_image = bias_image;
        r.k = b.experts_per_token;
        r.scale = c.route_scale;
        r.rows = g.rows;
        r.ids = ids;
        r.weights = weights;
        TENON_TRY(call(o.route_gate_topk, r));
    } else {
        const TensorView logits =
            make_view(a.gate_logits.data, DType::f32, {n, b.experts}, a.gate_logits.place);
        TENON_TRY(call(o.linear_plain, LinearPlain{x, w.gate, {}, logits, {}}));
        TENON_TRY(call(o.route_topk, RouteTopk{logits, w.gate_bias, bias_image, b.experts_per_token,
                                               c.route_scale, g.rows, ids, weights}));
    }
    keep(b, "experts", ids);
    keep(b, "expert_weights", weights);
    ExpertsArgs e;
    e.x = x;
    e.ids = ids;
    e.weights = weights;
    e.limit = c.swiglu_limit;
    e.out = a.y.rows(0, n);
    e.regime = g.regime;
    if (measuring_) {
        scratch_need_ =
            std::max(scratch_need_, w.experts->scratch_bytes(n, b.experts_per_token, g.regime));
        return {};
    }
    e.scratch = a.scratch;
    TENON_TRY(w.experts->run(e, *p_.stream));
    keep(b, "ffn_out", e.out);
    return {};
}

/// The rows from the layer's first output on.
RowGroup Forward::suffix(const RowGroup& g, const TailLayer& layer) {
    RowGroup after = g;
    const int64_t skipped = layer.output0 - g.row0;
    after.row0 = layer.output0;
    after.rows.T = g.rows.T - skipped;
    after.rows.row = g.rows.row.rows(skipped, after.rows.T);
    after.rows.seg = layer.attend_seg;
    return after;
}

int32_t Forward::stretches() const {
    int32_t n = 1;
    for (size_t layer = 1; layer < static_cast<size_t>(p_.config->layers); ++layer) {
        n += p_.config->layer[layer].engram >= 0 ? 1 : 0;
    }
    return n;
}

int32_t Forward::stretch_begin(int32_t index) const {
    int32_t layer = 0;
    while (index > 0 && ++layer < p_.config->layers) {
        index -= p_.config->layer[static_cast<size_t>(layer)].engram >= 0 ? 1 : 0;
    }
    return layer;
}

int32_t Forward::stretch_table(int32_t index) const {
    return p_.config->layer[static_cast<size_t>(stretch_begin(index))].engram;
}

Status Forward::stretch(int32_t index, const RowGroup& group, EngramFeed* feed) {
    RowGroup g = group;
    if (index == 0) {
        TENON_TRY(angles(g));
        TENON_TRY(embed(g));
    }
    return layers(stretch_begin(index), stretch_begin(index + 1), &g, feed);
}

Status Forward::backbone(const RowGroup& whole, EngramFeed* feed) {
    RowGroup g = whole;
    TENON_TRY(angles(g));
    TENON_TRY(embed(g));
    return layers(0, p_.config->layers, &g, feed);
}

Status Forward::layers(int32_t first, int32_t end, RowGroup* group, EngramFeed* feed) {
    const ModelConfig& c = *p_.config;
    RowGroup& g = *group;
    const Span<const TailLayer> tails = g.tail_layers;
    const auto first_tail = c.layers - static_cast<int32_t>(tails.size);
    bool has_input = false;
    for (int32_t layer = first; layer < end; ++layer) {
        const auto at = static_cast<size_t>(layer);
        Block b;
        b.weights = &p_.weights->layers[at];
        b.kind = c.layer[at];
        b.layer = layer;
        b.half = c.candidate_source >= 0 && layer >= c.candidate_source ? 1 : 0;
        b.ring = p_.state->window_ring(layer);
        b.mode = AttnMode::causal;
        b.experts = c.experts;
        b.experts_per_token = c.experts_per_token;
        const Site attn_site{&b.weights->attn_site, 2 * layer};
        const Site ffn_site{&b.weights->ffn_site, 2 * layer + 1};
        if (b.kind.engram >= 0) {
            TENON_TRY_CTX(engram(g, b.kind, b.weights->engram, feed), "layer {}", layer);
        }
        if (b.kind.tap >= 0 && p_.with_drafts && g.tail.T > 0) {
            TENON_TRY(take_tap(g, b.kind.tap));
        }
        if (!has_input) {
            TENON_TRY(start_site(g, attn_site));
        }
        keep(b, "pre_in", pre_in(attn_site.index).rows(g.row0, g.rows.T));
        RowGroup after = g;
        if (layer >= first_tail) {
            after = suffix(g, tails[static_cast<uint64_t>(layer - first_tail)]);
        }
        TENON_TRY_CTX(attention(g, after, b), "layer {}", layer);
        g = after;
        if (g.rows.T == 0) {
            return {};  // nothing above is needed for this chunk's targets
        }
        TENON_TRY(finish_site(g, attn_site.index, &ffn_site));
        TENON_TRY_CTX(experts(g, b), "layer {}", layer);
        has_input = layer + 1 < c.layers && c.layer[at + 1].engram < 0;
        const Site next{has_input ? &p_.weights->layers[at + 1].attn_site : nullptr, 2 * layer + 2};
        TENON_TRY(finish_site(g, ffn_site.index, has_input ? &next : nullptr));
        keep(b, "h", p_.act->h.rows(g.row0, g.rows.T));
    }
    return {};
}

Status Forward::head(const RowGroup& g, const TensorView& index, int64_t count) {
    const ModelConfig& c = *p_.config;
    const OpSet& o = ops(g.regime);
    const Activations& a = *p_.act;
    TensorView h = a.h.rows(0, count);
    TensorView pre = pre_out(2 * c.layers - 1).rows(0, count);
    if (!index.null()) {
        const TensorView h_rows = a.head_h.rows(0, count);
        const TensorView pre_rows = a.head_pre.rows(0, count);
        TENON_TRY(call(o.rows_gather, RowsGather{a.h.rows(0, g.rows.T), index, h_rows}));
        TENON_TRY(call(o.rows_gather,
                       RowsGather{pre_out(2 * c.layers - 1).rows(0, g.rows.T), index, pre_rows}));
        h = h_rows;
        pre = pre_rows;
    }
    const TensorView x = a.head_x.rows(0, count);
    if (o.mhc_collapse_norm) {
        TENON_TRY(call(o.mhc_collapse_norm,
                       MhcCollapseNorm{h, pre, p_.weights->final_norm, c.norm_eps, x}));
    } else {
        TENON_TRY(call(o.mhc_collapse, MhcCollapse{h, pre, x}));
        TENON_TRY(call(o.norm_rms, NormRms{x, p_.weights->final_norm, x, c.norm_eps}));
    }
    keep("final", x);
    const TensorView part = a.logits_part.rows(0, count);
    TENON_TRY(linear(p_.weights->head, x, part, g.regime));
    if (!has_ranks() || measuring_) {
        return {};
    }
    const int64_t width = part.shape[1];
    const TensorView all = make_view(a.logits_gather.data, DType::f32,
                                     {p_.ranks.world, count, width}, a.logits_gather.place);
    TENON_TRY(p_.communicator->gather(all, part, 0, *p_.stream));
    if (p_.ranks.rank != 0) {
        return {};
    }
    for (int32_t r = 0; r < p_.ranks.world; ++r) {
        TensorView dst = a.logits.rows(0, count);
        dst.data = dst.as<float>() + r * width;
        dst.shape[1] = width;
        const TensorView src =
            make_view(all.as<float>() + r * count * width, DType::f32, {count, width}, all.place);
        TENON_TRY(p_.device->copy(dst, src, *p_.stream));
    }
    return {};
}

Status Forward::digest(const RowGroup& g, const TensorView& out) {
    return call(ops(g.regime).rows_digest, RowsDigest{p_.act->h.rows(0, g.rows.T), g.rows, out});
}

}  // namespace tenon::dsv41
