// SPDX-License-Identifier: MIT
// Writes the prompt of a chat request: text, and which parts of it are control tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tenon/text.h"
#include "text/chat_request.h"
#include "text/control_tokens.h"
#include "text/tokenizer.h"

namespace tenon::dsv41 {

/// A prompt as text. Control tokens are marked; everything between two marks is ordinary text.
struct ChatPrompt {
    struct Mark {
        size_t offset = 0;  ///< of the control token's string in `text`
        Control control{};
    };
    struct Cut {
        size_t offset = 0;  ///< where a message ends; a mark begins here, or the text ends
        BorderKind kind = BorderKind::message_end;
    };
    struct Image {
        std::string url, path;
    };
    /// A finished assistant turn. Its header's first token is the mark at `mark`, its end the next
    /// `eos` behind it.
    struct Reply {
        size_t mark = 0;
        bool shows_reasoning = false;
        std::string reasoning, content;
        std::vector<HistoryCall> calls;  ///< without their parameters
    };

    std::string text;
    std::vector<Mark> marks;
    std::vector<Cut> cuts;
    std::vector<Image> images;   ///< in the order of the marks `image`
    std::vector<Reply> replies;  ///< ascending
    ReplyStart start = ReplyStart::content;
};

/// Renders a request (docs/chat-encoding.md 3). Every request has a prompt.
ChatPrompt write_chat_prompt(ChatRequest request);

struct EncodedPrompt {
    std::vector<int32_t> ids;
    std::vector<Border> borders;           ///< ascending; the last is last_header at ids.size() - 1
    std::vector<int64_t> image_positions;  ///< of the placeholders
};

/// Turns a prompt into ids: marks to their token, the text between them as ordinary text, or with
/// its special strings parsed if `specials` says so. Turns that `replay` knows become its ids;
/// null: none.
///
/// errors  unsupported: the vocabulary lacks a control token of this prompt (names it);
/// invalid_argument: with
///         parsed specials, a text that spells an image placeholder
Result<EncodedPrompt> encode_chat_prompt(const ChatPrompt& prompt, const Tokenizer& tokenizer,
                                         const ControlTokens& controls,
                                         Tokenizer::Specials specials,
                                         TurnReplay* replay = nullptr);

}  // namespace tenon::dsv41
