// SPDX-License-Identifier: MIT
// Parsing by nlohmann's event interface into our own tree (its ordered objects search linearly,
// which is quadratic on hostile input), and the printer.
#include "text/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <numeric>

#include "text/utf8.h"

namespace tenon::dsv41 {

namespace {

constexpr size_t kFewMembers = 16;  // below it, comparing all pairs is cheaper than sorting

/// Keeps the last value of duplicate keys at the place of the first.
void remove_duplicates(Json::Object& members) {
    std::vector<size_t> drop;
    const auto supersede = [&](size_t first, size_t later) {
        members[first].second = std::move(members[later].second);
        drop.push_back(later);
    };
    if (members.size() <= kFewMembers) {
        for (size_t i = 1; i < members.size(); ++i) {
            for (size_t k = 0; k < i; ++k) {
                const bool dropped = std::find(drop.begin(), drop.end(), k) != drop.end();
                if (!dropped && members[k].first == members[i].first) {
                    supersede(k, i);
                    break;
                }
            }
        }
    } else {
        std::vector<size_t> order(members.size());
        std::iota(order.begin(), order.end(), size_t{0});
        std::stable_sort(order.begin(), order.end(),
                         [&](size_t a, size_t b) { return members[a].first < members[b].first; });
        for (size_t i = 0; i < order.size();) {
            size_t end = i + 1;
            while (end < order.size() && members[order[end]].first == members[order[i]].first) {
                supersede(order[i], order[end]);
                ++end;
            }
            i = end;
        }
        std::sort(drop.begin(), drop.end());
    }
    if (drop.empty()) {
        return;
    }
    size_t next = 0, kept = 0;
    for (size_t i = 0; i < members.size(); ++i) {
        if (next < drop.size() && drop[next] == i) {
            ++next;
            continue;
        }
        if (kept != i) {
            members[kept] = std::move(members[i]);
        }
        ++kept;
    }
    members.resize(kept);
}

/// Receives nlohmann's parse events; a false return ends the parse.
class Builder {
  public:
    explicit Builder(const JsonLimits& limits) : limits_(limits) {}

    bool null() { return add(Json()); }
    bool boolean(bool v) { return add(Json(Json::Value(v))); }
    bool number_integer(int64_t v) {
        // Only "-0" arrives here without being negative. The reference reads it as the float it is.
        return v == 0 ? number_float(-0.0, {}) : add(Json(Json::Value(v)));
    }
    bool number_unsigned(uint64_t v) {
        return v <= static_cast<uint64_t>(INT64_MAX)
                   ? add(Json(Json::Value(static_cast<int64_t>(v))))
                   : add(Json(Json::Value(v)));
    }
    bool number_float(double v, const std::string&) { return add(Json(Json::Value(v))); }
    bool string(std::string& v) { return add(Json(Json::Value(std::move(v)))); }
    bool binary(nlohmann::json::binary_t&) { return fail("binary value"); }
    bool start_object(size_t) { return open(Json(Json::Value(Json::Object()))); }
    bool start_array(size_t) { return open(Json(Json::Value(Json::Array()))); }
    bool key(std::string& v) {
        open_.back().object()->emplace_back(std::move(v), Json());
        return true;
    }
    bool end_object() {
        remove_duplicates(*open_.back().object());
        return close();
    }
    bool end_array() { return close(); }
    bool parse_error(size_t, const std::string&, const nlohmann::json::exception& e) {
        // "[json.exception.parse_error.101] parse error at line 1, column 5: …": keep what follows
        // the tag.
        std::string_view what = e.what();
        const size_t tag = what.find("] ");
        what = tag == std::string_view::npos ? what : what.substr(tag + 2);
        constexpr size_t kLongest =
            240;  // the text quotes the last token, which may be the whole input
        std::string message = to_valid_utf8(what.substr(0, kLongest));
        return fail(std::move(message));
    }

    Json& root() { return root_; }
    const std::string& message() const { return message_; }

  private:
    bool fail(std::string message) {
        message_ = std::move(message);
        return false;
    }
    bool count() {
        return ++values_ <= limits_.values || fail(format("more than {} values", limits_.values));
    }
    bool add(Json value) {
        if (!count()) {
            return false;
        }
        place(std::move(value));
        return true;
    }
    bool open(Json container) {
        if (!count()) {
            return false;
        }
        if (static_cast<int64_t>(open_.size()) >= limits_.depth) {
            return fail(format("nested deeper than {} levels", limits_.depth));
        }
        open_.push_back(std::move(container));
        return true;
    }
    bool close() {
        Json done = std::move(open_.back());
        open_.pop_back();
        place(std::move(done));
        return true;
    }
    void place(Json value) {
        if (open_.empty()) {
            root_ = std::move(value);
        } else if (Json::Array* array = open_.back().array()) {
            array->push_back(std::move(value));
        } else {
            open_.back().object()->back().second = std::move(value);
        }
    }

    JsonLimits limits_;
    int64_t values_ = 0;
    std::vector<Json> open_;  // containers from the root to the innermost
    Json root_;
    std::string message_;
};

/// Grammar check with an explicit stack.
class Checker {
  public:
    explicit Checker(std::string_view text) : text_(text) {}

    bool run() {
        bool expects_value = true;
        while (true) {
            skip_space();
            if (expects_value) {
                if (!value(expects_value)) {
                    return false;
                }
                continue;
            }
            if (open_.empty()) {
                return at_ == text_.size();
            }
            const char c = take();
            if (c == ',') {
                skip_space();
                if (open_.back() == '{' && !key()) {
                    return false;
                }
                expects_value = true;
            } else if (c == (open_.back() == '{' ? '}' : ']')) {
                open_.pop_back();
            } else {
                return false;
            }
        }
    }

  private:
    static constexpr size_t kDeepest = 10'000;

    char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
    char take() { return at_ < text_.size() ? text_[at_++] : '\0'; }
    void skip_space() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' ||
                                      text_[at_] == '\n' || text_[at_] == '\r')) {
            ++at_;
        }
    }
    bool literal(std::string_view word) {
        if (text_.substr(at_, word.size()) != word) {
            return false;
        }
        at_ += word.size();
        return true;
    }
    bool value(bool& expects_value) {
        expects_value = false;
        switch (peek()) {
            case '{':
            case '[': {
                const char c = take();
                if (open_.size() >= kDeepest) {
                    return false;
                }
                skip_space();
                if (peek() == (c == '{' ? '}' : ']')) {
                    ++at_;
                    return true;
                }
                open_.push_back(c);
                expects_value = true;
                return c == '[' || key();
            }
            case '"':
                return string();
            case 't':
                return literal("true");
            case 'f':
                return literal("false");
            case 'n':
                return literal("null");
            default:
                return number();
        }
    }
    bool key() {
        if (!string()) {
            return false;
        }
        skip_space();
        return take() == ':';
    }
    bool string() {
        if (take() != '"') {
            return false;
        }
        while (at_ < text_.size()) {
            const char c = text_[at_++];
            if (c == '"') {
                return true;
            }
            if (static_cast<unsigned char>(c) < 0x20) {
                return false;
            }
            if (c != '\\') {
                continue;
            }
            const char escape = take();
            if (escape == 'u') {
                for (int i = 0; i < 4; ++i) {
                    if (!is_hex(take())) {
                        return false;
                    }
                }
            } else if (std::string_view("\"\\/bfnrt").find(escape) == std::string_view::npos ||
                       escape == '\0') {
                return false;
            }
        }
        return false;
    }
    static bool is_digit(char c) { return c >= '0' && c <= '9'; }
    static bool is_hex(char c) {
        return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    }
    bool digits() {
        const size_t begin = at_;
        while (is_digit(peek())) {
            ++at_;
        }
        return at_ > begin;
    }
    bool number() {
        if (peek() == '-') {
            ++at_;
        }
        if (peek() == '0') {
            ++at_;
        } else if (!digits()) {
            return false;
        }
        if (peek() == '.') {
            ++at_;
            if (!digits()) {
                return false;
            }
        }
        if (peek() == 'e' || peek() == 'E') {
            ++at_;
            if (peek() == '+' || peek() == '-') {
                ++at_;
            }
            return digits();
        }
        return true;
    }

    std::string_view text_;
    size_t at_ = 0;
    std::string open_;
};

}  // namespace

bool Json::integer(int64_t& out) const {
    const int64_t* v = std::get_if<int64_t>(&value_);
    if (v == nullptr) {
        return false;
    }
    out = *v;
    return true;
}

const char* Json::kind() const {
    static constexpr const char* kNames[] = {"null",     "a boolean", "an integer", "an integer",
                                             "a number", "a string",  "an array",   "an object"};
    return kNames[value_.index()];
}

const Json* Json::find(std::string_view key) const {
    const Object* members = object();
    if (members != nullptr) {
        for (const Member& member : *members) {
            if (member.first == key) {
                return &member.second;
            }
        }
    }
    return nullptr;
}

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
    Builder builder(limits);
    if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
        return error(Code::invalid_argument, "not valid JSON: {}", builder.message());
    }
    return std::move(builder.root());
}

bool is_json(std::string_view text) {
    return Checker(text).run();
}

void append_json(std::string& out, const Json& value) {
    struct Printer {
        std::string& out;
        void operator()(std::monostate) { out += "null"; }
        void operator()(bool v) { out += v ? "true" : "false"; }
        void operator()(int64_t v) { out += std::to_string(v); }
        void operator()(uint64_t v) { out += std::to_string(v); }
        void operator()(double v) { append_python_float(out, v); }
        void operator()(const std::string& v) { append_json_string(out, v); }
        void operator()(const Json::Array& v) {
            out += '[';
            const char* separator = "";
            for (const Json& element : v) {
                out += std::exchange(separator, ", ");
                append_json(out, element);
            }
            out += ']';
        }
        void operator()(const Json::Object& v) {
            out += '{';
            const char* separator = "";
            for (const Json::Member& member : v) {
                out += std::exchange(separator, ", ");
                append_json_string(out, member.first);
                out += ": ";
                append_json(out, member.second);
            }
            out += '}';
        }
    };
    std::visit(Printer{out}, value.value());
}

std::string to_json(const Json& value) {
    std::string out;
    append_json(out, value);
    return out;
}

void append_json_escaped(std::string& out, std::string_view text) {
    static constexpr char kHex[] = "0123456789abcdef";
    for (const char c : text) {
        switch (c) {
            case '"':
                out += "\\\"";
                break;
            case '\\':
                out += "\\\\";
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
            case '\b':
                out += "\\b";
                break;
            case '\f':
                out += "\\f";
                break;
            default: {
                const auto byte = static_cast<unsigned char>(c);
                if (byte < 0x20) {
                    out += "\\u00";
                    out += kHex[byte >> 4];
                    out += kHex[byte & 15];
                } else {
                    out += c;
                }
            }
        }
    }
}

void append_json_string(std::string& out, std::string_view text) {
    out += '"';
    append_json_escaped(out, text);
    out += '"';
}

void append_python_float(std::string& out, double value) {
    std::array<char, 40> text{};
    const auto end =
        std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::scientific)
            .ptr;
    std::string_view shortest(text.data(), static_cast<size_t>(end - text.data()));
    if (shortest.front() == '-') {
        out += '-';
        shortest.remove_prefix(1);
    }
    const size_t mark = shortest.find('e');
    std::string digits(shortest.substr(0, 1));
    if (mark > 2) {
        digits += shortest.substr(2, mark - 2);
    }
    int exponent = 0;
    const size_t sign = shortest[mark + 1] == '+' ? 2 : 1;
    std::from_chars(shortest.data() + mark + sign, shortest.data() + shortest.size(), exponent);

    const int count = static_cast<int>(digits.size());
    if (exponent < -4 || exponent >= 16) {
        out += digits[0];
        if (count > 1) {
            out += '.';
            out.append(digits, 1, std::string::npos);
        }
        out += exponent < 0 ? "e-" : "e+";
        const int magnitude = exponent < 0 ? -exponent : exponent;
        if (magnitude < 10) {
            out += '0';
        }
        out += std::to_string(magnitude);
    } else if (exponent < 0) {
        out += "0.";
        out.append(static_cast<size_t>(-exponent - 1), '0');
        out += digits;
    } else if (count <= exponent + 1) {
        out += digits;
        out.append(static_cast<size_t>(exponent + 1 - count), '0');
        out += ".0";
    } else {
        out.append(digits, 0, static_cast<size_t>(exponent + 1));
        out += '.';
        out.append(digits, static_cast<size_t>(exponent + 1), std::string::npos);
    }
}

}  // namespace tenon::dsv41
