// SPDX-License-Identifier: MIT
// Buffers that one row group needs while it runs through the layers; reused by every group of a
// step.
#pragma once

#include "config.h"
#include "op_set.h"
#include "state.h"
#include "tenon/transport.h"
#include "weights.h"

namespace tenon::dsv41 {

/// Largest sizes of any group, fixed at load.
struct ActivationShape {
    int64_t rows = 0;         ///< rows of the largest group
    int64_t logit_rows = 0;   ///< rows that get logits at once
    int64_t tail_rows = 0;    ///< rows that the drafter absorbs at once
    int64_t score_bytes = 0;  ///< arena of index scores
    int64_t max_visible = 0;  ///< compressed rows at full context and ratio 1
};

/// Views of full capacity; callers take `.rows(0, T)`.
struct Activations {
    TensorView h, pre[2], post, comb, x;
    TensorView qa, kv, q, o, u;
    TensorView y;      ///< f32 [rows, d], in exchange memory: partial sums over ranks
    TensorView parts;  ///< f32 [W, rows, d], only where a fused reduction is bound
    TensorView cs_main, cs_compress, cs_latent;
    TensorView pool_a, pool_s, latent, latent_turned, index_key;
    TensorView iq, index_weights, scores, sel, sel_count, cand, cand_count;
    TensorView gate_logits, expert_ids, expert_weights;
    TensorView engram_values, engram_kv, engram_parts;
    TensorView taps, main_x;
    TensorView head_h, head_pre, head_x, logits_part, logits_gather, logits;
    TensorView scratch;

    /// Bytes of everything but `scratch` by plan tag: {"prefill.scratch", "exchange"}.
    static void plan(const ModelConfig& config, RankShape ranks, const ActivationShape& shape,
                     bool fused_sums, bool with_drafts, int64_t* device_bytes,
                     int64_t* exchange_bytes);

    Status allocate(const ModelConfig& config, RankShape ranks, const ActivationShape& shape,
                    bool fused_sums, bool with_drafts, Device& device, Communicator* communicator);
    Status allocate_scratch(int64_t bytes, Device& device);

  private:
    Ref<Buffer> buffer_, exchange_, scratch_buffer_;
};

}  // namespace tenon::dsv41
