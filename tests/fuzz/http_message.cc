// SPDX-License-Identifier: MIT
// Fuzzes what a client controls before any model sees it: request head and JSON body.
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "framing.h"
#include "json_in.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace tenon::http;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    std::vector<std::string> lines;
    size_t at = 0;
    while (at < text.size() && static_cast<int64_t>(lines.size()) <= kMaxFields) {
        const size_t end = std::min(text.find("\r\n", at), text.size());
        if (end == at && !lines.empty()) {
            at += 2;
            break;
        }
        if (end > at) {
            lines.emplace_back(text.substr(at, end - at));
        }
        at = std::min(end + 2, text.size());
    }
    if (!lines.empty()) {
        RequestHead head;
        if (!parse_head(lines, &head) && head.is_chunked && head.content_length >= 0) {
            std::abort();  // a message with two lengths was taken
        }
    }
    Json body;
    const std::string_view rest = at < text.size() ? text.substr(at) : text;
    if (!parse_json(rest, &body)) {
        // What we take, the library takes with the same meaning.
        const Json again = Json::parse(rest, nullptr, false);
        if (again.is_discarded() || again != body) {
            std::abort();
        }
    }
    return 0;
}
