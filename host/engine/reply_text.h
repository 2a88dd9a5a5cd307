// SPDX-License-Identifier: MIT
// Tokens of one reply to text events: through the model's reply parser, or plainly for raw
// completions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tenon/text.h"

namespace tenon::engine {

/// Delivery thread. Made in `submit`, so that a bad parser configuration is refused before the 200.
class ReplyText {
  public:
    virtual ~ReplyText() = default;
    /// Sampled ids; end tokens are never fed.
    virtual Status feed(Span<const int32_t> ids, ReplyEvents& events) = 0;
    /// Gives out what was held back, then the finish event.
    virtual Status finish(ReplyEnd end, ReplyEvents& events) = 0;
    virtual int64_t reasoning_tokens() = 0;
};

/// The model's own format: reasoning, content, calls.
Result<std::unique_ptr<ReplyText>> make_parsed_text(TextCodec& codec,
                                                    const ReplyParserConfig& config);

/// All text is content; special tokens are not text; stop strings are cut off.
Result<std::unique_ptr<ReplyText>> make_raw_text(TextCodec& codec, Span<const StrView> stops);

/// Holds back text that may become a stop string, and ends at the first one.
class StopCutter {
  public:
    explicit StopCutter(std::vector<std::string> stops) : stops_(std::move(stops)) {}
    /// Text that is certain; nothing more once a stop string was met.
    std::string feed(std::string_view text);
    /// What was held back, when the reply ended otherwise.
    std::string flush();
    bool stopped() const { return stopped_; }

  private:
    std::vector<std::string> stops_;
    std::string held_;
    bool stopped_ = false;
};

}  // namespace tenon::engine
