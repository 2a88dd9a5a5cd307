// SPDX-License-Identifier: MIT
// Pieces of reply JSON that streamed and whole replies share: usage, timings, logprobs, ids.
#pragma once

#include <string>

#include "tenon/engine.h"

namespace tenon::http {

/// Token counts over all replies of a request.
struct Usage {
    int64_t prompt = 0, cached = 0, completion = 0, reasoning = 0;

    void add(const ReplyTimings& t);
    std::string json() const;
};

/// The `timings` object of one reply: milliseconds, rates, drafts, seed and token hash.
std::string timings_json(const ReplyTimings& t);

/// "1,2,3", appended.
void append_ids(std::string& out, Span<const int32_t> ids);

/// Logprobs in the form of chat ({"content": […]}) or of text completions ({"tokens": […], …}).
class LogprobText {
  public:
    enum class Form { chat, text };
    LogprobText(TextCodec& codec, Form form) : codec_(codec), form_(form) {}

    /// Takes the ids and logprobs of a `tokens` event.
    void add(const SinkEvent& event);
    bool empty() const { return count_ == 0; }
    /// The object of what came since the last call; "null" if nothing did.
    std::string take();

  private:
    void add_chat(int32_t token, const SinkLogprob* entries, int32_t top);
    void add_text(int32_t token, const SinkLogprob* entries, int32_t top);

    TextCodec& codec_;
    const Form form_;
    int64_t count_ = 0;
    int64_t offset_ = 0;  ///< characters of all tokens so far
    std::string first_, second_, third_,
        fourth_;  ///< lists: content | tokens, values, top, offsets
};

}  // namespace tenon::http
