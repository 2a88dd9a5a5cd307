// SPDX-License-Identifier: MIT
// States and transitions of the reply automaton.
#include "text/reply_machine.h"

#include <algorithm>

#include "text/control_tokens.h"

namespace tenon::dsv41 {

namespace {

constexpr std::string_view kMarker = control_text(Control::dsml);
constexpr std::string_view kThinkClose = control_text(Control::think_close);
constexpr std::string_view kInvoke = "invoke name=\"";
constexpr std::string_view kParameter = "parameter name=\"";
// What follows "</｜DSML｜" at the end of a block: the V4.1 name, and that of V4.
constexpr std::string_view kBlockEnds[] = {" calls>", "tool_calls>"};
constexpr size_t kWindow = 20;  // longer than the patterns above

void add(std::vector<ParsedEvent>& out, ReplyEventKind kind, int32_t index, std::string_view text) {
    if (text.empty() && kind != ReplyEventKind::call) {
        return;
    }
    if (!out.empty() && out.back().kind == kind && out.back().index == index &&
        kind != ReplyEventKind::call) {
        out.back().text += text;
    } else {
        out.push_back(ParsedEvent{kind, index, std::string(text), {}});
    }
}

uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

}  // namespace

ReplyMachine::ReplyMachine(MachineConfig config)
    : config_(std::move(config)), stops_(config_.stops) {
    switch (config_.start) {
        case MachineStart::reasoning:
        case MachineStart::reasoning_continued:
            state_ = State::reasoning;
            break;
        case MachineStart::calls:
            state_ = State::block;
            break;
        default:
            state_ = State::content;
    }
    prose_state_ = state_ == State::reasoning ? State::reasoning : State::content;
    trims_ = config_.start == MachineStart::reasoning || config_.start == MachineStart::content;
}

bool ReplyMachine::in_reasoning() const {
    return state_ == State::reasoning ||
           (state_ == State::block && !saw_call_ && prose_state_ == State::reasoning);
}

std::string ReplyMachine::call_id() const {
    static constexpr std::string_view kAlphabet =
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    std::string id = "call_";
    uint64_t state = mix(config_.call_id_seed ^ mix(static_cast<uint64_t>(calls_)));
    for (int i = 0; i < 24; ++i) {
        state = mix(state);
        id += kAlphabet[state % kAlphabet.size()];
    }
    return id;
}

template <class Write>
void ReplyMachine::arguments(std::vector<ParsedEvent>& out, Write&& write) {
    std::string text;
    write(*writer_, text);
    add(out, ReplyEventKind::arguments, calls_ - 1, text);
}

void ReplyMachine::text(std::string_view piece, std::vector<ParsedEvent>& out) {
    while (!piece.empty()) {
        size_t used = piece.size();
        switch (state_) {
            case State::reasoning:
            case State::content:
                prose(piece, out);
                break;
            case State::block:
                used = block(piece, out);
                break;
            case State::name:
                used = name(piece, out);
                break;
            case State::between:
                used = between(piece);
                break;
            case State::key:
                used = key(piece, out);
                break;
            case State::attributes:
                used = attributes(piece, out);
                break;
            case State::value:
                value(piece, out);
                break;
            case State::finished:
                return;
        }
        piece.remove_prefix(used);
    }
}

/// Start of the end of pending_ that may belong to a marker to come: newlines, and the bracket of a
/// block.
size_t ReplyMachine::marker_start() const {
    size_t start = pending_.size();
    // Without tools nothing in content is a marker; reasoning still loses the newlines before
    // </think>.
    if (!offers_tools() && prose_state_ == State::content) {
        return start;
    }
    if (offers_tools() && start > 0 && pending_[start - 1] == '<') {
        --start;
    }
    while (start > 0 && pending_[start - 1] == '\n') {
        --start;
    }
    return start;
}

void ReplyMachine::prose(std::string_view piece, std::vector<ParsedEvent>& out) {
    if (trims_) {
        piece.remove_prefix(std::min(piece.find_first_not_of('\n'), piece.size()));
        if (piece.empty()) {
            return;
        }
        trims_ = false;
    }
    const bool is_content = state_ == State::content;
    if (is_content && !stops_.empty()) {
        if (const auto hit = stops_.feed(piece)) {
            pending_ += piece.substr(0, hit->end);
            give_out(pending_.size() - hit->length, out);
            pending_.clear();
            has_stopped_ = true;
            state_ = State::finished;
            return;
        }
    }
    const size_t begin = pending_.size();
    pending_ += piece;
    const size_t start = marker_start();
    size_t certain = pending_.size();
    if (start < certain) {
        if (start >= begin) {
            piece_begin_ = begin;
        }
        certain = piece_begin_;
    }
    if (is_content) {
        certain = std::min(certain, pending_.size() - stops_.held());
    }
    give_out(certain, out);
}

void ReplyMachine::give_out(size_t size, std::vector<ParsedEvent>& out) {
    const bool is_reasoning = prose_state_ == State::reasoning;
    add(out, is_reasoning ? ReplyEventKind::reasoning : ReplyEventKind::content, 0,
        std::string_view(pending_).substr(0, size));
    pending_.erase(0, size);
    piece_begin_ -= std::min(piece_begin_, size);
}

void ReplyMachine::think_close(std::vector<ParsedEvent>& out) {
    switch (state_) {
        case State::block:
            if (saw_call_ || prose_state_ != State::reasoning) {
                window_.clear();
                may_close_ = false;
                break;
            }
            release_block(out);
            [[fallthrough]];
        case State::reasoning: {
            const size_t end = pending_.find_last_not_of('\n');
            give_out(end == std::string::npos ? 0 : end + 1, out);
            pending_.clear();
            piece_begin_ = 0;
            state_ = prose_state_ = State::content;
            trims_ = true;
            break;
        }
        case State::content:
            // A stray marker: what stands before it is no longer next to anything.
            trims_ = false;
            give_out(pending_.size() - stops_.held(), out);
            break;
        case State::between:
            window_.clear();
            break;
        case State::finished:
            break;
        default:
            text(kThinkClose, out);
    }
}

void ReplyMachine::dsml(std::vector<ParsedEvent>& out) {
    switch (state_) {
        case State::reasoning:
        case State::content:
            if (offers_tools() && !pending_.empty() && pending_.back() == '<') {
                open_block(out);
            } else {
                prose(kMarker, out);
            }
            break;
        case State::block:
            may_close_ = is_closing();
            close_.clear();
            window_.clear();
            if (!saw_call_) {
                block_ += kMarker;
            }
            break;
        case State::between:
            if (is_closing()) {
                arguments(out,
                          [](CallWriter& writer, std::string& text) { writer.end_call(text); });
                writer_.reset();
                state_ = State::block;
            }
            window_.clear();
            break;
        case State::attributes:
            // A tag that was never closed, and its end: the parameter has no value.
            if (std::string_view(attributes_).ends_with("</")) {
                arguments(out, [](CallWriter& writer, std::string& text) {
                    writer.begin_value(false, text);
                    writer.end_value(text);
                });
                state_ = State::between;
                window_.clear();
            } else {
                attributes_ += kMarker;
            }
            break;
        case State::value:
            if (value_end_ == "</") {
                value_end_.clear();
                arguments(out,
                          [](CallWriter& writer, std::string& text) { writer.end_value(text); });
                state_ = State::between;
                window_.clear();
            } else {
                value(kMarker, out);
            }
            break;
        case State::finished:
            break;
        default:
            text(kMarker, out);
    }
}

bool ReplyMachine::is_closing() const {
    return std::string_view(window_).ends_with("</");
}

/// pending_ ends in newlines and '<'; they stay there until a call proves that this is a block.
void ReplyMachine::open_block(std::vector<ParsedEvent>& out) {
    const size_t held_by_stops = state_ == State::content ? stops_.held() : 0;
    give_out(std::min(marker_start(), pending_.size() - held_by_stops), out);
    prose_state_ = state_;
    state_ = State::block;
    block_ = kMarker;
    window_.clear();
    may_close_ = false;
}

/// The block held no call: it was prose, and parsing goes on behind it.
void ReplyMachine::release_block(std::vector<ParsedEvent>& out) {
    state_ = prose_state_;
    const std::string held = std::exchange(block_, {});
    trims_ = false;
    prose(held, out);
}

/// Adds to the search window. Returns how much of `piece` was used when `pattern` is complete, else
/// 0.
size_t ReplyMachine::search(std::string_view piece, std::string_view pattern) {
    // A pattern may begin in the window and end in the piece; inside the piece it is found
    // directly.
    const size_t overlap = std::min(piece.size(), pattern.size());
    const std::string joined = window_ + std::string(piece.substr(0, overlap));
    size_t found = joined.find(pattern);
    size_t end = 0;
    if (found != std::string::npos) {
        end = found + pattern.size() - window_.size();
    } else if ((found = piece.find(pattern)) != std::string_view::npos) {
        end = found + pattern.size();
    }
    if (end > 0) {
        window_.clear();
        return end;
    }
    window_ += piece.substr(piece.size() - std::min(piece.size(), kWindow));
    window_.erase(0, window_.size() - std::min(window_.size(), kWindow));
    return 0;
}

size_t ReplyMachine::block(std::string_view piece, std::vector<ParsedEvent>& out) {
    for (size_t i = 0; may_close_ && i < piece.size(); ++i) {
        close_ += piece[i];
        may_close_ = std::any_of(
            std::begin(kBlockEnds), std::end(kBlockEnds),
            [&](std::string_view name) { return name.substr(0, close_.size()) == close_; });
        if (may_close_ && std::find(std::begin(kBlockEnds), std::end(kBlockEnds), close_) !=
                              std::end(kBlockEnds)) {
            if (saw_call_) {
                state_ = State::finished;
            } else {
                block_ += piece.substr(0, i + 1);
                release_block(out);
            }
            return i + 1;
        }
    }
    const size_t used = search(piece, kInvoke);
    if (used == 0) {
        if (!saw_call_) {
            block_ += piece;
        }
        return piece.size();
    }
    if (!saw_call_) {
        // A call after all. What stops held as a possible stop string is content; newlines and
        // bracket go.
        give_out(marker_start(), out);
        pending_.clear();
        piece_begin_ = 0;
        block_.clear();
        saw_call_ = true;
    }
    if (calls_ > 0 && !config_.parallel_tool_calls) {
        state_ = State::finished;
        return piece.size();
    }
    may_close_ = false;
    name_.clear();
    state_ = State::name;
    return used;
}

size_t ReplyMachine::name(std::string_view piece, std::vector<ParsedEvent>& out) {
    const size_t end = piece.find('"');
    name_ += piece.substr(0, end);
    if (end == std::string_view::npos) {
        return piece.size();
    }
    ++calls_;
    add(out, ReplyEventKind::call, calls_ - 1, name_);
    out.back().id = call_id();
    writer_ = std::make_unique<CallWriter>(config_.tools, name_);
    window_.clear();
    state_ = State::between;
    return end + 1;
}

size_t ReplyMachine::between(std::string_view piece) {
    const size_t used = search(piece, kParameter);
    if (used == 0) {
        return piece.size();
    }
    state_ = State::key;
    begins_key_ = true;
    return used;
}

size_t ReplyMachine::key(std::string_view piece, std::vector<ParsedEvent>& out) {
    const size_t end = piece.find('"');
    arguments(out, [&](CallWriter& writer, std::string& text) {
        if (std::exchange(begins_key_, false)) {
            writer.begin_parameter(text);
        }
        writer.key(piece.substr(0, end), text);
        if (end != std::string_view::npos) {
            writer.end_key(text);
        }
    });
    if (end == std::string_view::npos) {
        return piece.size();
    }
    attributes_.clear();
    state_ = State::attributes;
    return end + 1;
}

size_t ReplyMachine::attributes(std::string_view piece, std::vector<ParsedEvent>& out) {
    const size_t end = piece.find('>');
    attributes_ += piece.substr(0, end);
    if (end == std::string_view::npos) {
        return piece.size();
    }
    const bool is_string = attributes_.find("string=\"true\"") != std::string::npos;
    arguments(out,
              [&](CallWriter& writer, std::string& text) { writer.begin_value(is_string, text); });
    value_end_.clear();
    state_ = State::value;
    return end + 1;
}

void ReplyMachine::value(std::string_view piece, std::vector<ParsedEvent>& out) {
    std::string all = std::exchange(value_end_, {});
    all += piece;
    const size_t held = all.ends_with("</") ? 2 : all.ends_with('<') ? 1 : 0;
    value_end_ = all.substr(all.size() - held);
    all.resize(all.size() - held);
    arguments(out, [&](CallWriter& writer, std::string& text) { writer.value(all, text); });
}

void ReplyMachine::finish(ReplyEnd end, std::vector<ParsedEvent>& out) {
    if (state_ == State::block && !saw_call_ && end != ReplyEnd::length) {
        release_block(out);
    }
    switch (state_) {
        case State::reasoning:
        case State::content:
            give_out(pending_.size(), out);
            break;
        case State::value:
            arguments(out, [&](CallWriter& writer, std::string& text) {
                writer.value(value_end_, text);
            });
            [[fallthrough]];
        case State::between:
        case State::key:
        case State::attributes:
            arguments(out, [](CallWriter& writer, std::string& text) { writer.cut(text); });
            break;
        default:
            break;
    }
    state_ = State::finished;
    const bool was_cut = end == ReplyEnd::length && !has_stopped_;
    add(out, ReplyEventKind::finish, 0, was_cut ? "length" : calls_ > 0 ? "tool_calls" : "stop");
}

}  // namespace tenon::dsv41
