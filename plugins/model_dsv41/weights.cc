// SPDX-License-Identifier: MIT
// Names and shapes of the checkpoint's tensors (dsv41.md 2) and how each is cut over ranks
// (dsv41.md 7).
#include "weights.h"

namespace tenon::dsv41 {

namespace {

/// Names of one block: "layers.3" or "mtp.0".
struct Names {
    std::string prefix;
    std::string operator()(const char* tail) const { return prefix + "." + tail; }
};

Status load_site(const ModelConfig& c, const Names& name, const char* site, WeightLoader& in,
                 SiteWeights* out) {
    const std::string mix = name("hc_") + site;
    const int64_t n = c.streams;
    const int64_t coefficients = n * (n + 2);
    TENON_TRY(in.plain({mix + "_fn", {coefficients, n * c.hidden}, PlainType::f32}, &out->fn));
    TENON_TRY(in.plain({mix + "_scale", {3}, PlainType::f32}, &out->scale));
    TENON_TRY(in.plain({mix + "_base", {coefficients}, PlainType::f32}, &out->base));
    return in.plain({name(site) + "_norm.weight", {c.hidden}}, &out->norm);
}

/// A draft stage multiplies its wkv also alone, with the absorbed taps.
Status load_attention(const ModelConfig& c, const LayerKind& kind, const Names& name, bool is_draft,
                      WeightLoader& in, BlockWeights* out) {
    const int64_t d = c.hidden;
    const int64_t dim = c.head_dim;
    const int64_t width = int64_t{c.heads} * dim;
    std::vector<MatrixDesc> inputs{{name("attn.wq_a"), d, c.q_rank}, {name("attn.wkv"), d, dim}};
    if (kind.owns_kv) {
        inputs.push_back({name("attn.compressor.wkv"), d, dim, 1, ShardAxis::none, false});
        if (kind.ratio > 1) {
            inputs.push_back({name("attn.compressor.wgate"), d, dim, 1, ShardAxis::none, false});
        }
    }
    TENON_TRY(in.group(inputs, is_draft, &out->inputs));

    std::vector<MatrixDesc> queries{{name("attn.wq_b"), c.q_rank, width, 1, ShardAxis::out}};
    if (kind.owns_index) {
        queries.push_back(
            {name("attn.indexer.wq_b"), c.q_rank, int64_t{c.index_heads} * c.index_dim});
    }
    TENON_TRY(in.group(queries, false, &out->queries));

    const int64_t groups = c.o_groups;
    TENON_TRY(in.matrix(
        {name("attn.wo_a"), width / groups, groups * c.o_rank, c.o_groups, ShardAxis::group, false},
        &out->wo_a));
    TENON_TRY(in.matrix({name("attn.wo_b"), groups * c.o_rank, d, 1, ShardAxis::in}, &out->wo_b));
    TENON_TRY(in.plain({name("attn.q_norm.weight"), {c.q_rank}}, &out->q_norm));
    TENON_TRY(in.plain({name("attn.kv_norm.weight"), {dim}}, &out->kv_norm));
    TENON_TRY(in.plain({name("attn.attn_sink"), {c.heads}, PlainType::f32, true}, &out->sink));
    if (kind.owns_kv) {
        TENON_TRY(in.plain({name("attn.compressor.norm.weight"), {dim}}, &out->latent_norm));
        TENON_TRY(in.matrix({name("attn.indexer.wk"), dim, c.index_dim, 1, ShardAxis::none, false},
                            &out->index_key));
        TENON_TRY(
            in.plain({name("attn.indexer.k_norm.weight"), {c.index_dim}}, &out->index_key_norm));
    }
    if (kind.owns_index) {
        TENON_TRY(in.plain({name("attn.indexer.weights_proj.weight"), {c.index_heads, d}},
                           &out->index_weights));
    }
    return {};
}

Status load_experts(const ModelConfig& c, const Names& name, int32_t experts, WeightLoader& in,
                    BlockWeights* out) {
    TENON_TRY(in.plain({name("ffn.gate.weight"), {experts, c.hidden}}, &out->gate));
    TENON_TRY(in.plain({name("ffn.gate.bias"), {experts}, PlainType::f32}, &out->gate_bias));
    // Packs leave the bias of image rows out; then those rows are routed like text.
    if (in.has(name("ffn.gate.bias_vl"))) {
        TENON_TRY(
            in.plain({name("ffn.gate.bias_vl"), {experts}, PlainType::f32}, &out->gate_bias_image));
    }
    ExpertsDesc desc;
    desc.prefix = name("ffn.experts");
    desc.shared_prefix = c.shared_experts > 0 ? name("ffn.shared_experts") : "";
    desc.experts = experts;
    desc.hidden = c.hidden;
    desc.width = c.expert_width;
    return in.experts(desc, &out->experts);
}

Status load_block(const ModelConfig& c, const LayerKind& kind, const Names& name, int32_t experts,
                  const char* tag, WeightLoader& in, BlockWeights* out) {
    const bool backbone = tag == nullptr;
    in.set_tag(backbone ? "weights.mixing" : tag);
    TENON_TRY(load_site(c, name, "attn", in, &out->attn_site));
    TENON_TRY(load_site(c, name, "ffn", in, &out->ffn_site));
    in.set_tag(backbone ? "weights.attention" : tag);
    TENON_TRY(load_attention(c, kind, name, !backbone, in, out));
    in.set_tag(backbone ? "weights.experts" : tag);
    TENON_TRY(load_experts(c, name, experts, in, out));
    if (kind.engram >= 0) {
        in.set_tag("weights.engram");
        const int64_t columns = int64_t{c.engram.columns()} * c.engram.width;
        const int64_t rows = (int64_t{c.streams} + 1) * c.hidden;
        TENON_TRY(
            in.matrix({name("engram.wkv"), columns, rows, 1, ShardAxis::in}, &out->engram.wkv));
        TENON_TRY(
            in.plain({name("engram.q_weight"), {c.streams, c.hidden}}, &out->engram.q_weight));
        TENON_TRY(
            in.plain({name("engram.k_weight"), {c.streams, c.hidden}}, &out->engram.k_weight));
    }
    return {};
}

Status load_drafter(const ModelConfig& c, WeightLoader& in, DraftWeights* out) {
    const DraftConfig& d = c.draft;
    out->stages.resize(static_cast<size_t>(d.stages));
    for (int32_t s = 0; s < d.stages; ++s) {
        const Names name{"mtp." + std::to_string(s)};
        TENON_TRY(load_block(c, LayerKind{}, name, d.experts, "weights.draft", in,
                             &out->stages[static_cast<size_t>(s)]));
    }
    in.set_tag("weights.draft");
    const auto taps = static_cast<int64_t>(d.taps.size());
    TENON_TRY(in.matrix({"mtp.0.main_proj", taps * c.hidden, c.hidden}, &out->main_proj));
    TENON_TRY(in.plain({"mtp.0.main_norm.weight", {c.hidden}}, &out->main_norm));
    const Names last{"mtp." + std::to_string(d.stages - 1)};
    TENON_TRY(in.plain({last("norm.weight"), {c.hidden}}, &out->final_norm));
    TENON_TRY(
        in.plain({last("markov_head.embed.weight"), {c.vocab, d.markov_rank}}, &out->markov_embed));
    TENON_TRY(in.plain(
        {last("markov_head.head.weight"), {c.vocab, d.markov_rank}, PlainType::as_stored, true},
        &out->markov_head));
    TensorView projection;
    TENON_TRY(in.plain({last("confidence_head.proj.weight"), {1, c.hidden + d.markov_rank}},
                       &projection));
    out->confidence = projection;
    out->confidence.rank = 1;
    out->confidence.shape[0] = projection.shape[1];
    out->confidence.stride[0] = 1;
    return {};
}

Status divides(RankShape shape, int64_t value, const char* what) {
    if (value % shape.world == 0) {
        return {};
    }
    return error(Code::invalid_argument,
                 "{} = {} cannot be split over {} ranks; use a world size that divides it", what,
                 value, shape.world);
}

}  // namespace

Status check_rank_shape(const ModelConfig& c, RankShape shape) {
    if (shape.world < 1 || shape.rank < 0 || shape.rank >= shape.world) {
        return error(Code::invalid_argument, "rank {} of {} ranks does not exist", shape.rank,
                     shape.world);
    }
    TENON_TRY(divides(shape, c.heads, "num_attention_heads"));
    TENON_TRY(divides(shape, c.o_groups, "o_groups"));
    TENON_TRY(divides(shape, c.expert_width, "moe_intermediate_size"));
    TENON_TRY(divides(shape, c.vocab, "vocab_size"));
    if (shape.world > 1) {
        TENON_TRY(divides({shape.rank, shape.world * 32}, c.vocab,
                          "vocab_size (masks are words of 32 ids)"));
    }
    if (c.has_engram()) {
        TENON_TRY(
            divides(shape, c.engram.columns(), "Engram columns (n-gram sizes x engram_n_heads)"));
    }
    return {};
}

Status load_weights(const ModelConfig& c, RankShape shape, bool with_drafts, WeightLoader& in,
                    ModelWeights* out) {
    TENON_TRY(check_rank_shape(c, shape));
    in.set_tag("weights.embed");
    TENON_TRY(in.plain({"embed.weight", {c.vocab, c.hidden}, PlainType::bf16}, &out->embed));
    out->layers.resize(static_cast<size_t>(c.layers));
    for (int32_t i = 0; i < c.layers; ++i) {
        const auto at = static_cast<size_t>(i);
        const Names name{"layers." + std::to_string(i)};
        TENON_TRY(load_block(c, c.layer[at], name, c.experts, nullptr, in, &out->layers[at]));
    }
    in.set_tag("weights.head");
    TENON_TRY(in.plain({"norm.weight", {c.hidden}}, &out->final_norm));
    TENON_TRY(in.matrix({"head", c.hidden, c.vocab, 1, ShardAxis::out, false}, &out->head));
    if (with_drafts && c.has_drafts()) {
        TENON_TRY(load_drafter(c, in, &out->draft));
    }
    return {};
}

}  // namespace tenon::dsv41
