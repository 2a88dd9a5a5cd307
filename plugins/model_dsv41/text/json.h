// SPDX-License-Identifier: MIT
// JSON as the codec needs it: parsing of untrusted text within limits, and printing exactly like
// the model's training data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tenon/base.h"

namespace tenon::dsv41 {

/// One JSON value. Objects keep the order of the text; of duplicate keys the last value counts, at
/// the first place.
class Json {
  public:
    using Array = std::vector<Json>;
    using Member = std::pair<std::string, Json>;
    using Object = std::vector<Member>;
    using Value =
        std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Array, Object>;

    Json() = default;
    explicit Json(Value value) : value_(std::move(value)) {}

    bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
    const bool* boolean() const { return std::get_if<bool>(&value_); }
    const std::string* string() const { return std::get_if<std::string>(&value_); }
    std::string* string() { return std::get_if<std::string>(&value_); }
    const Array* array() const { return std::get_if<Array>(&value_); }
    const Object* object() const { return std::get_if<Object>(&value_); }
    Array* array() { return std::get_if<Array>(&value_); }
    Object* object() { return std::get_if<Object>(&value_); }
    /// The value as an integer; false for anything else (also for 1.0) and beyond int64.
    bool integer(int64_t& out) const;
    const Value& value() const { return value_; }
    Value& value() { return value_; }
    /// "null", "a boolean", "a string" …
    const char* kind() const;

    /// Member of an object; null if there is none, or if this is no object.
    const Json* find(std::string_view key) const;
    Json* find(std::string_view key) { return const_cast<Json*>(std::as_const(*this).find(key)); }

  private:
    Value value_;
};

struct JsonLimits {
    /// Nesting of arrays and objects. Destruction and printing recurse, so depth is bounded where
    /// text enters.
    int64_t depth = 128;
    /// Values in the whole text: a value takes some 48 bytes, so 64 MiB of "[0,0,…" would be 1.5
    /// GB.
    int64_t values = 2'000'000;
};

/// Strict JSON (no NaN, no trailing text, valid UTF-8, paired surrogates). Errors name line and
/// column.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

/// Checks the grammar of strict JSON without building anything; any depth up to 10,000.
bool is_json(std::string_view text);

/// Prints like Python's json.dumps(value, ensure_ascii=False): ", " and ": ", floats by their
/// shortest repr.
void append_json(std::string& out, const Json& value);
std::string to_json(const Json& value);

/// Appends `text` with JSON's escapes, without the quotes.
void append_json_escaped(std::string& out, std::string_view text);
/// Appends `text` as a JSON string.
void append_json_string(std::string& out, std::string_view text);
/// Appends a finite double as Python's repr prints it (1e+16, 1e-05, 100.0, -0.0).
void append_python_float(std::string& out, double value);

}  // namespace tenon::dsv41
