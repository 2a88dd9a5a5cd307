// SPDX-License-Identifier: MIT
// Fuzz target: any request body is refused with a message, or gives a prompt whose ids decode to
// its text.
#include <cstdlib>

#include "fuzz/byte_tokenizer.h"
#include "text/chat_prompt.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace tenon;
    using namespace tenon::dsv41;
    static const ControlTokens kControlIds(byte_tokenizer());
    Result<ChatRequest> request =
        parse_chat_request({reinterpret_cast<const char*>(data), size}, {});
    if (!request.ok()) {
        if (request.status().message().empty() ||
            find_invalid_utf8(request.status().message().view()) != std::string_view::npos) {
            std::abort();
        }
        return 0;
    }
    const ChatPrompt prompt = write_chat_prompt(std::move(*request));
    const auto encoded =
        encode_chat_prompt(prompt, byte_tokenizer(), kControlIds, Tokenizer::Specials::as_text);
    if (!encoded.ok()) {
        std::abort();
    }
    const auto text = byte_tokenizer().decode(encoded->ids, false);
    if (!text.ok() || *text != prompt.text ||
        encoded->image_positions.size() != prompt.images.size()) {
        std::abort();
    }
    int64_t before = 0;
    for (const Border& border : encoded->borders) {
        if (border.position <= before ||
            border.position >= static_cast<int64_t>(encoded->ids.size())) {
            std::abort();
        }
        before = border.position;
    }
    return 0;
}
