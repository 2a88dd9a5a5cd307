// SPDX-License-Identifier: MIT
// Response heads, fixed bodies and chunked streams.
#include "exchange.h"

#include <ctime>
#include <random>

namespace tenon::http {

namespace {

std::string http_date() {
    const std::time_t now = std::time(nullptr);
    std::tm parts = {};
    ::gmtime_r(&now, &parts);
    // strftime would follow the process's locale.
    static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                              "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    char text[64];
    std::snprintf(text, sizeof text, "%s, %02d %s %04d %02d:%02d:%02d GMT", kDays[parts.tm_wday],
                  parts.tm_mday, kMonths[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour,
                  parts.tm_min, parts.tm_sec);
    return text;
}

}  // namespace

std::string random_text(int length) {
    static constexpr char kAlphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    std::random_device system;
    std::uniform_int_distribution<size_t> choice(0, sizeof kAlphabet - 2);
    std::string out;
    for (int i = 0; i < length; ++i) {
        out += kAlphabet[choice(system)];
    }
    return out;
}

Exchange::Exchange(Wire& wire, const RequestHead& head, const Settings& settings,
                   BodyBudget& bodies)
    : wire_(wire),
      head_(head),
      settings_(settings),
      lease_(bodies),
      request_id_("req_" + random_text(24)),
      keep_alive_(head.keep_alive) {}

void Exchange::append_cors(std::string* out) const {
    const std::string_view origin = head_.field("origin");
    if (origin.empty() || settings_.cors_origins.empty()) {
        return;
    }
    for (const std::string& allowed : settings_.cors_origins) {
        if (allowed == "*" || allowed == origin) {
            *out += "Access-Control-Allow-Origin: ";
            *out += allowed == "*" ? std::string_view("*") : origin;
            *out += "\r\nAccess-Control-Expose-Headers: Retry-After, X-Request-Id\r\n";
            break;
        }
    }
    *out += "Vary: Origin\r\n";
}

std::string Exchange::head_text(int status, std::string_view content_type) const {
    std::string out = format("HTTP/1.1 {} {}\r\nDate: {}\r\nX-Request-Id: {}\r\n", status,
                             reason_phrase(status), http_date(), request_id_);
    if (!content_type.empty()) {
        out += "Content-Type: ";
        out += content_type;
        out += "\r\n";
    }
    append_cors(&out);
    return out;
}

void Exchange::finish_head(std::string* out) const {
    *out += keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
}

void Exchange::reply(int status, std::string_view content_type, std::string_view body) {
    status_ = status;
    std::string out = head_text(status, content_type);
    out += format("Content-Length: {}\r\n", body.size());
    finish_head(&out);
    if (head_.method != "HEAD") {
        out += body;
    }
    is_whole_ = wire_.write(out);
}

void Exchange::fail(const ApiError& error) {
    status_ = error.status;
    const std::string body = error_body(error);
    std::string out = head_text(error.status, "application/json");
    if (error.status == 401) {
        out += "WWW-Authenticate: Bearer realm=\"tenon\"\r\n";
    }
    if (error.retry_after_s > 0) {
        out += format("Retry-After: {}\r\n", error.retry_after_s);
    }
    if (!error.allow.empty()) {
        out += format("Allow: {}\r\n", error.allow);
    }
    out += format("Content-Length: {}\r\n", body.size());
    finish_head(&out);
    if (head_.method != "HEAD") {
        out += body;
    }
    is_whole_ = wire_.write(out);
}

void Exchange::reply_options(std::string_view allow) {
    status_ = 204;
    std::string out = head_text(204, "");
    out += format("Allow: {}\r\n", allow);
    if (!settings_.cors_origins.empty() && !head_.field("access-control-request-method").empty()) {
        out += format(
            "Access-Control-Allow-Methods: {}\r\n"
            "Access-Control-Allow-Headers: Authorization, Content-Type, "
            "X-Api-Key{}{}\r\n"
            "Access-Control-Max-Age: 600\r\n",
            allow, head_.field("access-control-request-headers").empty() ? "" : ", ",
            head_.field("access-control-request-headers"));
    }
    finish_head(&out);
    is_whole_ = wire_.write(out);
}

bool Exchange::begin_stream(std::string_view content_type) {
    status_ = 200;
    is_chunked_ = head_.minor == 1;
    if (!is_chunked_) {
        // HTTP/1.0 knows the end of the body by the end of the connection.
        keep_alive_ = false;
    }
    std::string out = head_text(200, content_type);
    out += "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
    if (is_chunked_) {
        out += "Transfer-Encoding: chunked\r\n";
    }
    finish_head(&out);
    return wire_.write(out);
}

bool Exchange::send(std::string_view piece) {
    if (piece.empty()) {
        return true;  // an empty chunk would end the body
    }
    if (!is_chunked_) {
        return wire_.write(piece);
    }
    char size[24];
    const int n = std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
    piece_.assign(size, static_cast<size_t>(n));
    piece_ += piece;
    piece_ += "\r\n";
    return wire_.write(piece_);
}

bool Exchange::end_stream() {
    is_whole_ = !is_chunked_ || wire_.write("0\r\n\r\n");
    return is_whole_;
}

}  // namespace tenon::http
