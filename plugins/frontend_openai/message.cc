// SPDX-License-Identifier: MIT
// HTTP/1.1 framing.
#include "message.h"

#include <algorithm>

namespace tenon::http {
namespace {

bool is_token(std::string_view text) {
    if (text.empty()) {
        return false;
    }
    return std::all_of(text.begin(), text.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
    });
}

bool has_control(std::string_view text) {
    return std::any_of(text.begin(), text.end(),
                       [](char c) { return static_cast<unsigned char>(c) < 0x20 && c != '\t'; });
}

std::string lower(std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return out;
}

std::string trimmed(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) {
        text.remove_prefix(1);
    }
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) {
        text.remove_suffix(1);
    }
    return std::string(text);
}

ReadState refuse(ApiError* why, ApiError error) {
    *why = std::move(error);
    return ReadState::refused;
}

ReadState ended(ReadEnd end, ApiError* why, const char* what, int too_long_status) {
    switch (end) {
        case ReadEnd::expired:
            return refuse(why,
                          bad_message(format("{} did not arrive in time", what), 408, "timeout"));
        case ReadEnd::too_long:
            return refuse(why,
                          bad_message(format("{} is too long", what), too_long_status, "too_long"));
        default:
            return ReadState::ended;
    }
}

bool content_length(const Request& r, int64_t* out) {
    const std::string* text = r.field("content-length");
    *out = 0;
    if (text == nullptr) {
        return true;
    }
    if (text->empty() || text->size() > 15 ||
        text->find_first_not_of("0123456789") != std::string::npos) {
        return false;
    }
    *out = std::stoll(*text);
    return true;
}

ReadState read_chunks(Wire& wire, const Settings& settings, Request* r, ApiError* why) {
    while (true) {
        std::string line;
        ReadEnd end = wire.read_line(&line, kMaxChunkLine);
        if (end != ReadEnd::ok) {
            return ended(end, why, "the body", 400);
        }
        const std::string size = trimmed(std::string_view(line).substr(0, line.find(';')));
        if (size.empty() || size.size() > 12 ||
            size.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
            return refuse(why, bad_message("a chunk size of the body is not a hexadecimal number"));
        }
        const int64_t bytes = std::stoll(size, nullptr, 16);
        if (bytes == 0) {
            break;
        }
        if (bytes > settings.max_body - static_cast<int64_t>(r->body.size())) {
            return refuse(
                why, bad_message(format("the body is larger than {} bytes", settings.max_body), 413,
                                 "too_large"));
        }
        const size_t at = r->body.size();
        r->body.resize(at + static_cast<size_t>(bytes));
        for (int64_t got = 0; got < bytes;) {
            int64_t n = 0;
            end = wire.read_some(r->body.data() + at + got, bytes - got, &n);
            if (end != ReadEnd::ok) {
                return ended(end, why, "the body", 400);
            }
            got += n;
        }
        end = wire.read_line(&line, kMaxChunkLine);
        if (end != ReadEnd::ok || !line.empty()) {
            return end == ReadEnd::ok
                       ? refuse(why,
                                bad_message("a chunk of the body is longer than its size says"))
                       : ended(end, why, "the body", 400);
        }
    }
    for (int64_t total = 0;;) {
        std::string line;
        const ReadEnd end = wire.read_line(&line, kMaxTrailerBytes);
        if (end != ReadEnd::ok) {
            return ended(end, why, "the trailer", 431);
        }
        if (line.empty()) {
            return ReadState::request;
        }
        total += static_cast<int64_t>(line.size());
        if (total > kMaxTrailerBytes) {
            return refuse(why, bad_message("the trailer is too long", 431, "too_long"));
        }
    }
}

}  // namespace

ReadState read_head(Wire& wire, const Settings& settings, bool reserved, Request* r,
                    ApiError* why) {
    const int64_t limit = reserved ? settings.timing.reserved_head_us : settings.timing.head_us;
    wire.deadline().arm(wire.host().now_us() + limit);
    std::string line;
    ReadEnd end = ReadEnd::ok;
    // A client may send an empty line before its request.
    for (int i = 0; i < 2 && line.empty(); ++i) {
        end = wire.read_line(&line, kMaxTargetBytes + 64);
        if (end != ReadEnd::ok) {
            return ended(end, why, "the request line", 414);
        }
    }
    const size_t a = line.find(' ');
    const size_t b = line.rfind(' ');
    if (a == std::string::npos || a == b || has_control(line)) {
        return refuse(why, bad_message("the first line is no HTTP request"));
    }
    r->method = line.substr(0, a);
    r->target = line.substr(a + 1, b - a - 1);
    const std::string version = line.substr(b + 1);
    if (!is_token(r->method) || r->target.empty() || r->target.front() != '/' ||
        r->target.find(' ') != std::string::npos) {
        return refuse(why, bad_message("the first line is no HTTP request"));
    }
    if (version != "HTTP/1.1" && version != "HTTP/1.0") {
        return refuse(why,
                      bad_message("only HTTP/1.1 and HTTP/1.0 are spoken here", 505, "version"));
    }
    r->http11 = version == "HTTP/1.1";
    r->path = r->target.substr(0, r->target.find('?'));
    int64_t bytes = static_cast<int64_t>(line.size());
    for (int64_t count = 0;; ++count) {
        end = wire.read_line(&line, kMaxHeadBytes - std::min(bytes, kMaxHeadBytes));
        if (end != ReadEnd::ok) {
            return ended(end, why, "the header", 431);
        }
        if (line.empty()) {
            break;
        }
        bytes += static_cast<int64_t>(line.size());
        if (count >= kMaxFields) {
            return refuse(why, bad_message("the header has too many fields", 431, "too_long"));
        }
        const size_t colon = line.find(':');
        if (colon == std::string::npos || !is_token(std::string_view(line).substr(0, colon)) ||
            has_control(line)) {
            return refuse(why, bad_message("a header field is malformed"));
        }
        const std::string name = lower(std::string_view(line).substr(0, colon));
        const std::string value = trimmed(std::string_view(line).substr(colon + 1));
        const auto [it, fresh] = r->fields.try_emplace(name, value);
        if (!fresh) {
            if (name == "content-length" || name == "host" || name == "transfer-encoding" ||
                name == "authorization") {
                return refuse(why, bad_message(format("the header has '{}' twice", name)));
            }
            it->second += ", " + value;
        }
    }
    wire.deadline().disarm();
    if (r->http11 && r->field("host") == nullptr) {
        return refuse(why, bad_message("an HTTP/1.1 request needs the field Host"));
    }
    const std::string* coding = r->field("transfer-encoding");
    if (coding != nullptr && r->field("content-length") != nullptr) {
        return refuse(why,
                      bad_message("Content-Length and Transfer-Encoding together are refused"));
    }
    if (coding != nullptr && (lower(*coding) != "chunked" || !r->http11)) {
        return refuse(why, bad_message("the only transfer encoding spoken here is chunked", 501,
                                       "unsupported"));
    }
    int64_t length = 0;
    if (!content_length(*r, &length)) {
        return refuse(why, bad_message("Content-Length is not a count"));
    }
    if (length > settings.max_body) {
        return refuse(why, bad_message(format("the body of {} bytes is larger than the {} allowed",
                                              length, settings.max_body),
                                       413, "too_large"));
    }
    const std::string* connection = r->field("connection");
    const std::string how = connection == nullptr ? "" : lower(*connection);
    r->keep_alive = r->http11 ? how.find("close") == std::string::npos
                              : how.find("keep-alive") != std::string::npos;
    return ReadState::request;
}

ReadState read_body(Wire& wire, const Settings& settings, Request* r, ApiError* why) {
    int64_t length = 0;
    static_cast<void>(content_length(*r, &length));
    const bool chunked = r->field("transfer-encoding") != nullptr;
    if (length == 0 && !chunked) {
        return ReadState::request;
    }
    const std::string* expect = r->field("expect");
    if (expect != nullptr && lower(*expect) == "100-continue" &&
        !wire.write("HTTP/1.1 100 Continue\r\n\r\n")) {
        return ReadState::ended;
    }
    const int64_t bytes = chunked ? settings.max_body : length;
    wire.deadline().arm(wire.host().now_us() + settings.timing.body_grace_us +
                        bytes * 1'000'000 / settings.timing.body_rate);
    ReadState state = ReadState::request;
    if (chunked) {
        state = read_chunks(wire, settings, r, why);
    } else {
        r->body.reserve(static_cast<size_t>(std::min<int64_t>(length, 1 << 20)));
        char piece[8192];
        while (static_cast<int64_t>(r->body.size()) < length) {
            int64_t n = 0;
            const ReadEnd end = wire.read_some(
                piece,
                std::min<int64_t>(sizeof piece, length - static_cast<int64_t>(r->body.size())), &n);
            if (end == ReadEnd::closed) {
                return refuse(why, bad_message(format("the body ended after {} of {} bytes",
                                                      r->body.size(), length)));
            }
            if (end != ReadEnd::ok) {
                return ended(end, why, "the body", 400);
            }
            r->body.append(piece, static_cast<size_t>(n));
        }
    }
    wire.deadline().disarm();
    return state;
}

std::string Answer::head(int status, const std::string& type, const std::string& extra) const {
    std::string text = format("HTTP/1.1 {} {}\r\nServer: tenon\r\n", status, reason_phrase(status));
    if (!type.empty()) {
        text += "Content-Type: " + type + "\r\n";
    }
    const std::string* origin = request_.field("origin");
    if (origin != nullptr) {
        for (const std::string& allowed : settings_.cors_origins) {
            if (allowed == "*" || allowed == *origin) {
                text += "Access-Control-Allow-Origin: " + (allowed == "*" ? allowed : *origin) +
                        "\r\nVary: Origin\r\nAccess-Control-Allow-Headers: authorization, "
                        "content-type, x-api-key\r\n"
                        "Access-Control-Allow-Methods: GET, POST, OPTIONS\r\n";
                break;
            }
        }
    }
    return text + (keeps_alive() ? "Connection: keep-alive\r\n" : "Connection: close\r\n") + extra;
}

void Answer::send(int status, const std::string& type, const std::string& body,
                  const std::string& extra) {
    begun_ = true;
    const std::string text =
        head(status, type, extra) + format("Content-Length: {}\r\n\r\n", body.size()) + body;
    if (!wire_.write(text)) {
        keep_alive_ = false;
    }
}

void Answer::error(const ApiError& e) {
    std::string extra;
    if (e.retry_after_s > 0) {
        extra += format("Retry-After: {}\r\n", e.retry_after_s);
    }
    if (!e.allow.empty()) {
        extra += "Allow: " + e.allow + "\r\n";
    }
    if (e.status == 401) {
        extra += "WWW-Authenticate: Bearer\r\n";
    }
    send(e.status, "application/json", error_body(e), extra);
}

bool Answer::begin_events() {
    begun_ = true;
    if (!request_.http11) {
        keep_alive_ = false;
    }
    return wire_.write(
        head(200, "text/event-stream", "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n") +
        (request_.http11 ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n"));
}

bool Answer::piece(const std::string& text) {
    if (!request_.http11) {
        return wire_.write(text);
    }
    char size[24];
    std::snprintf(size, sizeof size, "%zx\r\n", text.size());
    return wire_.write(size + text + "\r\n");
}

void Answer::end_events() {
    if (request_.http11 && !wire_.write("0\r\n\r\n")) {
        keep_alive_ = false;
    }
}

}  // namespace tenon::http
