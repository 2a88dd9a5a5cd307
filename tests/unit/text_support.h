// SPDX-License-Identifier: MIT
// Shared by the text tests: golden files and the tokenizers that they belong to.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "text/json.h"
#include "text/tokenizer.h"

namespace tenon::dsv41::testing {

inline std::string golden_path(const std::string& name) {
    return std::string(TENON_FIXTURES) + "/golden/" + name;
}

inline std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    EXPECT_TRUE(in.good()) << "cannot read " << path;
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline std::vector<Json> read_lines(const std::string& name) {
    std::ifstream in(golden_path(name), std::ios::binary);
    EXPECT_TRUE(in.good()) << "cannot read " << golden_path(name);
    std::vector<Json> out;
    for (std::string line; std::getline(in, line);) {
        Result<Json> value = parse_json(line);
        EXPECT_TRUE(value.ok()) << name << ": " << value.status().message().view();
        out.push_back(std::move(*value));
    }
    EXPECT_FALSE(out.empty()) << name << " has no cases";
    return out;
}

inline const Json& at(const Json& object, std::string_view key) {
    const Json* found = object.find(key);
    static const Json kNull;
    return found == nullptr ? kNull : *found;
}

inline std::string str(const Json& object, std::string_view key) {
    const std::string* text = at(object, key).string();
    return text == nullptr ? std::string() : *text;
}

inline bool flag(const Json& object, std::string_view key, bool otherwise = false) {
    const bool* value = at(object, key).boolean();
    return value == nullptr ? otherwise : *value;
}

inline std::vector<int32_t> ids_of(const Json& array) {
    std::vector<int32_t> out;
    if (array.array() != nullptr) {
        for (const Json& element : *array.array()) {
            int64_t id = -1;
            EXPECT_TRUE(element.integer(id));
            out.push_back(static_cast<int32_t>(id));
        }
    }
    return out;
}

inline std::vector<std::string> strings_of(const Json& array) {
    std::vector<std::string> out;
    if (array.array() != nullptr) {
        for (const Json& element : *array.array()) {
            out.push_back(element.string() == nullptr ? std::string() : *element.string());
        }
    }
    return out;
}

/// Loaded once per program: "text/tokenizer", "text/small" or "dsv41/tiny".
inline const Tokenizer& tokenizer(const std::string& folder) {
    static std::vector<std::pair<std::string, std::unique_ptr<Tokenizer>>> loaded;
    for (const auto& [name, value] : loaded) {
        if (name == folder) {
            return *value;
        }
    }
    Result<Tokenizer> result = Tokenizer::load(read_file(golden_path(folder + "/tokenizer.json")));
    if (!result.ok()) {
        ADD_FAILURE() << result.status().message().view();
        std::abort();
    }
    loaded.emplace_back(folder, std::make_unique<Tokenizer>(std::move(*result)));
    return *loaded.back().second;
}

inline std::vector<int32_t> encode(const Tokenizer& t, std::string_view text,
                                   Tokenizer::Specials specials = Tokenizer::Specials::as_text) {
    std::vector<int32_t> out;
    Tokenizer::Scratch scratch = t.make_scratch();
    const Status status = t.encode(text, specials, scratch, out);
    EXPECT_TRUE(status.ok()) << status.message().view();
    return out;
}

/// A small repeatable source of choices.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 1) {}
    uint64_t next() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return state_;
    }
    size_t below(size_t bound) { return static_cast<size_t>(next() % bound); }

  private:
    uint64_t state_;
};

}  // namespace tenon::dsv41::testing
