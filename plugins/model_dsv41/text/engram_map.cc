// SPDX-License-Identifier: MIT
// Classes of tokens by their folded text.
#include "text/engram_map.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <unordered_map>

#include "text/utf8.h"

namespace tenon::dsv41 {

namespace {

bool is_blank(char32_t c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

Result<std::string> normalise(const icu::Normalizer2* form, const std::string& text,
                              UErrorCode& code) {
    std::string out;
    if (U_SUCCESS(code)) {
        icu::StringByteSink<std::string> sink(&out);
        form->normalizeUTF8(0, text, sink, nullptr, code);
    }
    if (U_FAILURE(code)) {
        return error(Code::internal, "Unicode normalisation failed: {}", u_errorName(code));
    }
    return out;
}

/// Without combining marks, lower case, runs of blanks as one space.
std::string fold(std::string_view text) {
    std::string out;
    bool in_blanks = false;
    for (size_t at = 0; at < text.size();) {
        const char32_t c = next_utf8(text, at);
        if ((U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_M_MASK) != 0) {
            continue;
        }
        if (!is_blank(c)) {
            append_utf8(out, static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))));
        } else if (!in_blanks) {
            out += ' ';
        }
        in_blanks = is_blank(c);
    }
    return out;
}

std::string_view strip(std::string_view text) {
    size_t begin = text.size(), end = 0;
    for (size_t at = 0; at < text.size();) {
        const size_t first = at;
        if (!u_isUWhiteSpace(static_cast<UChar32>(next_utf8(text, at)))) {
            begin = std::min(begin, first);
            end = at;
        }
    }
    return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

}  // namespace

Result<std::string> engram_key(std::string_view text) {
    UErrorCode code = U_ZERO_ERROR;
    const icu::Normalizer2* nfkc = icu::Normalizer2::getNFKCInstance(code);
    const icu::Normalizer2* nfd = icu::Normalizer2::getNFDInstance(code);
    TENON_ASSIGN(const std::string composed, normalise(nfkc, std::string(text), code));
    TENON_ASSIGN(const std::string decomposed, normalise(nfd, composed, code));
    const std::string folded = fold(decomposed);
    // A lone space is a word of its own; every other text loses the white space around it.
    const std::string_view key = folded == " " ? std::string_view(folded) : strip(folded);
    return std::string(key.empty() ? text : key);
}

Result<EngramTokenMap> build_engram_token_map(const Tokenizer& tokenizer) {
    EngramTokenMap map;
    map.classes.reserve(static_cast<size_t>(tokenizer.size()));
    std::unordered_map<std::string, int32_t> class_of;
    class_of.reserve(static_cast<size_t>(tokenizer.size()));
    for (int32_t id = 0; id < tokenizer.size(); ++id) {
        const std::string text = to_valid_utf8(tokenizer.bytes(id));
        std::string key;
        if (text.find(kReplacement) != std::string::npos) {
            key = tokenizer.raw(id);  // part of a character: only itself
        } else {
            TENON_ASSIGN(key, engram_key(text));
        }
        map.classes.push_back(class_of.emplace(std::move(key), map.class_count).first->second);
        map.class_count = static_cast<int32_t>(class_of.size());
    }
    return map;
}

}  // namespace tenon::dsv41
