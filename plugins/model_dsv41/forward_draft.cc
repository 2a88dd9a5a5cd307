// SPDX-License-Identifier: MIT
// DSpark: filling the draft rings, and the draft pass (dsv41.md 5).
#include "forward_call.h"

namespace tenon::dsv41 {

namespace {

/// Rows of a decode group at most (ops.md 1.6).
constexpr int64_t kDecodeRows = 64;

}  // namespace

Status Forward::absorb(const RowGroup& g) {
    const ModelConfig& c = *p_.config;
    const OpSet& o = ops(g.regime);
    const Activations& a = *p_.act;
    const DraftWeights& w = p_.weights->draft;
    const int64_t n = g.tail.T;
    const TensorView main_x = a.main_x.rows(0, n);
    const TensorView cs = a.cs_main.rows(g.tail_row0, n);
    TENON_TRY(linear(w.main_proj, a.taps.rows(0, n), main_x, g.regime));
    TENON_TRY(call(o.norm_rms, NormRms{main_x, w.main_norm, main_x, c.norm_eps}));
    keep("taps", a.taps.rows(0, n));
    keep("main_x", main_x);
    const TensorView kv = a.kv.rows(0, n);
    for (int32_t s = 0; s < c.draft.stages; ++s) {
        const BlockWeights& stage = w.stages[static_cast<size_t>(s)];
        const Ring ring = p_.state->draft_ring(s);
        TENON_TRY(linear(stage.inputs.members[1], main_x, kv, g.regime));
        if (o.attn_qkv_prep) {
            AttnQkvPrep f;
            f.kv_raw = kv;
            f.kv_weight = stage.kv_norm;
            f.kv = kv;
            f.cs = cs;
            f.eps = c.norm_eps;
            f.rows = g.tail;
            f.ring = ring;
            TENON_TRY(call(o.attn_qkv_prep, f));
            continue;
        }
        TENON_TRY(call(o.norm_rms, NormRms{kv, stage.kv_norm, kv, c.norm_eps}));
        TENON_TRY(call(o.rope_turn, RopeTurn{kv, cs, false, kv}));
        TENON_TRY(call(o.window_store, WindowStore{kv, g.tail, ring}));
    }
    return {};
}

Status Forward::draft(const DraftPass& pass) {
    const int64_t block = p_.config->draft.block;
    const int64_t segments = pass.window.S;
    const int64_t most = std::max<int64_t>(kDecodeRows / block, 1);
    for (int64_t first = 0; first < segments; first += most) {
        const int64_t n = std::min(most, segments - first);
        DraftPass part = pass;
        part.decision = pass.decision.rows(first, n);
        part.window.seg = pass.window.seg.rows(first, n);
        part.window.S = n;
        part.slot = pass.slot.rows(first, n);
        part.params = pass.params.null() ? pass.params : pass.params.rows(first, n);
        part.ids = pass.ids.rows(0, n * block);
        part.row = pass.row.rows(0, n * block);
        part.seg = pass.seg.rows(0, n);
        part.best = make_view(pass.best.data, DType::u8,
                              {p_.ranks.world, n, static_cast<int64_t>(sizeof(DraftBest))},
                              pass.best.place);
        part.best_own = pass.best_own.rows(0, n);
        part.tokens = pass.tokens.rows(first, n);
        part.confidence = pass.confidence.rows(first, n);
        TENON_TRY_CTX(draft_segments(part), "draft pass");
    }
    return {};
}

Status Forward::draft_segments(const DraftPass& pass) {
    const ModelConfig& c = *p_.config;
    const OpSet& o = ops(Regime::decode);
    const Activations& a = *p_.act;
    const int64_t block = c.draft.block;
    const int64_t segments = pass.window.S;
    const int64_t n = segments * block;
    DraftRows rows;
    rows.decision = pass.decision;
    rows.window = pass.window;
    rows.slot = pass.slot;
    rows.noise_id = c.draft.noise_id;
    rows.B = c.draft.block;
    rows.ids = pass.ids;
    rows.row = pass.row;
    rows.seg = pass.seg;
    TENON_TRY(call(o.draft_rows, rows));

    RowGroup g;
    g.regime = Regime::decode;
    g.rows = {pass.row, pass.seg, n, segments};
    g.ids = pass.ids;
    g.tail = g.rows;
    const TensorView main = make_view(main_freq_.data(), DType::f32, {int64_t{c.rope_dim} / 2});
    TENON_TRY(call(o.rope_angles, RopeAngles{g.rows, main, 1, a.cs_main.rows(0, n)}));
    TENON_TRY(embed(g));
    const int32_t stages = c.draft.stages;
    for (int32_t s = 0; s < stages; ++s) {
        Block b;
        b.weights = &p_.weights->draft.stages[static_cast<size_t>(s)];
        b.layer = -1;
        b.half = 0;
        b.ring = p_.state->draft_ring(s);
        b.mode = AttnMode::block;
        b.experts = c.draft.experts;
        b.experts_per_token = c.draft.experts_per_token;
        const Site attn_site{&b.weights->attn_site, 2 * s};
        const Site ffn_site{&b.weights->ffn_site, 2 * s + 1};
        if (s == 0) {
            TENON_TRY(start_site(g, attn_site));
        }
        TENON_TRY(attention(g, g, b));
        TENON_TRY(finish_site(g, attn_site.index, &ffn_site));
        TENON_TRY(experts(g, b));
        const bool more = s + 1 < stages;
        const Site next{
            more ? &p_.weights->draft.stages[static_cast<size_t>(s) + 1].attn_site : nullptr,
            2 * s + 2};
        TENON_TRY(finish_site(g, ffn_site.index, more ? &next : nullptr));
    }
    // c stays unnormed for the confidence head; the logits come from its norm.
    const TensorView hidden = a.x.rows(0, n);
    TENON_TRY(call(o.mhc_collapse,
                   MhcCollapse{a.h.rows(0, n), pre_out(2 * stages - 1).rows(0, n), hidden}));
    keep("draft.hidden", hidden);
    const TensorView normed = a.head_x.rows(0, n);
    TENON_TRY(call(o.norm_rms, NormRms{hidden, p_.weights->draft.final_norm, normed, c.norm_eps}));
    const TensorView base = a.logits_part.rows(0, n);
    TENON_TRY(linear(p_.weights->head, normed, base, Regime::decode));
    TENON_TRY(markov(pass, g, base));

    DraftConfidence f;
    f.c = make_view(hidden.data, DType::bf16, {segments, block, int64_t{c.hidden}}, hidden.place);
    f.prev = pass.tokens;
    f.prev.shape[1] = block;
    f.embed = p_.weights->draft.markov_embed;
    f.proj = p_.weights->draft.confidence;
    f.out = pass.confidence;
    return call(o.draft_confidence, f);
}

/// The chain of Markov steps: tokens[s][i + 1] from base row i and tokens[s][i].
Status Forward::markov(const DraftPass& pass, const RowGroup& g, const TensorView& base) {
    const ModelConfig& c = *p_.config;
    const OpSet& o = ops(Regime::decode);
    const DraftWeights& w = p_.weights->draft;
    const int64_t block = c.draft.block;
    const int64_t segments = g.rows.S;
    const int64_t width = base.shape[1];
    const auto column = [&](int64_t i) {
        TensorView v = pass.tokens;
        v.rank = 1;
        v.data = v.as<int32_t>() + i;
        return v;
    };
    const auto one_rank = [](const TensorView& best) {
        return make_view(best.data, DType::u8, {1, best.shape[0], best.shape[1]}, best.place);
    };
    // The first id of each block is the token that the window decided.
    TensorView first = pass.tokens;
    first.shape[1] = 1;
    TensorView decided = make_view(pass.ids.data, DType::i32, {segments, 1}, pass.ids.place);
    decided.stride[0] = block;
    if (!measuring_) {
        TENON_TRY(p_.device->copy(first, decided, *p_.stream));
    }
    if (!has_ranks() && o.draft_markov) {
        DraftMarkov f;
        f.base = make_view(base.data, DType::f32, {segments, block, width}, base.place);
        f.first = column(0);
        f.embed = w.markov_embed;
        f.head = w.markov_head;
        f.forbid = pass.forbid;
        f.params = pass.params;
        f.rows = g.rows;
        f.token = pass.tokens;
        f.token.data = f.token.as<int32_t>() + 1;
        f.token.shape[1] = block;
        return call(o.draft_markov, f);
    }
    for (int64_t i = 0; i < block; ++i) {
        DraftStep step;
        step.base =
            make_view(base.as<float>() + i * width, DType::f32, {segments, width}, base.place);
        step.base.stride[0] = block * width;
        step.prev = column(i);
        step.embed = w.markov_embed;
        step.head = w.markov_head;
        step.forbid = pass.forbid;
        step.params = pass.params;
        step.rows = g.rows;
        step.step = static_cast<int32_t>(i);
        step.vocab_at = static_cast<int32_t>(p_.ranks.rank * width);
        step.best = pass.best_own;
        TENON_TRY(call(o.draft_step, step));
        if (has_ranks() && !measuring_) {
            TENON_TRY(p_.communicator->all_gather(pass.best, step.best, *p_.stream));
        }
        const TensorView candidates = has_ranks() ? pass.best : one_rank(step.best);
        TENON_TRY(call(o.draft_pick, DraftPick{candidates, column(i + 1), {}}));
    }
    return {};
}

}  // namespace tenon::dsv41
