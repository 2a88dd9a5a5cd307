// SPDX-License-Identifier: MIT
// Parsing and checking of config.json: every message names the key, what was found and what would
// be right.
#include "config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/json.h"

namespace tenon::dsv41 {

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

std::string shown(const Json* value) {
    if (value == nullptr) {
        return "nothing";
    }
    std::string text = to_json(*value);
    if (text.size() > 60) {
        text = text.substr(0, 57) + "...";
    }
    return text;
}

/// Reads members of one JSON object; keeps the first error, so that callers check once.
class Reader {
  public:
    Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

    Status take() { return std::move(status_); }
    bool ok() const { return status_.ok(); }
    bool has(const char* key) const {
        const Json* v = object_.find(key);
        return v != nullptr && !v->is_null();
    }
    const Json* find(const char* key) const { return object_.find(key); }

    void fail(const char* key, std::string_view expected) {
        if (status_.ok()) {
            status_ = error(Code::invalid_argument, "{}.{} is {}, expected {}", where_, key,
                            shown(object_.find(key)), expected);
        }
    }

    int64_t integer(const char* key, int64_t least, int64_t most) {
        const Json* v = object_.find(key);
        int64_t out = 0;
        if (v == nullptr || !v->integer(out) || out < least || out > most) {
            fail(key, format("an integer in {}..{}", least, most));
            return least;
        }
        return out;
    }
    int64_t integer_or(const char* key, int64_t fallback, int64_t least, int64_t most) {
        return has(key) ? integer(key, least, most) : fallback;
    }
    int32_t count(const char* key, int64_t most) {
        return static_cast<int32_t>(integer(key, 1, most));
    }

    double number(const char* key, double least, double most) {
        const Json* v = object_.find(key);
        double out = 0;
        int64_t whole = 0;
        if (v != nullptr && v->integer(whole)) {
            out = static_cast<double>(whole);
        } else if (v != nullptr && std::get_if<double>(&v->value()) != nullptr) {
            out = *std::get_if<double>(&v->value());
        } else {
            fail(key, "a number");
            return least;
        }
        if (!(out >= least && out <= most)) {
            fail(key, format("a number in {}..{}", least, most));
            return least;
        }
        return out;
    }
    double number_or(const char* key, double fallback, double least, double most) {
        return has(key) ? number(key, least, most) : fallback;
    }

    /// The key may be absent; where it is given it has to have this value.
    void only(const char* key, std::string_view value) {
        const Json* v = object_.find(key);
        if (has(key) && (v->string() == nullptr || *v->string() != value)) {
            fail(key, format("\"{}\" (nothing else is implemented)", value));
        }
    }
    void only_flag(const char* key, bool value) {
        const Json* v = object_.find(key);
        if (has(key) && (v->boolean() == nullptr || *v->boolean() != value)) {
            fail(key, format("{} (nothing else is implemented)", value));
        }
    }

    std::vector<int64_t> integers(const char* key, int64_t least, int64_t most) {
        std::vector<int64_t> out;
        const Json* v = object_.find(key);
        const Json::Array* list = v == nullptr ? nullptr : v->array();
        const std::string expected = format("a list of integers in {}..{}", least, most);
        if (list == nullptr || list->size() > 4096) {
            fail(key, expected);
            return out;
        }
        for (const Json& item : *list) {
            int64_t n = 0;
            if (!item.integer(n) || n < least || n > most) {
                fail(key, expected);
                return {};
            }
            out.push_back(n);
        }
        return out;
    }
    /// Strictly ascending layer numbers below `layers`; absent means none.
    std::vector<int32_t> layer_list(const char* key, int32_t layers) {
        std::vector<int32_t> out;
        if (!has(key)) {
            return out;
        }
        for (const int64_t n : integers(key, 0, layers - 1)) {
            if (!out.empty() && n <= out.back()) {
                fail(key, "layer numbers in ascending order, none twice");
                return {};
            }
            out.push_back(static_cast<int32_t>(n));
        }
        return out;
    }
    void multiple(const char* key, int64_t value, int64_t of, const char* why) {
        if (value % of != 0) {
            fail(key, format("a multiple of {} ({})", of, why));
        }
    }

  private:
    const Json& object_;
    std::string where_;
    Status status_;
};

bool contains(const std::vector<int32_t>& list, int32_t value) {
    return std::find(list.begin(), list.end(), value) != list.end();
}

/// Largest entry at or below `layer`, or -1.
int32_t source_of(const std::vector<int32_t>& list, int32_t layer) {
    int32_t found = -1;
    for (const int32_t s : list) {
        if (s <= layer) {
            found = s;
        }
    }
    return found;
}

void read_dimensions(Reader& in, ModelConfig& c) {
    c.vocab = in.count("vocab_size", 1 << 20);
    c.hidden = in.count("hidden_size", 1 << 16);
    c.layers = in.count("num_hidden_layers", 1024);
    c.heads = in.count("num_attention_heads", 1024);
    c.head_dim = in.count("head_dim", 4096);
    c.rope_dim = in.count("qk_rope_head_dim", 4096);
    c.q_rank = in.count("q_lora_rank", 1 << 16);
    c.o_rank = in.count("o_lora_rank", 1 << 16);
    c.o_groups = in.count("o_groups", 1024);
    c.window = in.count("sliding_window", 4096);
    c.max_positions = in.integer("max_position_embeddings", 1, int64_t{1} << 30);
    c.norm_eps = static_cast<float>(in.number("rms_norm_eps", 0, 1));
    c.streams = in.count("hc_mult", 16);
    c.mix_iters = in.count("hc_sinkhorn_iters", 1000);
    c.mix_eps = static_cast<float>(in.number("hc_eps", 0, 1));
    c.experts = in.count("n_routed_experts", 512);
    c.shared_experts = static_cast<int32_t>(in.integer("n_shared_experts", 0, 1));
    c.experts_per_token = in.count("num_experts_per_tok", 16);
    c.expert_width = in.count("moe_intermediate_size", 1 << 16);
    c.route_scale = static_cast<float>(in.number("routed_scaling_factor", 0, 1e6));
    c.swiglu_limit = static_cast<float>(in.number("swiglu_limit", 0, 1e9));

    if (in.integer_or("num_key_value_heads", 1, 0, kMaxInt32) != 1) {
        in.fail("num_key_value_heads", "1 (keys and values are one vector for all heads)");
    }
    in.only("hidden_act", "silu");
    in.only("scoring_func", "sqrtsoftplus");
    in.only("topk_method", "noaux_tc");
    in.only_flag("norm_topk_prob", true);
    in.only_flag("attention_bias", false);
    in.only_flag("tie_word_embeddings", false);
    if (in.number_or("gate_temp", 1, 0, 1e6) != 1) {
        in.fail("gate_temp", "1");
    }
    if (in.ok() && c.norm_eps <= 0) {
        in.fail("rms_norm_eps", "a positive number that float32 can hold");
    }
    if (in.ok() && c.streams != 4) {
        in.fail("hc_mult", "4 (the residual streams of this family)");
    }
    in.multiple("hidden_size", c.hidden, 32, "scales of 32 columns");
    in.multiple("head_dim", c.head_dim, 32, "cached rows are quantised in groups of 32");
    in.multiple("qk_rope_head_dim", c.rope_dim, 2, "adjacent pairs are rotated");
    if (in.ok() && c.rope_dim > c.head_dim) {
        in.fail("qk_rope_head_dim", format("at most head_dim = {}", c.head_dim));
    }
    if (in.ok() && c.heads % c.o_groups != 0) {
        in.fail("o_groups", format("a divisor of num_attention_heads = {}", c.heads));
    }
    if (in.ok() && c.experts_per_token > c.experts) {
        in.fail("num_experts_per_tok", format("at most n_routed_experts = {}", c.experts));
    }
}

void read_rotation(Reader& in, ModelConfig& c) {
    c.rope_theta = in.number("rope_theta", 1, 1e12);
    c.compress_theta = in.number_or("compress_rope_theta", c.rope_theta, 1, 1e12);
    if (!in.has("rope_scaling") || !in.ok()) {
        return;
    }
    const Json* scaling = in.find("rope_scaling");
    if (scaling->object() == nullptr) {
        in.fail("rope_scaling", "an object or null");
        return;
    }
    Reader r(*scaling, "config.json: rope_scaling");
    r.only(r.has("rope_type") ? "rope_type" : "type", "yarn");
    c.yarn.factor = r.number("factor", 1, 1e6);
    c.yarn.beta_fast = r.number_or("beta_fast", 32, 1e-3, 1e6);
    c.yarn.beta_slow = r.number_or("beta_slow", 1, 1e-3, 1e6);
    c.yarn.original_positions = r.number("original_max_position_embeddings", 1, 1e9);
    if (!r.ok()) {
        in.fail("rope_scaling", "YaRN settings: " + r.take().message().str());
    }
}

void read_layers(Reader& in, ModelConfig& c) {
    const auto ratios = in.integers("compress_ratios", 0, 2);
    const auto layers = static_cast<size_t>(c.layers);
    const auto stages = static_cast<size_t>(c.draft.stages);
    if (in.ok() && ratios.size() != layers && ratios.size() != layers + stages) {
        in.fail("compress_ratios",
                format("{} entries: num_hidden_layers = {} and num_nextn_predict_layers = {}",
                       layers + stages, layers, stages));
    }
    if (!in.ok()) {
        return;
    }
    for (size_t i = layers; i < ratios.size(); ++i) {
        if (ratios[i] != 0) {
            in.fail("compress_ratios", "0 for the draft stages (they attend their window only)");
        }
    }
    c.kv_sources = in.layer_list("kv_source_layer_ids", c.layers);
    const auto index_sources = in.layer_list("index_source_layer_ids", c.layers);
    c.layer.assign(layers, {});
    bool any = false;
    for (int32_t i = 0; i < c.layers && in.ok(); ++i) {
        LayerKind& k = c.layer[static_cast<size_t>(i)];
        k.ratio = static_cast<int32_t>(ratios[static_cast<size_t>(i)]);
        k.owns_kv = contains(c.kv_sources, i);
        k.owns_index = contains(index_sources, i);
        if (k.ratio == 0) {
            if (k.owns_kv) {
                in.fail("kv_source_layer_ids",
                        format("layers with a compression ratio; layer {} has 0", i));
            }
            if (k.owns_index) {
                in.fail("index_source_layer_ids",
                        format("layers with a compression ratio; layer {} has 0", i));
            }
            continue;
        }
        any = true;
        k.kv_source = source_of(c.kv_sources, i);
        k.index_source = source_of(index_sources, i);
        if (k.kv_source < 0 || c.layer[static_cast<size_t>(k.kv_source)].ratio != k.ratio) {
            in.fail("kv_source_layer_ids",
                    format("a source of ratio {} at or before layer {}", k.ratio, i));
        } else if (k.index_source < k.kv_source) {
            in.fail("index_source_layer_ids", format("a source between layers {} and {}: layer {} "
                                                     "needs rows chosen from its own source",
                                                     k.kv_source, i, i));
        }
    }
    if (!any || !in.ok()) {
        return;
    }
    c.index_heads = in.count("index_n_heads", 1024);
    c.index_dim = in.count("index_head_dim", 4096);
    c.index_topk = in.count("index_topk", 1 << 16);
    in.multiple("index_head_dim", c.index_dim, 32, "index keys are quantised in groups of 32");
    if (in.ok() && c.index_dim < c.rope_dim) {
        in.fail("index_head_dim", format("at least qk_rope_head_dim = {}", c.rope_dim));
    }
    c.candidate_source =
        static_cast<int32_t>(in.integer_or("candidate_source_layer_id", -1, -1, c.layers - 1));
    if (c.candidate_source < 0 || !in.ok()) {
        return;
    }
    c.candidate_blocks = in.count("candidate_topk_blocks", 1 << 20);
    c.candidate_block = in.count("candidate_block_size", 128);
    const LayerKind& source = c.layer[static_cast<size_t>(c.candidate_source)];
    if (!source.owns_index) {
        in.fail("candidate_source_layer_id", "one of index_source_layer_ids");
    }
    for (int32_t i = c.candidate_source + 1; i < c.layers && in.ok(); ++i) {
        const LayerKind& k = c.layer[static_cast<size_t>(i)];
        if (k.owns_index && k.kv_source != source.kv_source) {
            in.fail(
                "candidate_source_layer_id",
                format(
                    "a layer whose compressed rows all later index sources choose from; {} chooses "
                    "from layer {}, this one from layer {}",
                    i, k.kv_source, source.kv_source));
        }
    }
    if (in.ok() && 128 % c.candidate_block != 0) {
        in.fail("candidate_block_size", "a divisor of 128 (a block never crosses a page)");
    }
    if (in.ok() && int64_t{c.candidate_blocks} * c.candidate_block < c.index_topk) {
        in.fail("candidate_topk_blocks",
                format("blocks that hold index_topk = {} rows", c.index_topk));
    }
}

void read_engram(Reader& in, ModelConfig& c) {
    EngramConfig& e = c.engram;
    e.layers = in.layer_list("engram_layer_ids", c.layers);
    if (e.layers.empty() || !in.ok()) {
        return;
    }
    e.rows = in.integers("engram_num_embeddings", 1, int64_t{1} << 40);
    e.max_ngram = static_cast<int32_t>(in.integer("engram_max_ngram_size", 2, 8));
    e.first_bucket = in.integer("engram_vocab_size", 2, int64_t{1} << 36);
    e.heads = in.count("engram_n_heads", 64);
    e.width = in.count("engram_head_dim", 4096);
    e.classes = in.count("engram_compressed_vocab_size", 1 << 20);
    e.pad_id = static_cast<int32_t>(in.has("engram_pad_token_id")
                                        ? in.integer("engram_pad_token_id", 0, c.vocab - 1)
                                        : in.integer_or("engram_pad_id", 2, 0, c.vocab - 1));
    in.multiple("engram_head_dim", e.width, 32, "one scale per 32 values");
    if (in.ok() && e.rows.size() != e.layers.size()) {
        in.fail("engram_num_embeddings",
                format("{} entries, one for each of engram_layer_ids", e.layers.size()));
    }
    for (size_t i = 0; i < e.layers.size() && in.ok(); ++i) {
        c.layer[static_cast<size_t>(e.layers[i])].engram = static_cast<int32_t>(i);
    }
}

void read_drafts(Reader& in, ModelConfig& c) {
    DraftConfig& d = c.draft;
    if (d.stages == 0 || !in.ok()) {
        return;
    }
    d.block = in.count("dspark_block_size", 15);
    d.noise_id = static_cast<int32_t>(in.integer("dspark_noise_token_id", 0, c.vocab - 1));
    d.taps = in.layer_list("dspark_target_layer_ids", c.layers);
    d.markov_rank = in.count("dspark_markov_rank", 1 << 16);
    d.experts = in.count("dspark_n_routed_experts", 512);
    d.experts_per_token = in.count("dspark_num_experts_per_tok", 16);
    if (in.ok() && d.taps.empty()) {
        in.fail("dspark_target_layer_ids", "the layers whose inputs feed the drafter");
    }
    if (in.ok() && d.experts_per_token > d.experts) {
        in.fail("dspark_num_experts_per_tok",
                format("at most dspark_n_routed_experts = {}", d.experts));
    }
    for (size_t i = 0; i < d.taps.size() && in.ok(); ++i) {
        c.layer[static_cast<size_t>(d.taps[i])].tap = static_cast<int32_t>(i);
    }
}

Result<ModelConfig> read_config(const Json& root) {
    const Json* nested = root.find("text_config");
    const bool is_nested = nested != nullptr && !nested->is_null();
    if (is_nested && nested->object() == nullptr) {
        return error(Code::invalid_argument, "config.json: text_config is {}, expected an object",
                     shown(nested));
    }
    Reader top(root, "config.json");
    Reader in(is_nested ? *nested : root, is_nested ? "config.json: text_config" : "config.json");

    const Json* type = root.find("model_type");
    if (type == nullptr || type->string() == nullptr) {
        return error(Code::invalid_argument, "config.json: model_type is {}, expected a string",
                     shown(type));
    }
    if (*type->string() != "deepseek_v41" && *type->string() != "deepseek_v41_text") {
        return error(Code::not_found,
                     "config.json: model_type is \"{}\", this family is \"deepseek_v41\"",
                     *type->string());
    }

    ModelConfig c;
    c.draft.stages = static_cast<int32_t>(in.integer_or("num_nextn_predict_layers", 0, 0, 16));
    read_dimensions(in, c);
    read_rotation(in, c);
    if (in.ok()) {
        read_layers(in, c);
    }
    if (in.ok()) {
        read_engram(in, c);
        read_drafts(in, c);
    }
    TENON_TRY(in.take());

    Reader& ids = top.has("bos_token_id") || !is_nested ? top : in;
    c.bos_id = static_cast<int32_t>(ids.integer_or("bos_token_id", -1, 0, c.vocab - 1));
    c.eos_id = static_cast<int32_t>(ids.integer_or("eos_token_id", -1, 0, c.vocab - 1));
    c.pad_id = static_cast<int32_t>(ids.integer_or("pad_token_id", -1, 0, c.vocab - 1));
    c.image_id = static_cast<int32_t>(top.integer_or("image_token_id", -1, 0, c.vocab - 1));
    c.has_vision = top.has("vision_config");
    TENON_TRY(ids.take());
    TENON_TRY(top.take());
    return c;
}

}  // namespace

int32_t ModelConfig::max_ratio() const {
    int32_t most = 1;
    for (const LayerKind& k : layer) {
        most = std::max(most, k.ratio);
    }
    return most;
}

std::vector<float> ModelConfig::frequencies(bool compressed) const {
    const double theta = compressed ? compress_theta : rope_theta;
    const int32_t n = rope_dim / 2;
    std::vector<float> f(static_cast<size_t>(n));
    // Each step is rounded to f32, as the released code computes them (ops.md 7, row 1).
    for (int32_t i = 0; i < n; ++i) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope_dim);
        const auto power = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
        f[static_cast<size_t>(i)] = 1.0F / power;
    }
    if (!compressed || yarn.factor <= 1) {
        return f;
    }
    const auto correction = [&](double rotations) {
        return rope_dim * std::log(yarn.original_positions / (rotations * 2 * M_PI)) /
               (2 * std::log(theta));
    };
    const double low = std::max(std::floor(correction(yarn.beta_fast)), 0.0);
    const double high =
        std::min(std::ceil(correction(yarn.beta_slow)), static_cast<double>(rope_dim - 1));
    const auto span = static_cast<float>(std::max(high - low, 1e-3));
    for (int32_t i = 0; i < n; ++i) {
        float& value = f[static_cast<size_t>(i)];
        const float ramp =
            std::clamp((static_cast<float>(i) - static_cast<float>(low)) / span, 0.0F, 1.0F);
        const float stretched = value / static_cast<float>(yarn.factor) * ramp;
        value = stretched + value * (1.0F - ramp);
    }
    return f;
}

Result<ModelConfig> parse_config(StrView json_text) {
    if (json_text.empty()) {
        return error(Code::invalid_argument, "config.json is missing or empty");
    }
    auto root = parse_json(json_text.view());
    if (!root.ok()) {
        return root.take_status().with_context("config.json");
    }
    if (root->object() == nullptr) {
        return error(Code::invalid_argument, "config.json holds {}, expected an object",
                     root->kind());
    }
    return read_config(*root);
}

}  // namespace tenon::dsv41
