// SPDX-License-Identifier: MIT
// Encoding and decoding; loading is in tokenizer_load.cc.
#include "text/tokenizer.h"

#include <algorithm>

namespace tenon::dsv41 {

namespace {

// Held text of a stream decoder is given out at this size even if a character stays incomplete, so
// that a reply of nothing but broken bytes does not grow without end.
constexpr size_t kMostHeld = 4096;

}  // namespace

std::string_view Tokenizer::raw(int32_t id) const {
    if (!has(id)) {
        return {};
    }
    const Token& token = tokens_[static_cast<size_t>(id)];
    return std::string_view(raw_).substr(token.raw_begin, token.raw_size);
}

std::string_view Tokenizer::bytes(int32_t id) const {
    if (!has(id)) {
        return {};
    }
    const Token& token = tokens_[static_cast<size_t>(id)];
    return std::string_view(bytes_).substr(token.bytes_begin, token.bytes_size);
}

std::optional<int32_t> Tokenizer::find(std::string_view raw_text) const {
    const auto found =
        std::lower_bound(by_raw_.begin(), by_raw_.end(), raw_text,
                         [this](int32_t id, std::string_view text) { return raw(id) < text; });
    if (found == by_raw_.end() || raw(*found) != raw_text) {
        return std::nullopt;
    }
    return *found;
}

Tokenizer::Scratch Tokenizer::make_scratch() const {
    Scratch scratch;
    scratch.stages.reserve(stages_.size());
    for (const Pattern& stage : stages_) {
        scratch.stages.push_back(stage.make_scratch());
    }
    return scratch;
}

Status Tokenizer::encode(std::string_view text, Specials specials, Scratch& scratch,
                         std::vector<int32_t>& out) const {
    const size_t invalid = find_invalid_utf8(text);
    if (invalid != std::string_view::npos) {
        return error(Code::invalid_argument, "text is not valid UTF-8 at byte {}", invalid);
    }
    return specials == Specials::as_text
               ? encode_plain(text, 0, scratch, out)
               : encode_around(verbatim_, &normalized_, text, scratch, out);
}

Status Tokenizer::encode_around(const AddedTokens& added, const AddedTokens* then,
                                std::string_view text, Scratch& scratch,
                                std::vector<int32_t>& out) const {
    size_t at = 0;
    while (at < text.size()) {
        const AddedTokens::Match match =
            added.empty() ? AddedTokens::Match{} : added.find(text, at);
        const size_t end = match.size > 0 ? match.begin : text.size();
        const std::string_view between = text.substr(at, end - at);
        TENON_TRY(then != nullptr ? encode_around(*then, nullptr, between, scratch, out)
                                  : encode_plain(between, 0, scratch, out));
        if (match.size > 0) {
            out.push_back(match.id);
        }
        at = end + match.size;
    }
    return {};
}

Status Tokenizer::encode_plain(std::string_view text, size_t stage, Scratch& scratch,
                               std::vector<int32_t>& out) const {
    if (stage == stages_.size()) {
        bpe_.encode(text, scratch.bpe, out);
        return {};
    }
    for (size_t begin = 0; begin < text.size();) {
        size_t end = 0;
        TENON_TRY(stages_[stage].next(text, begin, scratch.stages[stage], end));
        TENON_TRY(encode_plain(text.substr(begin, end - begin), stage + 1, scratch, out));
        begin = end;
    }
    return {};
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids, bool skip_specials) const {
    std::string out;
    Utf8Assembler assembler;
    for (size_t i = 0; i < ids.size(); ++i) {
        if (!has(ids[i])) {
            return error(Code::invalid_argument,
                         "ids[{}] = {} is no token; the tokenizer has ids 0 to {}", i, ids[i],
                         size() - 1);
        }
        if (!skip_specials || !is_special(ids[i])) {
            assembler.feed(bytes(ids[i]), out);
        }
    }
    assembler.flush(out);
    return out;
}

std::string DecodeStream::feed(std::span<const int32_t> ids) {
    for (const int32_t id : ids) {
        if (!skip_specials_ || !tokenizer_.is_special(id)) {
            assembler_.feed(tokenizer_.bytes(id), held_);
        }
    }
    // The reference stream takes a trailing U+FFFD for a character to come, also when a token
    // spelled it out.
    const bool may_change =
        assembler_.has_incomplete() || std::string_view(held_).ends_with(kReplacement);
    if (may_change && held_.size() < kMostHeld) {
        return {};
    }
    return std::exchange(held_, {});
}

std::string DecodeStream::flush() {
    assembler_.flush(held_);
    return std::exchange(held_, {});
}

}  // namespace tenon::dsv41
