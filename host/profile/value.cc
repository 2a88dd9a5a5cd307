// SPDX-License-Identifier: MIT
// Look-up and printing of parsed values.
#include "host/profile/value.h"

namespace tenon {

Value::Value() = default;
Value::Value(const Value& other) = default;
Value::Value(Value&& other) noexcept = default;
Value& Value::operator=(const Value& other) = default;
Value& Value::operator=(Value&& other) noexcept = default;
Value::~Value() = default;

const char* value_kind_name(ValueKind kind) {
    constexpr const char* kNames[] = {"a boolean", "an integer", "a float", "a string",
                                      "a list",    "a table",    "a date"};
    return kNames[static_cast<int>(kind)];
}

const Value* Value::find(std::string_view key) const {
    for (const auto& [name, value] : table) {
        if (name == key) {
            return &value;
        }
    }
    return nullptr;
}

Value* Value::find(std::string_view key) {
    return const_cast<Value*>(std::as_const(*this).find(key));
}

Value& Value::set(const std::string& key, Value value) {
    if (Value* old = find(key)) {
        *old = std::move(value);
        return *old;
    }
    table.emplace_back(key, std::move(value));
    return table.back().second;
}

namespace {

// Values go into messages and logs: control characters are escaped, long texts cut.
std::string quoted(const std::string& text) {
    constexpr size_t kShown = 120;
    constexpr char kDigits[] = "0123456789abcdef";
    size_t shown = text.size();
    if (shown > kShown) {
        // Cut before a character, not inside one.
        for (shown = kShown; shown > 0 && (static_cast<uint8_t>(text[shown]) & 0xC0) == 0x80;) {
            --shown;
        }
    }
    std::string out = "\"";
    for (const char c : std::string_view(text).substr(0, shown)) {
        const auto b = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            (out += '\\') += c;
        } else if (b < 0x20 || b == 0x7f) {
            ((out += "\\u00") += kDigits[b >> 4]) += kDigits[b & 15];
        } else {
            out += c;
        }
    }
    return out + (shown < text.size() ? "…\"" : "\"");
}

}  // namespace

std::string Value::text() const {
    switch (kind) {
        case ValueKind::boolean:
            return boolean ? "true" : "false";
        case ValueKind::integer:
            return std::to_string(integer);
        case ValueKind::floating:
            return format("{}", floating);
        case ValueKind::string:
            return quoted(string);
        case ValueKind::list: {
            std::string out = "[";
            for (const Value& v : list) {
                out += (out.size() > 1 ? ", " : "") + v.text();
            }
            return out + "]";
        }
        case ValueKind::table: {
            std::string out = "{";
            for (const auto& [name, v] : table) {
                out += (out.size() > 1 ? ", " : " ") + name + " = " + v.text();
            }
            return out + " }";
        }
        case ValueKind::other:
            break;
    }
    return "?";
}

}  // namespace tenon
