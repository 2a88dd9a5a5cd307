// SPDX-License-Identifier: MIT
// UTF-8 checking and assembly by the table of well-formed sequences of the Unicode standard.
#include "text/utf8.h"

namespace tenon::dsv41 {

namespace {

/// Length of the sequence that `lead` opens (0: none) and the range of its second byte.
struct Lead {
    uint8_t length;
    unsigned char low, high;
};

constexpr Lead classify(unsigned char lead) {
    if (lead < 0x80) {
        return {1, 0, 0};
    }
    if (lead < 0xC2 || lead > 0xF4) {
        return {0, 0, 0};
    }
    if (lead < 0xE0) {
        return {2, 0x80, 0xBF};
    }
    if (lead < 0xF0) {
        // E0: no overlong forms; ED: no surrogates.
        return {3, static_cast<unsigned char>(lead == 0xE0 ? 0xA0 : 0x80),
                static_cast<unsigned char>(lead == 0xED ? 0x9F : 0xBF)};
    }
    return {4, static_cast<unsigned char>(lead == 0xF0 ? 0x90 : 0x80),
            static_cast<unsigned char>(lead == 0xF4 ? 0x8F : 0xBF)};
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
    size_t i = 0;
    while (i < text.size()) {
        const auto byte = static_cast<unsigned char>(text[i]);
        if (byte < 0x80) {
            ++i;
            continue;
        }
        const Lead lead = classify(byte);
        if (lead.length == 0 || text.size() - i < lead.length) {
            return i;
        }
        unsigned char low = lead.low, high = lead.high;
        for (size_t k = 1; k < lead.length; ++k) {
            const auto next = static_cast<unsigned char>(text[i + k]);
            if (next < low || next > high) {
                return i;
            }
            low = 0x80;
            high = 0xBF;
        }
        i += lead.length;
    }
    return std::string_view::npos;
}

void append_utf8(std::string& out, char32_t c) {
    const auto put = [&out](char32_t bits) { out.push_back(static_cast<char>(bits)); };
    if (c < 0x80) {
        put(c);
    } else if (c < 0x800) {
        put(0xC0 | (c >> 6));
        put(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        put(0xE0 | (c >> 12));
        put(0x80 | ((c >> 6) & 0x3F));
        put(0x80 | (c & 0x3F));
    } else {
        put(0xF0 | (c >> 18));
        put(0x80 | ((c >> 12) & 0x3F));
        put(0x80 | ((c >> 6) & 0x3F));
        put(0x80 | (c & 0x3F));
    }
}

char32_t next_utf8(std::string_view text, size_t& at) {
    const auto lead = static_cast<unsigned char>(text[at]);
    if (lead < 0x80) {
        ++at;
        return lead;
    }
    const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    char32_t c = lead & (0x7FU >> length);
    for (size_t k = 1; k < length; ++k) {
        c = (c << 6) | (static_cast<unsigned char>(text[at + k]) & 0x3FU);
    }
    at += length;
    return c;
}

std::string to_valid_utf8(std::string_view text) {
    std::string out;
    Utf8Assembler assembler;
    assembler.feed(text, out);
    assembler.flush(out);
    return out;
}

void Utf8Assembler::feed(std::string_view bytes, std::string& out) {
    size_t i = 0;
    while (i < bytes.size()) {
        if (held_size_ == 0) {
            const size_t begin = i;
            while (i < bytes.size() && static_cast<unsigned char>(bytes[i]) < 0x80) {
                ++i;
            }
            out.append(bytes.substr(begin, i - begin));
            if (i == bytes.size()) {
                return;
            }
        }
        put(static_cast<unsigned char>(bytes[i]), out);
        ++i;
    }
}

void Utf8Assembler::put(unsigned char byte, std::string& out) {
    if (held_size_ > 0) {
        if (byte >= low_ && byte <= high_) {
            held_[held_size_++] = static_cast<char>(byte);
            low_ = 0x80;
            high_ = 0xBF;
            if (held_size_ == need_) {
                out.append(held_, held_size_);
                held_size_ = 0;
            }
            return;
        }
        out.append(kReplacement);
        held_size_ = 0;
    }
    const Lead lead = classify(byte);
    if (lead.length == 1) {
        out.push_back(static_cast<char>(byte));
    } else if (lead.length == 0) {
        out.append(kReplacement);
    } else {
        held_[0] = static_cast<char>(byte);
        held_size_ = 1;
        need_ = lead.length;
        low_ = lead.low;
        high_ = lead.high;
    }
}

void Utf8Assembler::flush(std::string& out) {
    if (held_size_ > 0) {
        out.append(kReplacement);
        held_size_ = 0;
    }
}

}  // namespace tenon::dsv41
