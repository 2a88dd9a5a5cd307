// SPDX-License-Identifier: MIT
// Fuzz target: any tokenizer.json is refused or gives a tokenizer that returns every text it
// encoded.
#include <cstdlib>

#include "text/engram_map.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace tenon::dsv41;
    const auto loaded = Tokenizer::load({reinterpret_cast<const char*>(data), size});
    if (!loaded.ok()) {
        return 0;
    }
    const std::string_view text = "The <think> cat's  hat:\n\t 1234 naïve 日本😀 <x>";
    for (const auto specials : {Tokenizer::Specials::as_text, Tokenizer::Specials::parsed}) {
        Tokenizer::Scratch scratch = loaded->make_scratch();
        std::vector<int32_t> ids;
        if (!loaded->encode(text, specials, scratch, ids).ok()) {
            continue;  // a pattern that the matcher gave up on
        }
        const auto decoded = loaded->decode(ids, false);
        if (!decoded.ok() || (specials == Tokenizer::Specials::as_text && *decoded != text)) {
            std::abort();
        }
    }
    if (!build_engram_token_map(*loaded).ok()) {
        std::abort();
    }
    return 0;
}
