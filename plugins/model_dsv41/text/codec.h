// SPDX-License-Identifier: MIT
// The text codec of the family as the rest of the engine sees it.
#pragma once

#include <string>

#include "tenon/text.h"

namespace tenon::dsv41 {

struct CodecOptions {
    bool thinking = true;        ///< replies think unless the request says otherwise
    int32_t effort = 75;         ///< effort where a request names none, 1…100
    std::string efforts_json{};  ///< {"low": 50, …}: names of efforts; "" = docs/chat-encoding.md 2
    bool text_specials = false;  ///< special strings in client text become control tokens
    int32_t image_id = -1;       ///< config.json's image_token_id, -1 = not known
};

/// A codec for one tokenizer.json. Thread-safe and const once made.
///
/// errors  invalid_argument, unsupported: tokenizer.json or an option, named
Status make_codec(StrView tokenizer_json, const CodecOptions& options, TextCodec** out);

}  // namespace tenon::dsv41
