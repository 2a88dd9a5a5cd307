// SPDX-License-Identifier: MIT
// Feeds a reply automaton with sampled ids, or with text in which markers are spelled.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/control_tokens.h"
#include "text/reply_machine.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace tenon::dsv41 {

/// Finds spelled markers in text that comes in pieces.
class MarkerScanner {
  public:
    enum class Found { none, think_close, dsml, eos };

    explicit MarkerScanner(bool finds_dsml) : finds_dsml_(finds_dsml) {}
    void add(std::string_view piece);
    /// The next stretch of text, then the marker that follows it. `none`: more input is needed;
    /// text whose end may be the start of a marker is kept, from the piece on in which that start
    /// lies.
    Found next(std::string& text);
    /// What is left when the input ends.
    std::string rest();

  private:
    size_t partial_marker() const;

    bool finds_dsml_;
    std::string buffer_;
    size_t at_ = 0;  // in buffer_: end of what was given out
    size_t piece_ =
        0;  // in buffer_: where the newest piece begins, or the text behind its last marker
};

/// One reply. Not shared between threads. The tokenizer must outlive it.
class ReplyReader {
  public:
    ReplyReader(const Tokenizer& tokenizer, const ControlTokens& controls, MachineConfig config);

    /// Markers are the sampled tokens; the same characters in ordinary tokens are text.
    void feed(std::span<const int32_t> ids, std::vector<ParsedEvent>& out);
    /// Markers are their spelling; an end-of-sentence string ends the reply.
    void feed_text(std::string_view text, std::vector<ParsedEvent>& out);
    /// Incomplete UTF-8 at the end is dropped.
    void finish(ReplyEnd end, std::vector<ParsedEvent>& out);
    bool has_stopped() const { return machine_.has_stopped(); }
    int64_t reasoning_tokens() const { return reasoning_tokens_; }

  private:
    void pass(std::string& text, std::vector<ParsedEvent>& out);

    const Tokenizer& tokenizer_;
    int32_t eos_, think_close_, dsml_;
    ReplyMachine machine_;
    Utf8Assembler assembler_;
    MarkerScanner scanner_;
    std::string text_;  // reused
    bool has_ended_ = false;
    int64_t reasoning_tokens_ = 0;
};

}  // namespace tenon::dsv41
