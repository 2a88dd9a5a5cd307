// SPDX-License-Identifier: MIT
// All weights of one rank: what the layers multiply with, loaded through the format chain or as
// plain tensors.
#pragma once

#include "config.h"
#include "weight_loader.h"

namespace tenon::dsv41 {

/// Mixing weights of one site (attention or experts) and the norm of its input.
struct SiteWeights {
    TensorView fn, scale, base;  ///< f32
    TensorView norm;
};

struct EngramWeights {
    Linear wkv;  ///< this rank's input columns
    TensorView q_weight, k_weight;
};

struct BlockWeights {
    SiteWeights attn_site, ffn_site;

    /// {wq_a, wkv} and, in a kv source, {compressor.wkv, compressor.wgate}: all read the same x.
    LinearGroup inputs;
    LinearGroup queries;  ///< {wq_b} and, in an index source, {indexer.wq_b}
    Linear wo_a, wo_b;
    TensorView q_norm, kv_norm;
    TensorView sink;  ///< f32[H], this rank's heads

    TensorView latent_norm;
    Linear index_key;
    TensorView index_key_norm;
    TensorView index_weights;  ///< indexer.weights_proj

    TensorView gate, gate_bias;
    TensorView gate_bias_image;  ///< null where the checkpoint has none
    Ref<QuantExperts> experts;

    EngramWeights engram;  ///< of the table read before this layer, if any
};

struct DraftWeights {
    std::vector<BlockWeights> stages;
    Linear main_proj;
    TensorView main_norm, final_norm;
    TensorView markov_embed;
    TensorView markov_head;  ///< this rank's vocabulary rows
    TensorView confidence;
};

struct ModelWeights {
    TensorView embed;
    std::vector<BlockWeights> layers;
    TensorView final_norm;
    Linear head;  ///< this rank's vocabulary rows
    DraftWeights draft;
};

/// How many ranks share the model, and which one this is.
struct RankShape {
    int32_t rank = 0;
    int32_t world = 1;
};

/// errors  invalid_argument: names the dimension that the world size does not divide
Status check_rank_shape(const ModelConfig& config, RankShape shape);

/// Loads (or, with a planning loader, only adds up) everything of dsv41.md 2 but tables and vision.
Status load_weights(const ModelConfig& config, RankShape shape, bool with_drafts,
                    WeightLoader& loader, ModelWeights* out);

}  // namespace tenon::dsv41
