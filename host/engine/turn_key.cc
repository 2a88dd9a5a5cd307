// SPDX-License-Identifier: MIT
// Digests of turns, and the one spelling of a call's arguments.
#include "host/engine/turn_key.h"

namespace tenon::engine {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

std::string_view trimmed(std::string_view text) {
    const size_t first = text.find_first_not_of(kBlanks);
    return first == std::string_view::npos
               ? std::string_view()
               : text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

void append_utf8(uint32_t code, std::string* out) {
    const auto byte = [out](uint32_t value) { *out += static_cast<char>(value); };
    if (code < 0x80) {
        byte(code);
    } else if (code < 0x800) {
        byte(0xC0 | code >> 6);
        byte(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        byte(0xE0 | code >> 12);
        byte(0x80 | (code >> 6 & 0x3F));
        byte(0x80 | (code & 0x3F));
    } else {
        byte(0xF0 | code >> 18);
        byte(0x80 | (code >> 12 & 0x3F));
        byte(0x80 | (code >> 6 & 0x3F));
        byte(0x80 | (code & 0x3F));
    }
}

/// Four hex digits at `at`; false if they are none.
bool read_hex(std::string_view json, size_t at, uint32_t* out) {
    if (at + 4 > json.size()) {
        return false;
    }
    uint32_t value = 0;
    for (const char c : json.substr(at, 4)) {
        const bool letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        if (!letter && (c < '0' || c > '9')) {
            return false;
        }
        value = value << 4 | static_cast<uint32_t>(letter ? (c | 0x20) - 'a' + 10 : c - '0');
    }
    *out = value;
    return true;
}

/// The escape whose backslash is at `at`; returns where the text goes on.
size_t read_escape(std::string_view json, size_t at, std::string* out) {
    constexpr std::string_view kNames = "bfnrt";
    constexpr std::string_view kValues = "\b\f\n\r\t";
    const char name = at + 1 < json.size() ? json[at + 1] : '\\';
    uint32_t code = 0;
    if (name == 'u' && read_hex(json, at + 2, &code)) {
        uint32_t low = 0;
        const bool pair = code >= 0xD800 && code < 0xDC00 && json.substr(at + 6, 2) == "\\u" &&
                          read_hex(json, at + 8, &low) && low >= 0xDC00 && low < 0xE000;
        append_utf8(pair ? 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) : code, out);
        return at + (pair ? 12 : 6);
    }
    const size_t known = kNames.find(name);
    *out += known == std::string_view::npos ? name : kValues[known];
    return at + 2;
}

}  // namespace

std::string plain_json(std::string_view json) {
    std::string out;
    out.reserve(json.size());
    for (size_t at = 0; at < json.size();) {
        if (json[at] != '"') {
            if (kBlanks.find(json[at]) == std::string_view::npos) {
                out += json[at];
            }
            ++at;
            continue;
        }
        std::string text;
        for (++at; at < json.size() && json[at] != '"';) {
            if (json[at] == '\\') {
                at = read_escape(json, at, &text);
            } else {
                text += json[at++];
            }
        }
        ++at;
        // The length instead of quotes: nothing inside can look like an end.
        out += '"';
        out += std::to_string(text.size());
        out += ':';
        out += text;
    }
    return out;
}

Sha256 prompt_sha(uint64_t cache_salt) {
    Sha256 sha;
    sha.add({reinterpret_cast<const uint8_t*>(&cache_salt), sizeof cache_salt});
    return sha;
}

Digest turn_key(const Digest& prompt, const VisibleTurn& turn, bool with_reasoning,
                TurnMatch match) {
    const bool by_ids = match == TurnMatch::call_ids;
    Sha256 sha;
    sha.add_field(by_ids ? "calls" : "turn");
    sha.add({prompt.data(), prompt.size()});
    sha.add_field(with_reasoning ? turn.reasoning.view() : std::string_view());
    sha.add_field(by_ids ? trimmed(turn.content) : turn.content.view());
    for (const VisibleCall& call : turn.calls) {
        sha.add_field(by_ids ? call.id.view() : std::string_view());
        sha.add_field(call.name);
        sha.add_field(plain_json(call.arguments));
    }
    return sha.finish();
}

void RecordedTurn::add(const ReplyEvent& event) {
    switch (event.kind) {
        case ReplyEventKind::reasoning:
            reasoning += event.text.view();
            break;
        case ReplyEventKind::content:
            content += event.text.view();
            break;
        case ReplyEventKind::call:
            calls.push_back({event.id.str(), event.text.str(), {}});
            break;
        case ReplyEventKind::arguments:
            if (calls.empty()) {
                is_odd = true;
            } else {
                calls.back().arguments += event.text.view();
            }
            break;
        case ReplyEventKind::finish:
            break;
    }
}

std::vector<VisibleCall> RecordedTurn::visible_calls() const {
    std::vector<VisibleCall> out;
    for (const Call& call : calls) {
        out.push_back({call.id, call.name, call.arguments});
    }
    return out;
}

}  // namespace tenon::engine
