// SPDX-License-Identifier: MIT
// config.json: what is read, what follows from it, and how wrong ones are refused.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "config.h"
#include "state.h"

namespace tenon::dsv41 {
namespace {

std::string tiny_json() {
    std::ifstream in(std::string(TENON_FIXTURES) + "/golden/dsv41/tiny/config.json");
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
}

/// The released model's text configuration (docs/dsv41.md 1.1), unnested.
std::string released_json() {
    std::string ratios = "0, 0";
    for (int i = 0; i < 18; ++i) {
        ratios += ", 2";
    }
    for (int i = 0; i < 20; ++i) {
        ratios += ", 1";
    }
    ratios += ", 0, 0, 0";
    return R"({"model_type": "deepseek_v41", "vocab_size": 129280, "hidden_size": 5120, "num_hidden_layers": 40,
 "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1280,
 "o_lora_rank": 1024, "o_groups": 8, "sliding_window": 128, "compress_ratios": [)" +
           ratios + R"(],
 "kv_source_layer_ids": [2, 8, 14, 20], "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36], "index_n_heads": 32,
 "index_head_dim": 128, "index_topk": 512, "candidate_source_layer_id": 20, "candidate_topk_blocks": 2048,
 "candidate_block_size": 8, "moe_intermediate_size": 2304, "n_routed_experts": 384, "n_shared_experts": 1,
 "num_experts_per_tok": 6, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
 "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "hidden_act": "silu", "rms_norm_eps": 1e-20, "hc_mult": 4,
 "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rope_theta": 10000, "compress_rope_theta": 160000,
 "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
 "beta_slow": 1}, "max_position_embeddings": 1048576, "engram_layer_ids": [1, 14],
 "engram_num_embeddings": [384006168, 384016682], "engram_max_ngram_size": 4, "engram_vocab_size": 16000000,
 "engram_n_heads": 8, "engram_head_dim": 256, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 99092,
 "num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_noise_token_id": 128799,
 "dspark_target_layer_ids": [37, 38, 39], "dspark_markov_rank": 256, "dspark_n_routed_experts": 128,
 "dspark_num_experts_per_tok": 3, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2})";
}

std::string with(std::string json, const std::string& from, const std::string& to) {
    const size_t at = json.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return json.replace(at, from.size(), to);
}

ModelConfig parsed(const std::string& json) {
    auto config = parse_config(json);
    EXPECT_TRUE(config.ok()) << config.status().message().view();
    return config.ok() ? *config : ModelConfig();
}

TEST(Config, Reads_nested_and_flat_files) {
    const ModelConfig nested = parsed(tiny_json());
    EXPECT_EQ(nested.hidden, 128);
    EXPECT_EQ(nested.image_id, 511);
    EXPECT_TRUE(nested.has_vision);
    const ModelConfig flat = parsed(released_json());
    EXPECT_EQ(flat.hidden, 5120);
    EXPECT_EQ(flat.engram.columns(), 24);
    EXPECT_FALSE(flat.has_vision);
}

TEST(Config, Gives_each_layer_its_sources) {
    const ModelConfig c = parsed(released_json());
    EXPECT_EQ(c.layer[1].kv_source, -1);
    EXPECT_EQ(c.layer[1].engram, 0);
    EXPECT_EQ(c.layer[14].engram, 1);
    EXPECT_EQ(c.layer[7].kv_source, 2);
    EXPECT_EQ(c.layer[13].index_source, 8);
    EXPECT_EQ(c.layer[27].kv_source, 20);
    EXPECT_EQ(c.layer[27].index_source, 24);
    EXPECT_EQ(c.layer[39].index_source, 36);
    EXPECT_EQ(c.layer[39].tap, 2);
    EXPECT_TRUE(c.layer[20].owns_kv && c.layer[20].owns_index);
    EXPECT_FALSE(c.layer[24].owns_kv);
}

TEST(Config, Frequencies_have_the_check_values) {
    const ModelConfig c = parsed(released_json());
    const auto f = c.frequencies(true);
    const auto main = c.frequencies(false);
    // docs/dsv41.md 1.3; each step is rounded to f32, hence a few ulp.
    const std::vector<std::pair<int, double>> expected = {
        {0, 1.0},          {15, 3.635538584e-3}, {16, 2.265625e-3},   {20, 2.969777783e-4},
        {24, 1.953125e-5}, {25, 5.372312671e-6}, {31, 5.680529037e-7}};
    for (const auto& [i, value] : expected) {
        EXPECT_NEAR(f[static_cast<size_t>(i)] / value, 1, 4e-7) << i;
    }
    EXPECT_NEAR(main[31] / 1.333521432e-4, 1, 4e-7);
}

TEST(Config, Wrong_values_are_refused_by_key_and_value) {
    struct Wrong {
        const char *from, *to, *message;
    };
    const Wrong cases[] = {
        {"\"hidden_size\": 5120", "\"hidden_size\": \"5120\"",
         "hidden_size is \"5120\", expected an integer"},
        {"\"hidden_size\": 5120", "\"hidden_size\": 5121", "a multiple of 32"},
        {"\"hidden_size\": 5120, ", "", "hidden_size is nothing"},
        {"\"hc_mult\": 4", "\"hc_mult\": 2", "expected 4"},
        {"\"o_groups\": 8", "\"o_groups\": 7", "a divisor of num_attention_heads = 64"},
        {"\"scoring_func\": \"sqrtsoftplus\"", "\"scoring_func\": \"softmax\"",
         "expected \"sqrtsoftplus\""},
        {"\"norm_topk_prob\": true", "\"norm_topk_prob\": false", "expected true"},
        {"\"rms_norm_eps\": 1e-20", "\"rms_norm_eps\": 0", "rms_norm_eps is 0"},
        {"\"rms_norm_eps\": 1e-20", "\"rms_norm_eps\": 1e-60",
         "a positive number that float32 can hold"},
        {"\"kv_source_layer_ids\": [2, 8", "\"kv_source_layer_ids\": [8, 2", "ascending order"},
        {"\"kv_source_layer_ids\": [2, 8", "\"kv_source_layer_ids\": [1, 8", "layer 1 has 0"},
        {"\"kv_source_layer_ids\": [2, 8, 14, 20]", "\"kv_source_layer_ids\": [2, 8, 14]",
         "a source of ratio 1"},
        {"\"index_source_layer_ids\": [2, 8, 14", "\"index_source_layer_ids\": [2, 14",
         "a source between layers 8 and 8"},
        {"[0, 0, 2", "[0, 2", "43 entries"},
        {"[0, 0, 2", "[0, 0, 3", "integers in 0..2"},
        {"0, 0, 0],", "0, 0, 1],", "0 for the draft stages"},
        {"\"candidate_source_layer_id\": 20", "\"candidate_source_layer_id\": 21",
         "one of index_source_layer_ids"},
        {"\"candidate_source_layer_id\": 20", "\"candidate_source_layer_id\": 8",
         "14 chooses from layer 14, this one from layer 8"},
        {"\"candidate_block_size\": 8", "\"candidate_block_size\": 7", "a divisor of 128"},
        {"\"candidate_topk_blocks\": 2048", "\"candidate_topk_blocks\": 20",
         "blocks that hold index_topk = 512"},
        {"\"num_experts_per_tok\": 6", "\"num_experts_per_tok\": 400", "integer in 1..16"},
        {"\"engram_num_embeddings\": [384006168, 384016682]",
         "\"engram_num_embeddings\": [384006168]", "2 entries"},
        {"\"engram_head_dim\": 256", "\"engram_head_dim\": 250", "one scale per 32 values"},
        {"\"dspark_noise_token_id\": 128799", "\"dspark_noise_token_id\": 129280", "0..129279"},
        {"\"dspark_num_experts_per_tok\": 3", "\"dspark_num_experts_per_tok\": 3.5", "is 3.5"},
        {"\"factor\": 16", "\"factor\": \"x\"", "rope_scaling"},
        {"\"type\": \"yarn\"", "\"type\": \"linear\"", "\"yarn\""},
        {"\"rope_scaling\": {", "\"rope_scaling\": 5, \"x\": {", "an object or null"},
        {"\"bos_token_id\": 0", "\"bos_token_id\": -4", "bos_token_id is -4"},
        {"\"index_head_dim\": 128", "\"index_head_dim\": 32", "at least qk_rope_head_dim = 64"},
    };
    for (const Wrong& w : cases) {
        const auto config = parse_config(with(released_json(), w.from, w.to));
        ASSERT_FALSE(config.ok()) << w.to;
        EXPECT_EQ(config.status().code(), Code::invalid_argument) << w.to;
        EXPECT_NE(config.status().message().str().find(w.message), std::string::npos)
            << w.to << "\n  " << config.status().message().view();
    }
}

TEST(Config, Other_families_and_broken_text_are_told_apart) {
    EXPECT_EQ(parse_config(R"({"model_type": "llama"})").status().code(), Code::not_found);
    for (const char* text : {"", "[]", "{", "{\"model_type\": 5}", "nonsense",
                             "{\"model_type\": \"deepseek_v41\", \"text_config\": 7}"}) {
        EXPECT_EQ(parse_config(text).status().code(), Code::invalid_argument) << text;
    }
    EXPECT_EQ(parse_config(std::string(100000, '[')).status().code(), Code::invalid_argument);
}

TEST(Config, A_model_without_engram_and_drafts_is_legal) {
    std::string json = released_json();
    json = with(json, "\"engram_layer_ids\": [1, 14]", "\"engram_layer_ids\": []");
    json = with(json, "\"num_nextn_predict_layers\": 3", "\"num_nextn_predict_layers\": 0");
    json = with(json, "0, 0, 0],", "0],");
    json = with(json, ", 0],", "],");
    const ModelConfig c = parsed(json);
    EXPECT_FALSE(c.has_engram());
    EXPECT_FALSE(c.has_drafts());
}

TEST(StateShape, Has_the_sizes_of_the_released_model) {
    const ModelConfig c = parsed(released_json());
    ModelRequest r;
    r.slots = 2;
    r.pool_tokens = 1 << 20;
    auto packed = state_shape(c, r);
    ASSERT_TRUE(packed.ok());
    EXPECT_EQ(packed->page_tokens, 256);
    EXPECT_EQ(packed->page_bytes, 227'840);  // ops.md 4.2
    EXPECT_EQ(packed->ring_rows, 144);
    EXPECT_EQ(packed->ring_bytes_per_slot(c) * 40, 3'041'280);
    EXPECT_EQ(packed->raw_bytes_per_slot(c), 786'432);
    EXPECT_EQ(packed->pages, 4096 + 4);
    EXPECT_EQ(packed->table_width, 4096);
    r.packed_state = false;
    auto plain = state_shape(c, r);
    ASSERT_TRUE(plain.ok());
    EXPECT_EQ(plain->page_bytes, 819'200);
}

TEST(StateShape, Refuses_what_the_model_cannot_hold) {
    const ModelConfig c = parsed(released_json());
    const auto message = [&](const std::function<void(ModelRequest&)>& change) {
        ModelRequest r;
        change(r);
        auto shape = state_shape(c, r);
        return shape.ok() ? std::string("ok") : shape.status().message().str();
    };
    EXPECT_NE(message([](ModelRequest& r) { r.slots = 0; }).find("model.slots = 0"),
              std::string::npos);
    EXPECT_NE(message([](ModelRequest& r) { r.window_rows = 17; }).find("1..16"),
              std::string::npos);
    EXPECT_NE(message([](ModelRequest& r) {
                  r.context_tokens = 2'000'000;
              }).find("context_tokens = 2000000"),
              std::string::npos);
    EXPECT_NE(message([](ModelRequest& r) { r.pool_tokens = 1000; }).find("one full context"),
              std::string::npos);
    EXPECT_NE(message([](ModelRequest& r) { r.step_rows = 65; }).find("step_rows = 65"),
              std::string::npos);
}

}  // namespace
}  // namespace tenon::dsv41
