// SPDX-License-Identifier: MIT
// Escaping of JSON strings.
#include "json_text.h"

#include <cstdint>

namespace tenon::http {

namespace {

uint8_t byte_at(std::string_view text, size_t i) {
    return static_cast<uint8_t>(text[i]);
}

bool is_tail(std::string_view text, size_t i) {
    return i < text.size() && (byte_at(text, i) & 0xC0) == 0x80;
}

void append_control(std::string& out, char c) {
    constexpr char kHex[] = "0123456789abcdef";
    switch (c) {
        case '\b':
            out += "\\b";
            break;
        case '\f':
            out += "\\f";
            break;
        case '\n':
            out += "\\n";
            break;
        case '\r':
            out += "\\r";
            break;
        case '\t':
            out += "\\t";
            break;
        default:
            out += "\\u00";
            out += kHex[static_cast<uint8_t>(c) >> 4];
            out += kHex[static_cast<uint8_t>(c) & 15];
    }
}

}  // namespace

size_t utf8_length(std::string_view text) {
    if (text.empty()) {
        return 0;
    }
    const uint8_t lead = byte_at(text, 0);
    if (lead < 0x80) {
        return 1;
    }
    if (lead >= 0xC2 && lead <= 0xDF) {
        return is_tail(text, 1) ? 2 : 0;
    }
    if (lead >= 0xE0 && lead <= 0xEF) {
        if (!is_tail(text, 1) || !is_tail(text, 2)) {
            return 0;
        }
        const uint8_t second = byte_at(text, 1);
        // No overlong forms, no surrogates.
        return (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ? 0 : 3;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        if (!is_tail(text, 1) || !is_tail(text, 2) || !is_tail(text, 3)) {
            return 0;
        }
        const uint8_t second = byte_at(text, 1);
        return (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F) ? 0 : 4;
    }
    return 0;
}

void append_json_escaped(std::string& out, std::string_view text) {
    size_t start = 0, i = 0;
    const auto flush = [&] { out.append(text.substr(start, i - start)); };
    while (i < text.size()) {
        const char c = text[i];
        const auto u = static_cast<uint8_t>(c);
        if (u >= 0x20 && u < 0x80 && c != '"' && c != '\\') {
            ++i;
            continue;
        }
        if (u >= 0x80) {
            const size_t n = utf8_length(text.substr(i));
            if (n > 0) {
                i += n;
                continue;
            }
            flush();
            out += "\xEF\xBF\xBD";
        } else {
            flush();
            if (c == '"' || c == '\\') {
                out += '\\';
                out += c;
            } else {
                append_control(out, c);
            }
        }
        start = ++i;
    }
    flush();
}

void append_json_string(std::string& out, std::string_view text) {
    out += '"';
    append_json_escaped(out, text);
    out += '"';
}

}  // namespace tenon::http
