// SPDX-License-Identifier: MIT
// The two inputs of the reply automaton.
#include "text/reply_reader.h"

#include <algorithm>
#include <array>

namespace tenon::dsv41 {

namespace {

struct Spelling {
    MarkerScanner::Found marker;
    std::string_view text;
};

constexpr std::array<Spelling, 3> kSpellings{{
    {MarkerScanner::Found::think_close, control_text(Control::think_close)},
    {MarkerScanner::Found::eos, control_text(Control::eos)},
    {MarkerScanner::Found::dsml, control_text(Control::dsml)},
}};
// With their brackets, so that a bracket is kept together with a marker that may follow it.
constexpr std::string_view kOpenTag = "<｜DSML｜";
constexpr std::string_view kCloseTag = "</｜DSML｜";

}  // namespace

void MarkerScanner::add(std::string_view piece) {
    buffer_.erase(0, at_);
    at_ = 0;
    piece_ = buffer_.size();
    buffer_ += piece;
}

MarkerScanner::Found MarkerScanner::next(std::string& text) {
    // Every marker begins with one of two bytes.
    const std::string_view buffer = buffer_;
    for (size_t at = at_; (at = buffer.find_first_of("<\xEF", at)) != std::string_view::npos;
         ++at) {
        for (const Spelling& spelling : kSpellings) {
            if (buffer.substr(at, spelling.text.size()) != spelling.text ||
                (spelling.marker == Found::dsml && !finds_dsml_)) {
                continue;
            }
            text.assign(buffer.substr(at_, at - at_));
            at_ = piece_ = at + spelling.text.size();
            return spelling.marker;
        }
    }
    const size_t partial = partial_marker();
    const size_t certain = partial == buffer.size() ? partial : partial >= piece_ ? piece_ : at_;
    text.assign(buffer.substr(at_, certain - at_));
    at_ = certain;
    return Found::none;
}

std::string MarkerScanner::rest() {
    std::string left = buffer_.substr(at_);
    buffer_.clear();
    at_ = piece_ = 0;
    return left;
}

/// Where the end of the buffer begins that a marker may go on from.
size_t MarkerScanner::partial_marker() const {
    constexpr size_t kLongest = control_text(Control::eos).size();
    const std::string_view buffer = buffer_;
    const size_t from = std::max(at_, buffer.size() - std::min(buffer.size(), kLongest));
    for (size_t at = from; at < buffer.size(); ++at) {
        const std::string_view end = buffer.substr(at);
        const auto goes_on = [&](std::string_view marker) {
            return marker.substr(0, end.size()) == end;
        };
        if (goes_on(control_text(Control::think_close)) || goes_on(control_text(Control::eos)) ||
            (finds_dsml_ &&
             (goes_on(control_text(Control::dsml)) || goes_on(kOpenTag) || goes_on(kCloseTag)))) {
            return at;
        }
    }
    return buffer.size();
}

ReplyReader::ReplyReader(const Tokenizer& tokenizer, const ControlTokens& controls,
                         MachineConfig config)
    : tokenizer_(tokenizer),
      eos_(controls.id(Control::eos)),
      think_close_(controls.id(Control::think_close)),
      dsml_(controls.id(Control::dsml)),
      machine_(std::move(config)),
      scanner_(machine_.offers_tools()) {}

void ReplyReader::pass(std::string& text, std::vector<ParsedEvent>& out) {
    machine_.text(text, out);
    text.clear();
}

void ReplyReader::feed(std::span<const int32_t> ids, std::vector<ParsedEvent>& out) {
    for (const int32_t id : ids) {
        if (has_ended_) {
            return;
        }
        reasoning_tokens_ += machine_.in_reasoning();
        const bool is_marker = id >= 0 && (id == think_close_ || id == dsml_ || id == eos_);
        if (is_marker) {
            assembler_.flush(text_);
        } else {
            assembler_.feed(tokenizer_.bytes(id), text_);
        }
        pass(text_, out);
        if (!is_marker) {
            continue;
        }
        if (id == think_close_) {
            machine_.think_close(out);
        } else if (id == dsml_) {
            machine_.dsml(out);
        } else {
            has_ended_ = true;
        }
    }
}

void ReplyReader::feed_text(std::string_view text, std::vector<ParsedEvent>& out) {
    if (has_ended_) {
        return;
    }
    std::string piece;
    assembler_.feed(text, piece);
    scanner_.add(piece);
    while (true) {
        const MarkerScanner::Found found = scanner_.next(text_);
        pass(text_, out);
        switch (found) {
            case MarkerScanner::Found::none:
                return;
            case MarkerScanner::Found::think_close:
                machine_.think_close(out);
                break;
            case MarkerScanner::Found::dsml:
                machine_.dsml(out);
                break;
            case MarkerScanner::Found::eos:
                has_ended_ = true;
                static_cast<void>(scanner_.rest());
                return;
        }
    }
}

void ReplyReader::finish(ReplyEnd end, std::vector<ParsedEvent>& out) {
    assembler_.drop();
    text_ = scanner_.rest();
    pass(text_, out);
    machine_.finish(has_ended_ ? ReplyEnd::eos : end, out);
}

}  // namespace tenon::dsv41
