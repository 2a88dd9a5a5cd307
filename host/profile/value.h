// SPDX-License-Identifier: MIT
// A parsed TOML document as plain values that remember where they were written.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tenon/base.h"

namespace tenon {

/// File, line and column of a key or value; printed as "mini.toml:3:12".
struct SourcePlace {
    std::string file;
    uint32_t line = 0;
    uint32_t column = 0;
    std::string text() const { return line == 0 ? file : format("{}:{}:{}", file, line, column); }
};

enum class ValueKind { boolean, integer, floating, string, list, table, other };
const char* value_kind_name(ValueKind kind);

/// One value with its place. A table keeps the order of the file.
struct Value {
    // Out of line: a pair of an incomplete type is not to be looked into before the end of this.
    Value();
    Value(const Value& other);
    Value(Value&& other) noexcept;
    Value& operator=(const Value& other);
    Value& operator=(Value&& other) noexcept;
    ~Value();

    ValueKind kind = ValueKind::table;
    bool boolean = false;
    int64_t integer = 0;
    double floating = 0;
    std::string string;
    std::vector<Value> list;
    std::vector<std::pair<std::string, Value>> table;
    SourcePlace place;      ///< of the value
    SourcePlace key_place;  ///< of its key, in a table

    Value* find(std::string_view key);
    const Value* find(std::string_view key) const;
    Value& set(const std::string& key, Value value);
    /// The value as TOML would write it, for `explain` and messages.
    std::string text() const;
};

/// errors  not_found: no such file; invalid_argument: "file:line:column: what"
Result<Value> parse_toml_file(const std::string& path, const std::string& shown_as);
/// Parses `text` as the right side of `key = …`. errors  invalid_argument
Result<Value> parse_toml_value(const std::string& text, const std::string& shown_as);
/// Parses a whole document from memory (tests, fuzzing).
Result<Value> parse_toml_text(std::string_view text, const std::string& shown_as);

}  // namespace tenon
