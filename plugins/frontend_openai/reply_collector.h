// SPDX-License-Identifier: MIT
// Reply events to one whole response object.
#pragma once

#include <string>
#include <vector>

#include "generate_request.h"
#include "reply_parts.h"

namespace tenon::http {

/// Thread: the connection's.
class ReplyCollector {
  public:
    ReplyCollector(const GenerateRequest& request, Engine& engine);

    /// Everything but `error` events.
    void take(const SinkEvent& event);
    std::string json();

  private:
    struct Call {
        std::string id, name, arguments;
    };
    struct Reply {
        Reply(TextCodec& codec, LogprobText::Form form) : logprobs(codec, form) {}
        std::string reasoning, content, finish_reason, ids, timings;
        std::vector<Call> calls;
        LogprobText logprobs;
    };

    void append_message(std::string& out, const Reply& reply) const;
    void append_choice(std::string& out, size_t index);

    const GenerateRequest& request_;
    Engine& engine_;
    std::vector<Reply> replies_;
    Usage usage_;
};

}  // namespace tenon::http
