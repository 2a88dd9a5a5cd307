// SPDX-License-Identifier: MIT
// Reply events to server-sent events in OpenAI's chunk format.
#pragma once

#include <string>
#include <vector>

#include "generate_request.h"
#include "reply_parts.h"

namespace tenon::http {

/// Collects chunks in `out`; whoever owns the connection sends them. Adjacent pieces of one kind
/// that are taken before a `flush` become one chunk, so a client that lags gets fewer, longer
/// chunks.
///
/// Thread: the connection's.
class StreamWriter {
  public:
    StreamWriter(const GenerateRequest& request, TextCodec& codec);

    /// Everything but `error` events, whose text belongs into `add_error`.
    void take(const SinkEvent& event);
    /// Writes what is being put together.
    void flush();
    /// The error event.
    void add_error(const ApiError& error);
    /// Usage, if asked for, and [DONE].
    void add_end();

    std::string& out() { return out_; }
    /// Bytes that wait in `out` and in the piece being put together.
    size_t held_bytes() const { return out_.size() + pending_.text.size(); }

  private:
    struct Reply {
        Reply(TextCodec& codec, LogprobText::Form form) : logprobs(codec, form) {}
        bool has_role = false;
        std::string ids;
        LogprobText logprobs;
    };
    struct Pending {
        bool is_set = false;
        SinkEventKind kind = SinkEventKind::content;
        int32_t reply = 0, index = 0;
        std::string text;
    };

    void add_piece(const SinkEvent& event);
    void begin_chunk(int32_t reply);
    enum class Carries { text_only, tokens };
    void end_chunk(int32_t reply, Carries carries, const char* finish_reason,
                   std::string_view timings);
    void add_role(int32_t reply);
    void add_call(const SinkEvent& event);
    void add_finish(const SinkEvent& event);
    Reply& reply_of(int32_t index);

    const bool is_chat_, returns_ids_, includes_usage_;
    std::string prompt_ids_;  ///< "1,2,3" until it has been written
    std::string head_;        ///< every chunk's start up to the choice's index
    std::vector<Reply> replies_;
    Pending pending_;
    Usage usage_;
    std::string out_;
};

}  // namespace tenon::http
