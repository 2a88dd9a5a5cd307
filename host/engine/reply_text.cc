// SPDX-License-Identifier: MIT
// Both forms of ReplyText, and the stop-string cutter of the raw one.
#include "host/engine/reply_text.h"

#include <algorithm>

namespace tenon::engine {
namespace {

class ParsedText final : public ReplyText {
  public:
    explicit ParsedText(Ref<ReplyParser> parser) : parser_(std::move(parser)) {}

    Status feed(Span<const int32_t> ids, ReplyEvents& events) override {
        return parser_->feed(ids, events);
    }
    Status finish(ReplyEnd end, ReplyEvents& events) override {
        return parser_->finish(end, events);
    }
    int64_t reasoning_tokens() override { return parser_->reasoning_tokens(); }

  private:
    Ref<ReplyParser> parser_;
};

class RawText final : public ReplyText {
  public:
    RawText(Ref<StreamDecoder> decoder, std::vector<std::string> stops)
        : decoder_(std::move(decoder)), cutter_(std::move(stops)) {}

    Status feed(Span<const int32_t> ids, ReplyEvents& events) override {
        emit(cutter_.feed(decoder_->feed(ids).view()), events);
        return {};
    }
    Status finish(ReplyEnd end, ReplyEvents& events) override {
        emit(cutter_.feed(decoder_->flush().view()), events);
        emit(cutter_.flush(), events);
        ReplyEvent last;
        last.kind = ReplyEventKind::finish;
        last.text = end == ReplyEnd::length && !cutter_.stopped() ? "length" : "stop";
        events.on_event(last);
        return {};
    }
    int64_t reasoning_tokens() override { return 0; }

  private:
    static void emit(const std::string& text, ReplyEvents& events) {
        if (!text.empty()) {
            ReplyEvent event;
            event.text = text;
            events.on_event(event);
        }
    }

    Ref<StreamDecoder> decoder_;
    StopCutter cutter_;
};

}  // namespace

Result<std::unique_ptr<ReplyText>> make_parsed_text(TextCodec& codec,
                                                    const ReplyParserConfig& config) {
    Ref<ReplyParser> parser;
    TENON_TRY(codec.make_parser(config, parser.out()));
    return std::unique_ptr<ReplyText>(std::make_unique<ParsedText>(std::move(parser)));
}

Result<std::unique_ptr<ReplyText>> make_raw_text(TextCodec& codec, Span<const StrView> stops) {
    Ref<StreamDecoder> decoder;
    TENON_TRY(codec.make_decoder(kSkipSpecials, decoder.out()));
    std::vector<std::string> copies;
    for (const StrView& stop : stops) {
        copies.push_back(stop.str());
    }
    return std::unique_ptr<ReplyText>(
        std::make_unique<RawText>(std::move(decoder), std::move(copies)));
}

std::string StopCutter::feed(std::string_view text) {
    if (stopped_) {
        return {};
    }
    held_ += text;
    size_t first = std::string::npos;
    for (const std::string& stop : stops_) {
        first = std::min(first, held_.find(stop));
    }
    if (first != std::string::npos) {
        stopped_ = true;
        std::string out = held_.substr(0, first);
        held_.clear();
        return out;
    }
    size_t keep = 0;  // longest end of the text that begins a stop string
    for (const std::string& stop : stops_) {
        for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
            if (std::string_view(held_).substr(held_.size() - n) ==
                std::string_view(stop).substr(0, n)) {
                keep = n;
                break;
            }
        }
    }
    std::string out = held_.substr(0, held_.size() - keep);
    held_.erase(0, out.size());
    return out;
}

std::string StopCutter::flush() {
    return std::exchange(held_, {});
}

}  // namespace tenon::engine
