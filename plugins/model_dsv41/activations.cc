// SPDX-License-Identifier: MIT
// One arena for activations and one for what travels between ranks.
#include "activations.h"

#include <algorithm>

namespace tenon::dsv41 {

namespace {

/// Lays views out one after another; with a null base it only counts.
class Carver {
  public:
    Carver(void* base, Place place) : base_(static_cast<char*>(base)), place_(place) {}
    void take(TensorView* view, DType dtype, std::initializer_list<int64_t> shape) {
        *view = make_view(base_ == nullptr ? nullptr : static_cast<void*>(base_ + used_), dtype,
                          shape, place_);
        used_ += (view->bytes() + 255) / 256 * 256;
    }
    int64_t used() const { return used_; }

  private:
    char* base_;
    Place place_;
    int64_t used_ = 0;
};

void carve(const ModelConfig& c, RankShape ranks, const ActivationShape& s, bool fused_sums,
           bool with_drafts, Activations* a, Carver& local, Carver& exchange) {
    const int64_t n = s.rows;
    const int64_t d = c.hidden;
    const int64_t world = ranks.world;
    const int64_t heads = c.heads / world;
    const int64_t dim = c.head_dim;
    const int64_t streams = c.streams;
    const int64_t m = s.logit_rows;
    local.take(&a->h, DType::bf16, {n, streams, d});
    local.take(&a->pre[0], DType::f32, {n, streams});
    local.take(&a->pre[1], DType::f32, {n, streams});
    local.take(&a->post, DType::f32, {n, streams});
    local.take(&a->comb, DType::f32, {n, streams, streams});
    local.take(&a->x, DType::bf16, {n, d});
    local.take(&a->qa, DType::bf16, {n, c.q_rank});
    local.take(&a->kv, DType::bf16, {n, dim});
    local.take(&a->q, DType::bf16, {n, heads, dim});
    local.take(&a->o, DType::bf16, {n, heads, dim});
    local.take(&a->u, DType::bf16, {n, int64_t{c.o_groups} * c.o_rank / world});
    exchange.take(&a->y, DType::f32, {n, d});
    if (fused_sums && world > 1) {
        exchange.take(&a->parts, DType::f32, {world, n, d});
    }
    local.take(&a->cs_main, DType::f32, {n, c.rope_dim});
    if (!c.kv_sources.empty()) {
        local.take(&a->cs_compress, DType::f32, {n, c.rope_dim});
        local.take(&a->cs_latent, DType::f32, {n, c.rope_dim});
        local.take(&a->pool_a, DType::f32, {n, dim});
        local.take(&a->pool_s, DType::f32, {n, dim});
        local.take(&a->latent, DType::bf16, {n, dim});
        local.take(&a->latent_turned, DType::bf16, {n, dim});
        local.take(&a->index_key, DType::bf16, {n, c.index_dim});
        local.take(&a->iq, DType::bf16, {n, c.index_heads, c.index_dim});
        local.take(&a->index_weights, DType::bf16, {n, c.index_heads});
        local.take(&a->scores, DType::f32, {s.score_bytes / 4});
        local.take(&a->sel, DType::i32, {n, c.index_topk});
        local.take(&a->sel_count, DType::i32, {n});
        if (c.candidate_source >= 0) {
            local.take(&a->cand, DType::i32, {n, c.candidate_blocks});
            local.take(&a->cand_count, DType::i32, {n});
        }
    }
    const int64_t experts = std::max(c.experts, with_drafts ? c.draft.experts : 0);
    const int64_t chosen =
        std::max(c.experts_per_token, with_drafts ? c.draft.experts_per_token : 0);
    local.take(&a->gate_logits, DType::f32, {n, experts});
    local.take(&a->expert_ids, DType::i32, {n, chosen});
    local.take(&a->expert_weights, DType::f32, {n, chosen});
    if (c.has_engram()) {
        local.take(&a->engram_values, DType::bf16,
                   {n, int64_t{c.engram.columns()} * c.engram.width / world});
        exchange.take(&a->engram_kv, DType::f32, {n, (streams + 1) * d});
        if (fused_sums && world > 1) {
            exchange.take(&a->engram_parts, DType::f32, {world, n, (streams + 1) * d});
        }
    }
    if (with_drafts) {
        const auto taps = static_cast<int64_t>(c.draft.taps.size());
        local.take(&a->taps, DType::bf16, {s.tail_rows, taps * d});
        local.take(&a->main_x, DType::bf16, {s.tail_rows, d});
    }
    local.take(&a->head_h, DType::bf16, {m, streams, d});
    local.take(&a->head_pre, DType::f32, {m, streams});
    local.take(&a->head_x, DType::bf16, {m, d});
    exchange.take(&a->logits_part, DType::f32, {m, c.vocab / world});
    if (world > 1) {
        exchange.take(&a->logits_gather, DType::f32, {world, m, c.vocab / world});
        local.take(&a->logits, DType::f32, {m, c.vocab});
    } else {
        a->logits = a->logits_part;
    }
}

}  // namespace

void Activations::plan(const ModelConfig& config, RankShape ranks, const ActivationShape& shape,
                       bool fused_sums, bool with_drafts, int64_t* device_bytes,
                       int64_t* exchange_bytes) {
    Activations a;
    Carver local(nullptr, Place::device);
    Carver exchange(nullptr, Place::device);
    carve(config, ranks, shape, fused_sums, with_drafts, &a, local, exchange);
    *device_bytes = local.used();
    *exchange_bytes = exchange.used();
}

Status Activations::allocate(const ModelConfig& config, RankShape ranks,
                             const ActivationShape& shape, bool fused_sums, bool with_drafts,
                             Device& device, Communicator* communicator) {
    int64_t local_bytes = 0;
    int64_t exchange_bytes = 0;
    plan(config, ranks, shape, fused_sums, with_drafts, &local_bytes, &exchange_bytes);
    BufferDesc desc;
    desc.bytes = local_bytes;
    desc.tag = "prefill.scratch";
    TENON_TRY(device.allocate(desc, buffer_.out()));
    if (ranks.world > 1) {
        TENON_TRY(communicator->allocate_exchange(exchange_bytes, exchange_.out()));
    } else {
        desc.bytes = exchange_bytes;
        desc.tag = "exchange";
        TENON_TRY(device.allocate(desc, exchange_.out()));
    }
    Carver local(buffer_->data(), buffer_->place());
    Carver exchange(exchange_->data(), exchange_->place());
    carve(config, ranks, shape, fused_sums, with_drafts, this, local, exchange);
    return {};
}

Status Activations::allocate_scratch(int64_t bytes, Device& device) {
    BufferDesc desc;
    desc.bytes = std::max<int64_t>(bytes, 256);
    desc.tag = "decode.scratch";
    TENON_TRY(device.allocate(desc, scratch_buffer_.out()));
    scratch = make_view(scratch_buffer_->data(), DType::u8, {desc.bytes}, scratch_buffer_->place());
    return {};
}

}  // namespace tenon::dsv41
