// SPDX-License-Identifier: MIT
// Request line and header fields, strictly after RFC 9112.
#include <algorithm>
#include <cctype>

#include "framing.h"

namespace tenon::http {

namespace {

constexpr size_t kMaxMethodBytes = 16;

bool is_token_char(char c) {
    const auto u = static_cast<unsigned char>(c);
    return std::isalnum(u) != 0 ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

bool is_control(char c) {
    const auto u = static_cast<unsigned char>(c);
    return (u < 0x20 && c != '\t') || u == 0x7F;
}

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out) {
        c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    return out;
}

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) {
        text.remove_prefix(1);
    }
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) {
        text.remove_suffix(1);
    }
    return text;
}

int hex_value(char c) {
    const auto u = static_cast<unsigned char>(c);
    return std::isdigit(u) != 0 ? c - '0' : std::isxdigit(u) != 0 ? std::tolower(u) - 'a' + 10 : -1;
}

bool percent_decode(std::string_view text, std::string* out) {
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') {
            *out += text[i];
            continue;
        }
        const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
        const int low = high < 0 ? -1 : hex_value(text[i + 2]);
        if (low < 0 || high * 16 + low == 0) {
            return false;
        }
        *out += static_cast<char>(high * 16 + low);
        i += 2;
    }
    return true;
}

// http://host/path of a proxy-style request, or /path, or *.
Refusal parse_target(std::string_view target, RequestHead* out) {
    if (static_cast<int64_t>(target.size()) > kMaxTargetBytes) {
        return bad_message(
            format("the request target has {} bytes, more than {}", target.size(), kMaxTargetBytes),
            414, "uri_too_long");
    }
    const size_t scheme = target.find("://");
    if (scheme != std::string_view::npos && scheme < 6 && target.front() != '/') {
        const size_t slash = target.find('/', scheme + 3);
        target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
    }
    const size_t query = target.find('?');
    if (query != std::string_view::npos) {
        out->query = target.substr(query + 1);
        target = target.substr(0, query);
    }
    if (target != "*" && target.front() != '/') {
        return bad_message("the request target does not start with '/'");
    }
    if (!percent_decode(target, &out->path)) {
        return bad_message("the request target has a malformed percent escape");
    }
    return {};
}

Refusal parse_request_line(std::string_view line, RequestHead* out) {
    const size_t first = line.find(' ');
    const size_t last = line.rfind(' ');
    if (first == std::string_view::npos || first == last) {
        return bad_message("the request line is not 'METHOD target HTTP/1.1'");
    }
    const std::string_view method = line.substr(0, first);
    const std::string_view target = line.substr(first + 1, last - first - 1);
    const std::string_view version = line.substr(last + 1);
    if (!is_token(method) || method.size() > kMaxMethodBytes) {
        return bad_message("the request method is not a token of at most 16 characters");
    }
    if (target.empty() || target.find(' ') != std::string_view::npos ||
        std::any_of(target.begin(), target.end(), is_control)) {
        return bad_message("the request target holds blanks or control characters");
    }
    if (version != "HTTP/1.1" && version != "HTTP/1.0") {
        return bad_message(version.rfind("HTTP/", 0) == 0
                               ? "this server speaks HTTP/1.0 and HTTP/1.1"
                               : "the request line lacks 'HTTP/1.1'",
                           version.rfind("HTTP/", 0) == 0 ? 505 : 400);
    }
    out->method = method;
    out->minor = version.back() - '0';
    return parse_target(target, out);
}

Refusal parse_field(std::string_view line, RequestHead* out) {
    if (line.front() == ' ' || line.front() == '\t') {
        return bad_message("a header field is folded over lines");
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) {
        return bad_message("a header line has no colon");
    }
    if (!is_token(line.substr(0, colon))) {
        return bad_message(
            "a header name is empty or holds blanks or other "
            "characters than a token's");
    }
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (std::any_of(value.begin(), value.end(), is_control)) {
        return bad_message("a header value holds control characters or a bare CR or LF");
    }
    out->fields.emplace_back(lower(line.substr(0, colon)), std::string(value));
    return {};
}

int count_of(const RequestHead& head, std::string_view name) {
    return static_cast<int>(std::count_if(head.fields.begin(), head.fields.end(),
                                          [&](const auto& field) { return field.first == name; }));
}

Refusal parse_length(RequestHead* head) {
    const std::string_view text = head->field("content-length");
    constexpr size_t kMaxDigits = 15;  // beyond every body limit, inside int64
    if (text.empty() || text.size() > kMaxDigits ||
        !std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; })) {
        // A length of many digits is only too large, if it is a number at all.
        const bool is_number = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
            return c >= '0' && c <= '9';
        });
        return is_number ? bad_message("Content-Length is larger than any body taken here", 413,
                                       "body_too_large")
                         : bad_message("Content-Length is not a non-negative decimal number");
    }
    head->content_length = std::stoll(std::string(text));
    return {};
}

Refusal check_body_fields(RequestHead* head) {
    const int lengths = count_of(*head, "content-length");
    const int encodings = count_of(*head, "transfer-encoding");
    if (lengths > 0 && encodings > 0) {
        return bad_message("Content-Length and Transfer-Encoding exclude each other");
    }
    if (lengths > 1) {
        return bad_message("Content-Length occurs more than once");
    }
    if (lengths == 1) {
        return parse_length(head);
    }
    if (encodings == 0) {
        return {};
    }
    if (head->minor == 0) {
        return bad_message("Transfer-Encoding does not exist in HTTP/1.0");
    }
    if (encodings > 1 || lower(head->field("transfer-encoding")) != "chunked") {
        return bad_message("the only Transfer-Encoding taken here is 'chunked', once", 501,
                           "not_implemented");
    }
    head->is_chunked = true;
    return {};
}

Refusal check_fields(RequestHead* head) {
    const int hosts = count_of(*head, "host");
    if (hosts > 1 || (hosts == 0 && head->minor == 1)) {
        return bad_message(hosts > 1 ? "Host occurs more than once"
                                     : "HTTP/1.1 needs a Host field");
    }
    if (Refusal refusal = check_body_fields(head)) {
        return refusal;
    }
    const std::string expect = lower(head->field("expect"));
    if (!expect.empty() && expect != "100-continue") {
        return bad_message("the only Expect taken here is '100-continue'", 417);
    }
    head->expects_continue = !expect.empty() && head->minor == 1;
    const std::string coding = lower(head->field("content-encoding"));
    if (!coding.empty() && coding != "identity") {
        return bad_message("request bodies are taken without Content-Encoding", 415);
    }
    const std::string connection = lower(head->field("connection"));
    head->keep_alive = head->minor == 1 ? connection.find("close") == std::string::npos
                                        : connection.find("keep-alive") != std::string::npos;
    return {};
}

}  // namespace

std::string_view RequestHead::field(std::string_view name) const {
    for (const auto& [key, value] : fields) {
        if (key == name) {
            return value;
        }
    }
    return {};
}

Refusal parse_head(const std::vector<std::string>& lines, RequestHead* out) {
    for (const std::string& line : lines) {
        // read_line leaves a bare LF at the end of its line.
        if (!line.empty() && line.back() == '\n') {
            return bad_message("a header line ends with LF instead of CRLF");
        }
    }
    if (Refusal refusal = parse_request_line(lines.front(), out)) {
        return refusal;
    }
    for (size_t i = 1; i < lines.size(); ++i) {
        if (Refusal refusal = parse_field(lines[i], out)) {
            return refusal;
        }
    }
    return check_fields(out);
}

HeadResult read_head(Wire& wire, RequestHead* out) {
    std::vector<std::string> lines;
    int64_t bytes = 0;
    int blank_lines = 0;
    for (;;) {
        std::string line;
        const ReadEnd end = wire.read_line(&line, kMaxHeadBytes - bytes);
        if (end == ReadEnd::too_long || static_cast<int64_t>(lines.size()) > kMaxFields) {
            return {ReadEnd::ok,
                    bad_message(format("the request's header is larger than {} bytes or {} fields",
                                       kMaxHeadBytes, kMaxFields),
                                431, "header_too_large")};
        }
        if (end != ReadEnd::ok) {
            return {end, {}};
        }
        bytes += static_cast<int64_t>(line.size()) + 2;
        if (lines.empty() && !line.empty() && line.front() == '\x16') {
            return {ReadEnd::ok, bad_message("this port speaks HTTP without TLS")};
        }
        if (line.empty() && lines.empty()) {
            // An empty line before a request is a leftover of the one before it.
            if (++blank_lines > 2) {
                return {ReadEnd::ok, bad_message("empty lines instead of a request")};
            }
            continue;
        }
        if (line.empty()) {
            return {ReadEnd::ok, parse_head(lines, out)};
        }
        const bool is_bare = line.back() == '\n';
        lines.push_back(std::move(line));
        if (is_bare) {
            return {ReadEnd::ok, parse_head(lines, out)};
        }
    }
}

}  // namespace tenon::http
