// SPDX-License-Identifier: MIT
// One refusal as a client sees it: HTTP status and OpenAI's error object.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tenon/base.h"

namespace tenon::http {

struct ApiError {
    int status = 500;
    const char* type = "server_error";
    std::string code;   ///< empty: null
    std::string param;  ///< empty: null
    std::string message;
    int retry_after_s = 0;  ///< 0: no Retry-After
    std::string allow;      ///< for 405
};

/// No value: all is well.
using Refusal = std::optional<ApiError>;

/// 400 naming the field: "temperature: 3 is out of range 0…2".
ApiError bad_field(std::string_view param, std::string_view message,
                   std::string_view code = "invalid_value");
/// 400 about a field that exists in the API but not in this version.
ApiError unsupported_field(std::string_view param, std::string_view message);
/// 400 about the HTTP message itself.
ApiError bad_message(std::string_view message, int status = 400,
                     std::string_view code = "bad_request");
ApiError unavailable(std::string_view code, std::string_view message, int retry_after_s);

/// The table of architecture.md 13. A leading "path.to[1].field: " of the message becomes `param`.
ApiError from_status(const Status& status, int retry_after_s);

/// {"error": {"message", "type", "param", "code"}}
std::string error_body(const ApiError& error);

const char* reason_phrase(int status);

}  // namespace tenon::http
