// SPDX-License-Identifier: MIT
// Reads tokenizer.json and refuses what would silently give other ids.
#include <algorithm>
#include <array>
#include <cctype>
#include <unordered_map>

#include "text/json.h"
#include "text/tokenizer.h"

namespace tenon::dsv41 {

namespace {

// An id names a row of the embedding table; the bound keeps a hostile file from asking for a table
// of 2^31 rows.
constexpr int64_t kMostIds = 1 << 20;
constexpr JsonLimits kFileLimits{.depth = 32, .values = 40'000'000};
constexpr size_t kMostStages = 16;

// The splitter of a ByteLevel pre-tokenizer that brings its own.
constexpr const char* kByteLevelPattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/// The byte alphabet: each byte has a printable character, so that vocabulary strings are readable
/// text.
struct ByteAlphabet {
    std::array<char32_t, 256> character{};
    std::array<int16_t, 512> byte{};  // by character; -1: not in the alphabet

    ByteAlphabet() {
        byte.fill(-1);
        char32_t spare = 256;
        for (size_t b = 0; b < 256; ++b) {
            const bool is_printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
            character[b] = is_printable ? static_cast<char32_t>(b) : spare++;
            byte[character[b]] = static_cast<int16_t>(b);
        }
    }
    std::string spell(size_t b) const {
        std::string out;
        append_utf8(out, character[b]);
        return out;
    }
    /// Bytes of a token string; a string with any other character stands for itself.
    std::string decode(std::string_view raw) const {
        std::string out;
        for (size_t at = 0; at < raw.size();) {
            const char32_t c = next_utf8(raw, at);
            if (c >= byte.size() || byte[c] < 0) {
                return std::string(raw);
            }
            out.push_back(static_cast<char>(byte[c]));
        }
        return out;
    }
};

bool is_absent(const Json* value) {
    return value == nullptr || value->is_null();
}

bool is_true(const Json* value) {
    return value != nullptr && value->boolean() != nullptr && *value->boolean();
}

std::string_view text_of(const Json* value) {
    return value != nullptr && value->string() != nullptr ? std::string_view(*value->string())
                                                          : std::string_view();
}

Status malformed(std::string_view field, std::string_view what) {
    return error(Code::invalid_argument, "tokenizer.json: {}: {}", field, what);
}

Status not_supported(std::string_view field, std::string_view what) {
    return error(Code::unsupported, "tokenizer.json: {}: {} is not supported", field, what);
}

}  // namespace

class TokenizerLoader {
  public:
    Result<Tokenizer> run(std::string_view text) {
        Result<Json> parsed = parse_json(text, kFileLimits);
        if (!parsed.ok()) {
            return parsed.status().with_context("tokenizer.json");
        }
        root_ = std::move(*parsed);
        if (root_.object() == nullptr) {
            return malformed("top level", format("{} where an object is expected", root_.kind()));
        }
        TENON_TRY(check_features());
        TENON_TRY(read_vocabulary());
        TENON_TRY(read_merges());
        TENON_TRY(read_added_tokens());
        TENON_TRY(read_pre_tokenizer(root_.find("pre_tokenizer"), "pre_tokenizer", 0));
        if (!saw_byte_level_) {
            return not_supported("pre_tokenizer", "a tokenizer without ByteLevel");
        }
        store_tokens();
        return std::move(tokenizer_);
    }

  private:
    struct Entry {
        std::string_view raw;
        bool is_used = false, is_added = false, is_special = false;
    };

    Status check_features() {
        const Json* normalizer = root_.find("normalizer");
        if (!is_absent(normalizer)) {
            const Json* steps = normalizer->find("normalizers");
            const bool is_empty = text_of(normalizer->find("type")) == "Sequence" &&
                                  steps != nullptr && steps->array() != nullptr &&
                                  steps->array()->empty();
            if (!is_empty) {
                return not_supported("normalizer", "a normalizer");
            }
        }
        const Json* decoder = root_.find("decoder");
        if (decoder == nullptr || text_of(decoder->find("type")) != "ByteLevel") {
            return not_supported("decoder", "any decoder but ByteLevel");
        }
        model_ = root_.find("model");
        if (model_ == nullptr || model_->object() == nullptr) {
            return malformed("model", "missing or not an object");
        }
        if (text_of(model_->find("type")) != "BPE") {
            return not_supported("model.type", "any model but BPE");
        }
        for (const char* flag : {"byte_fallback", "ignore_merges"}) {
            if (is_true(model_->find(flag))) {
                return not_supported(std::string("model.") + flag, "true");
            }
        }
        for (const char* key :
             {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
            const Json* value = model_->find(key);
            const bool is_empty_text =
                value != nullptr && value->string() != nullptr && value->string()->empty();
            if (!is_absent(value) && !is_empty_text) {
                return not_supported(std::string("model.") + key, to_json(*value));
            }
        }
        return {};
    }

    Status read_vocabulary() {
        const Json* vocabulary = model_->find("vocab");
        if (vocabulary == nullptr || vocabulary->object() == nullptr) {
            return malformed("model.vocab", "missing or not an object");
        }
        id_of_.reserve(vocabulary->object()->size() * 2);
        for (const auto& [raw, value] : *vocabulary->object()) {
            int64_t id = 0;
            if (!value.integer(id) || id < 0 || id >= kMostIds) {
                return malformed("model.vocab",
                                 format("'{}' has id {}, expected an integer in 0…{}", raw,
                                        to_json(value), kMostIds - 1));
            }
            TENON_TRY(claim(static_cast<size_t>(id), raw, "model.vocab"));
        }
        for (size_t b = 0; b < 256; ++b) {
            const auto found = id_of_.find(alphabet_.spell(b));
            if (found == id_of_.end()) {
                return malformed(
                    "model.vocab",
                    format("no token for byte {} ('{}'); a byte-level vocabulary has all 256", b,
                           alphabet_.spell(b)));
            }
            byte_ids_[b] = found->second;
        }
        return {};
    }

    Status claim(size_t id, std::string_view raw, std::string_view field) {
        if (id >= entries_.size()) {
            entries_.resize(id + 1);
        }
        if (entries_[id].is_used) {
            return malformed(field,
                             format("'{}' and '{}' both have id {}", entries_[id].raw, raw, id));
        }
        entries_[id].raw = raw;
        entries_[id].is_used = true;
        id_of_.emplace(raw, static_cast<int32_t>(id));
        return {};
    }

    Status read_merges() {
        const Json* merges = model_->find("merges");
        if (merges == nullptr || merges->array() == nullptr) {
            return malformed("model.merges", "missing or not an array");
        }
        std::vector<Bpe::Rule> rules;
        rules.reserve(merges->array()->size());
        std::string joined;
        for (size_t i = 0; i < merges->array()->size(); ++i) {
            const Json& merge = (*merges->array())[i];
            std::string_view left, right;
            if (const std::string* text = merge.string()) {
                const size_t space = text->find(' ');
                left = std::string_view(*text).substr(0, space);
                right = space == std::string::npos ? std::string_view()
                                                   : std::string_view(*text).substr(space + 1);
            } else if (merge.array() != nullptr && merge.array()->size() == 2) {
                left = text_of(&(*merge.array())[0]);
                right = text_of(&(*merge.array())[1]);
            }
            if (left.empty() || right.empty()) {
                return malformed(
                    format("model.merges[{}]", i),
                    format("{}, expected \"LEFT RIGHT\" or [LEFT, RIGHT]", to_json(merge)));
            }
            joined.assign(left).append(right);
            Bpe::Rule rule{};
            for (const auto& [part, id] :
                 {std::pair<std::string_view, int32_t*>{left, &rule.left},
                  std::pair<std::string_view, int32_t*>{right, &rule.right},
                  std::pair<std::string_view, int32_t*>{joined, &rule.merged}}) {
                const auto found = id_of_.find(part);
                if (found == id_of_.end()) {
                    return malformed(format("model.merges[{}]", i),
                                     format("'{}' is not in model.vocab", part));
                }
                *id = found->second;
            }
            rules.push_back(rule);
        }
        tokenizer_.bpe_ = Bpe(byte_ids_, rules);
        return {};
    }

    Status read_added_tokens() {
        const Json* added = root_.find("added_tokens");
        if (is_absent(added)) {
            return {};
        }
        if (added->array() == nullptr) {
            return malformed("added_tokens",
                             format("{} where an array is expected", added->kind()));
        }
        for (size_t i = 0; i < added->array()->size(); ++i) {
            const Json& token = (*added->array())[i];
            const std::string field = format("added_tokens[{}]", i);
            const std::string_view content = text_of(token.find("content"));
            int64_t id = -1;
            const Json* id_value = token.find("id");
            if (id_value == nullptr || !id_value->integer(id) || id < 0 || id >= kMostIds) {
                return malformed(field,
                                 format("id is missing or not an integer in 0…{}", kMostIds - 1));
            }
            if (content.empty()) {
                return malformed(field, "content is missing or empty");
            }
            for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
                if (is_true(token.find(flag))) {
                    return not_supported(field + "." + flag, "true");
                }
            }
            const auto known = id_of_.find(content);
            if (known == id_of_.end()) {
                TENON_TRY(claim(static_cast<size_t>(id), content, field));
            } else if (known->second != id) {
                return malformed(
                    field, format("'{}' has id {} here and {} before", content, id, known->second));
            }
            Entry& entry = entries_[static_cast<size_t>(id)];
            entry.is_added = true;
            entry.is_special = entry.is_special || is_true(token.find("special"));
            AddedTokens& group =
                is_true(token.find("normalized")) ? tokenizer_.normalized_ : tokenizer_.verbatim_;
            group.add(content, static_cast<int32_t>(id));
        }
        return {};
    }

    Status read_pre_tokenizer(const Json* node, const std::string& field, int depth) {
        if (is_absent(node) || node->object() == nullptr) {
            return malformed(field, "missing or not an object");
        }
        const std::string_view type = text_of(node->find("type"));
        if (saw_byte_level_) {
            return not_supported(field, "a step behind ByteLevel");
        }
        if (type == "Sequence") {
            const Json* steps = node->find("pretokenizers");
            if (steps == nullptr || steps->array() == nullptr || depth > 4) {
                return malformed(field + ".pretokenizers",
                                 "missing, not an array, or nested too deep");
            }
            for (size_t i = 0; i < steps->array()->size(); ++i) {
                TENON_TRY(read_pre_tokenizer(&(*steps->array())[i],
                                             format("{}.pretokenizers[{}]", field, i), depth + 1));
            }
            return {};
        }
        if (type == "ByteLevel") {
            if (is_true(node->find("add_prefix_space"))) {
                return not_supported(field + ".add_prefix_space", "true");
            }
            saw_byte_level_ = true;
            const Json* use_regex = node->find("use_regex");  // a file without the key means true
            return use_regex == nullptr || is_true(use_regex) ? add_stage(kByteLevelPattern, field)
                                                              : Status();
        }
        if (type != "Split") {
            return not_supported(field + ".type", type.empty() ? "a missing type" : type);
        }
        if (text_of(node->find("behavior")) != "Isolated" || is_true(node->find("invert"))) {
            return not_supported(field, "a Split that is not isolated, or inverted,");
        }
        const Json* pattern = node->find("pattern");
        if (pattern != nullptr && pattern->find("Regex") != nullptr) {
            return add_stage(text_of(pattern->find("Regex")), field + ".pattern");
        }
        if (pattern != nullptr && pattern->find("String") != nullptr) {
            std::string quoted;
            for (const char c : text_of(pattern->find("String"))) {
                const bool is_ascii_mark =
                    c > ' ' && c < 0x7F && std::isalnum(static_cast<unsigned char>(c)) == 0;
                quoted += is_ascii_mark ? std::string("\\") + c : std::string(1, c);
            }
            return add_stage(quoted, field + ".pattern");
        }
        return malformed(field + ".pattern", "missing; expected {\"Regex\": …} or {\"String\": …}");
    }

    Status add_stage(std::string_view pattern, const std::string& field) {
        if (tokenizer_.stages_.size() == kMostStages) {
            return malformed(field, format("more than {} splitters", kMostStages));
        }
        if (pattern.empty()) {
            return malformed(field, "not a string, or empty");
        }
        Result<Pattern> compiled = Pattern::compile(pattern);
        if (!compiled.ok()) {
            return compiled.status().with_context("tokenizer.json: " + field);
        }
        tokenizer_.stages_.push_back(std::move(*compiled));
        return {};
    }

    void store_tokens() {
        tokenizer_.tokens_.resize(entries_.size());
        for (size_t id = 0; id < entries_.size(); ++id) {
            const Entry& entry = entries_[id];
            if (!entry.is_used) {
                continue;
            }
            const std::string bytes = alphabet_.decode(entry.raw);
            Tokenizer::Token& token = tokenizer_.tokens_[id];
            token.raw_begin = static_cast<uint32_t>(tokenizer_.raw_.size());
            token.raw_size = static_cast<uint32_t>(entry.raw.size());
            token.bytes_begin = static_cast<uint32_t>(tokenizer_.bytes_.size());
            token.bytes_size = static_cast<uint32_t>(bytes.size());
            token.is_used = true;
            token.is_added = entry.is_added;
            token.is_special = entry.is_special;
            tokenizer_.raw_ += entry.raw;
            tokenizer_.bytes_ += bytes;
            tokenizer_.by_raw_.push_back(static_cast<int32_t>(id));
        }
        std::sort(tokenizer_.by_raw_.begin(), tokenizer_.by_raw_.end(),
                  [this](int32_t a, int32_t b) { return tokenizer_.raw(a) < tokenizer_.raw(b); });
    }

    Json root_;
    const Json* model_ = nullptr;
    ByteAlphabet alphabet_;
    std::vector<Entry> entries_;                           // by id; views into root_
    std::unordered_map<std::string_view, int32_t> id_of_;  // keys are views into root_
    std::array<int32_t, 256> byte_ids_{};
    bool saw_byte_level_ = false;
    Tokenizer tokenizer_;
};

Result<Tokenizer> Tokenizer::load(std::string_view json) {
    if (json.size() > UINT32_MAX) {
        return error(Code::invalid_argument, "tokenizer.json: {} bytes, expected less than 4 GiB",
                     json.size());
    }
    return TokenizerLoader().run(json);
}

}  // namespace tenon::dsv41
