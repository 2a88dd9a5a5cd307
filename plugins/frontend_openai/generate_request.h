// SPDX-License-Identifier: MIT
// A chat or text completion request, read and checked, in the form that the engine takes.
#pragma once

#include <string>
#include <vector>

#include "api.h"
#include "fields.h"

namespace tenon::http {

/// Of max_tokens. Whether it fits the context is the engine's answer (it may clamp instead).
constexpr int64_t kMaxTokensBound = 1LL << 31;

/// Owns what its RequestDesc points into, so it stays where it is.
struct GenerateRequest {
    GenerateRequest() = default;
    GenerateRequest(const GenerateRequest&) = delete;
    GenerateRequest& operator=(const GenerateRequest&) = delete;

    bool is_chat = false;
    bool streams = false;
    bool includes_usage = false;  ///< stream_options.include_usage
    bool returns_ids = false;     ///< return_token_ids
    int top_logprobs = -1;        ///< -1: none asked
    std::string model;
    std::string_view caller_key;  ///< of the exchange

    RequestDesc desc;
    Ref<Prompt> prompt;        ///< chat
    std::vector<int32_t> ids;  ///< text completions
    std::vector<std::string> stops;
    std::vector<StrView> stop_views;
    std::vector<int32_t> stop_ids;
    std::vector<LogitBias> bias;

    Span<const int32_t> prompt_ids() const { return desc.tokens; }
};

/// Fields that chat and text completions share: sampling, stops, limits, switches.
void read_common_fields(Fields& fields, const Api& api, GenerateRequest* out);

/// The whole request; `text` is the body as it came, for the codec.
Refusal read_chat_request(const Api& api, const Json& body, const std::string& text,
                          GenerateRequest* out);
Refusal read_completion_request(const Api& api, const Json& body, GenerateRequest* out);

}  // namespace tenon::http
