// SPDX-License-Identifier: MIT
// Status codes to HTTP statuses and OpenAI error objects.
#include "api_error.h"

#include <cctype>

#include "json_text.h"

namespace tenon::http {

namespace {

constexpr const char* kInvalidRequest = "invalid_request_error";
constexpr const char* kServerError = "server_error";

// "messages[2].content: …" starts with a JSON path; "out of memory: …" does not.
std::string_view leading_path(std::string_view message) {
    const size_t colon = message.find(": ");
    if (colon == std::string_view::npos || colon == 0 || colon > 200) {
        return {};
    }
    const std::string_view path = message.substr(0, colon);
    for (const char c : path) {
        const auto u = static_cast<unsigned char>(c);
        if (std::isalnum(u) == 0 && c != '_' && c != '.' && c != '[' && c != ']' && c != '-') {
            return {};
        }
    }
    return path;
}

void append_nullable(std::string& out, const std::string& text) {
    if (text.empty()) {
        out += "null";
    } else {
        append_json_string(out, text);
    }
}

}  // namespace

ApiError bad_field(std::string_view param, std::string_view message, std::string_view code) {
    ApiError e;
    e.status = 400;
    e.type = kInvalidRequest;
    e.code = code;
    e.param = param;
    e.message = param.empty() ? std::string(message) : format("{}: {}", param, message);
    return e;
}

ApiError unsupported_field(std::string_view param, std::string_view message) {
    return bad_field(param, message, "unsupported_parameter");
}

ApiError bad_message(std::string_view message, int status, std::string_view code) {
    ApiError e;
    e.status = status;
    e.type = kInvalidRequest;
    e.code = code;
    e.message = message;
    return e;
}

ApiError unavailable(std::string_view code, std::string_view message, int retry_after_s) {
    ApiError e;
    e.status = 503;
    e.type = kServerError;
    e.code = code;
    e.message = message;
    e.retry_after_s = retry_after_s > 0 ? retry_after_s : 1;
    return e;
}

ApiError from_status(const Status& status, int retry_after_s) {
    const std::string message = status.message().str();
    const int retry = retry_after_s > 0 ? retry_after_s : 1;
    ApiError e;
    e.message = message;
    e.code = code_name(status.code());
    switch (status.code()) {
        case Code::invalid_argument:
        case Code::unsupported:
            e.status = 400;
            e.type = kInvalidRequest;
            e.code = status.code() == Code::unsupported ? "unsupported_parameter" : "invalid_value";
            e.param = leading_path(message);
            break;
        case Code::does_not_fit:
            e.status = 400;
            e.type = kInvalidRequest;
            e.code = "context_length_exceeded";
            e.param = leading_path(message);
            break;
        case Code::not_found:
            e.status = 404;
            e.type = kInvalidRequest;
            break;
        case Code::unavailable:
            e.retry_after_s = retry;
            if (message.rfind("queue full", 0) == 0) {
                e.status = 429;
                e.type = "rate_limit_error";
                e.code = "queue_full";
            } else {
                e.status = 503;
            }
            break;
        case Code::cancelled:
        case Code::deadline:
        case Code::io:
        case Code::device:
        case Code::peer:
            e.status = 503;
            e.retry_after_s = retry;
            break;
        case Code::ok:
        case Code::internal:
            e.status = 500;
            break;
    }
    return e;
}

std::string error_body(const ApiError& error) {
    std::string out = R"({"error":{"message":)";
    append_json_string(out, error.message);
    out += R"(,"type":)";
    append_json_string(out, error.type);
    out += R"(,"param":)";
    append_nullable(out, error.param);
    out += R"(,"code":)";
    append_nullable(out, error.code);
    out += "}}";
    return out;
}

const char* reason_phrase(int status) {
    switch (status) {
        case 100:
            return "Continue";
        case 200:
            return "OK";
        case 204:
            return "No Content";
        case 400:
            return "Bad Request";
        case 401:
            return "Unauthorized";
        case 403:
            return "Forbidden";
        case 404:
            return "Not Found";
        case 405:
            return "Method Not Allowed";
        case 408:
            return "Request Timeout";
        case 413:
            return "Content Too Large";
        case 414:
            return "URI Too Long";
        case 415:
            return "Unsupported Media Type";
        case 417:
            return "Expectation Failed";
        case 429:
            return "Too Many Requests";
        case 431:
            return "Request Header Fields Too Large";
        case 500:
            return "Internal Server Error";
        case 501:
            return "Not Implemented";
        case 503:
            return "Service Unavailable";
        case 505:
            return "HTTP Version Not Supported";
        default:
            return "Status";
    }
}

}  // namespace tenon::http
