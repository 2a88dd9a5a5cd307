// SPDX-License-Identifier: MIT
// The model's configuration as numbers that were checked once, so that no later file has to doubt
// them.
#pragma once

#include "tenon/base.h"

namespace tenon::dsv41 {

/// One layer of the backbone, derived from the lists of config.json (dsv41.md 1.2).
struct LayerKind {
    int32_t ratio = 0;          ///< 0: window only; 1 or 2: also attends compressed rows
    int32_t kv_source = -1;     ///< layer that owns the compressed rows and index keys; -1: none
    int32_t index_source = -1;  ///< layer that chose the rows; -1: none
    int32_t engram = -1;        ///< index of the Engram table read before this layer
    int32_t tap = -1;           ///< index of the DSpark tap taken from the input of this layer
    bool owns_kv = false;
    bool owns_index = false;
};

struct EngramConfig {
    std::vector<int32_t> layers;
    std::vector<int64_t> rows;  ///< per table
    int32_t max_ngram = 0;
    int64_t first_bucket = 0;  ///< engram_vocab_size: where the search for primes starts
    int32_t heads = 0;
    int32_t width = 0;  ///< values per row (engram_head_dim)
    int32_t pad_id = 0;
    int32_t classes = 0;  ///< engram_compressed_vocab_size

    /// Rows read per token and table.
    int32_t columns() const { return (max_ngram - 1) * heads; }
};

struct DraftConfig {
    int32_t stages = 0;  ///< 0: the checkpoint has no drafter
    int32_t block = 0;   ///< rows of a draft block
    int32_t noise_id = 0;
    std::vector<int32_t> taps;
    int32_t markov_rank = 0;
    int32_t experts = 0;
    int32_t experts_per_token = 0;
};

struct YarnConfig {
    double factor = 1;  ///< 1: plain rotation
    double beta_fast = 32;
    double beta_slow = 1;
    double original_positions = 0;
};

struct ModelConfig {
    int32_t vocab = 0;
    int32_t hidden = 0;
    int32_t layers = 0;
    int32_t heads = 0;
    int32_t head_dim = 0;
    int32_t rope_dim = 0;
    int32_t q_rank = 0;
    int32_t o_rank = 0;
    int32_t o_groups = 0;
    int32_t window = 0;
    int64_t max_positions = 0;
    float norm_eps = 0;

    std::vector<LayerKind> layer;     ///< [layers]
    std::vector<int32_t> kv_sources;  ///< layers, ascending
    int32_t index_heads = 0;
    int32_t index_dim = 0;
    int32_t index_topk = 0;
    int32_t candidate_source = -1;  ///< -1: no candidate stage
    int32_t candidate_blocks = 0;
    int32_t candidate_block = 0;

    int32_t experts = 0;
    int32_t shared_experts = 0;
    int32_t experts_per_token = 0;
    int32_t expert_width = 0;
    float route_scale = 0;
    float swiglu_limit = 0;

    int32_t streams = 0;  ///< hc_mult
    int32_t mix_iters = 0;
    float mix_eps = 0;

    double rope_theta = 0;
    double compress_theta = 0;
    YarnConfig yarn;

    EngramConfig engram;
    DraftConfig draft;

    int32_t bos_id = -1, eos_id = -1, pad_id = -1, image_id = -1;
    bool has_vision = false;

    bool has_engram() const { return !engram.layers.empty(); }
    bool has_drafts() const { return draft.stages > 0; }
    /// Largest compression ratio, at least 1.
    int32_t max_ratio() const;
    /// Inverse frequencies of the rotation, f32[rope_dim / 2]: main, or the one of compressed
    /// layers.
    std::vector<float> frequencies(bool compressed) const;
};

/// Reads config.json: `text_config` if it is there, else the top level (dsv41.md 1.1).
///
/// errors  not_found: another model_type; invalid_argument: names the key, found and expected value
Result<ModelConfig> parse_config(StrView json_text);

}  // namespace tenon::dsv41
