// SPDX-License-Identifier: MIT
// A tokenizer for fuzz targets: one token a byte, a few merges, and the control tokens of the chat
// format.
#pragma once

#include <cstdlib>
#include <string>

#include "text/control_tokens.h"
#include "text/json.h"
#include "text/tokenizer.h"

namespace tenon::dsv41 {

inline std::string byte_tokenizer_json() {
    std::string vocab, added;
    char32_t spare = 256;
    for (int b = 0; b < 256; ++b) {
        const bool is_printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        std::string c;
        append_utf8(c, is_printable ? static_cast<char32_t>(b) : spare++);
        vocab += b > 0 ? "," : "";
        append_json_string(vocab, c);
        vocab += ":" + std::to_string(b);
    }
    for (size_t i = 0; i < kControls; ++i) {
        added += (i > 0 ? ",{\"id\":" : "{\"id\":") + std::to_string(258 + i) + ",\"content\":";
        append_json_string(added, control_text(static_cast<Control>(i)));
        added += i < 3 ? ",\"special\":true}" : ",\"normalized\":true}";
    }
    return R"({"decoder":{"type":"ByteLevel"},"pre_tokenizer":{"type":"ByteLevel"},"added_tokens":[)" +
           added + R"(],"model":{"type":"BPE","vocab":{)" + vocab +
           R"(,"in":256,"</":257},"merges":["i n","< /"]}})";
}

inline const Tokenizer& byte_tokenizer() {
    static const Tokenizer kTokenizer = [] {
        Result<Tokenizer> loaded = Tokenizer::load(byte_tokenizer_json());
        if (!loaded.ok()) {
            std::abort();
        }
        return std::move(*loaded);
    }();
    return kTokenizer;
}

}  // namespace tenon::dsv41
