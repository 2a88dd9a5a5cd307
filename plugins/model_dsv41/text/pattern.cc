// SPDX-License-Identifier: MIT
// Compiles splitter patterns and walks their matches.
#include "text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace tenon::dsv41 {

namespace {

struct Addition {
    char category;
    const char* ranges;  // in the syntax of a character class
};

// Characters that Unicode 15, 15.1 and 16 added to each general category after 14. No character
// left one of these categories since, so naming them beside \p{…} is right for every later PCRE2 as
// well.
constexpr Addition kAdditions[] = {
    {'L',
     "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}"
     "\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}"
     "\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}"
     "\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}"
     "\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}"
     "\\x{16D40}-\\x{16D6C}\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}"
     "\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}"
     "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"},
    {'M',
     "\\x{897}\\x{CF3}\\x{ECE}\\x{10D69}-\\x{10D6D}\\x{10EFC}-\\x{10EFF}\\x{11241}"
     "\\x{113B8}-\\x{113C0}\\x{113C2}\\x{113C5}\\x{113C7}-\\x{113CA}\\x{113CC}-\\x{113D0}"
     "\\x{113D2}\\x{113E1}-\\x{113E2}\\x{11F00}-\\x{11F01}\\x{11F03}\\x{11F34}-\\x{11F3A}"
     "\\x{11F3E}-\\x{11F42}\\x{11F5A}\\x{13440}\\x{13447}-\\x{13455}\\x{1611E}-\\x{1612F}"
     "\\x{1E08F}\\x{1E4EC}-\\x{1E4EF}\\x{1E5EE}-\\x{1E5EF}"},
    {'N',
     "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"
     "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}"
     "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}"},
    {'P',
     "\\x{1B4E}-\\x{1B4F}\\x{1B7F}\\x{10D6E}\\x{113D4}-\\x{113D5}\\x{113D7}-\\x{113D8}"
     "\\x{11B00}-\\x{11B09}\\x{11BE1}\\x{11F43}-\\x{11F4F}\\x{16D6D}-\\x{16D6F}\\x{1E5FF}"},
    {'S',
     "\\x{2427}-\\x{2429}\\x{2FFC}-\\x{2FFF}\\x{31E4}-\\x{31E5}\\x{31EF}\\x{10D8E}-\\x{10D8F}"
     "\\x{1CC00}-\\x{1CCEF}\\x{1CD00}-\\x{1CEB3}\\x{1F6DC}\\x{1F774}-\\x{1F776}"
     "\\x{1F77B}-\\x{1F77F}\\x{1F7D9}\\x{1F8B2}-\\x{1F8BB}\\x{1F8C0}-\\x{1F8C1}"
     "\\x{1FA75}-\\x{1FA77}\\x{1FA87}-\\x{1FA89}\\x{1FA8F}\\x{1FAAD}-\\x{1FAAF}"
     "\\x{1FABB}-\\x{1FABF}\\x{1FAC6}\\x{1FACE}-\\x{1FACF}\\x{1FADA}-\\x{1FADC}\\x{1FADF}"
     "\\x{1FAE8}-\\x{1FAE9}\\x{1FAF7}-\\x{1FAF8}\\x{1FBCB}-\\x{1FBEF}"},
};

// The White_Space property.
constexpr std::string_view kSpace =
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{"
    "205F}\\x{3000}";

const char* additions_of(char category) {
    for (const Addition& addition : kAdditions) {
        if (addition.category == category) {
            return addition.ranges;
        }
    }
    return nullptr;
}

Status unsupported(std::string_view what, std::string_view pattern) {
    return error(Code::unsupported, "pattern {}: {} is not supported", pattern, what);
}

std::string message_of(int failure) {
    PCRE2_UCHAR message[160] = {};
    pcre2_get_error_message(failure, message, sizeof message);
    return reinterpret_cast<const char*>(message);
}

}  // namespace

Result<std::string> widen_classes(std::string_view pattern) {
    std::string out;
    bool in_class = false;
    size_t class_begin = 0;
    for (size_t i = 0; i < pattern.size(); ++i) {
        const char c = pattern[i];
        if (c == '\\' && i + 1 < pattern.size()) {
            const char escape = pattern[i + 1];
            const std::string_view rest = pattern.substr(i);
            const bool is_general = rest.size() >= 5 && rest[2] == '{' && rest[4] == '}';
            const char* added =
                is_general && (escape == 'p' || escape == 'P') ? additions_of(rest[3]) : nullptr;
            if (added != nullptr) {
                if (escape == 'P' && in_class) {
                    return unsupported("\\P inside a character class", pattern);
                }
                const std::string members = "\\p{" + std::string(1, rest[3]) + "}" + added;
                out += in_class        ? members
                       : escape == 'p' ? "[" + members + "]"
                                       : "[^" + members + "]";
                i += 4;
            } else if (escape == 's' || escape == 'S') {
                if (escape == 'S' && in_class) {
                    return unsupported("\\S inside a character class", pattern);
                }
                out += in_class ? std::string(kSpace)
                                : (escape == 's' ? "[" : "[^") + std::string(kSpace) + "]";
                ++i;
            } else if (escape == 'h' || escape == 'H' || escape == 'R' || escape == 'X') {
                return unsupported("\\" + std::string(1, escape), pattern);
            } else {
                out += c;
                out += escape;
                ++i;
            }
            continue;
        }
        if (in_class) {
            const bool is_first =
                i == class_begin + 1 || (i == class_begin + 2 && pattern[i - 1] == '^');
            if (c == '[' && (i + 1 >= pattern.size() || pattern[i + 1] != ':')) {
                return unsupported("a class inside a class", pattern);
            }
            if (c == '&' && i + 1 < pattern.size() && pattern[i + 1] == '&') {
                return unsupported("&& inside a character class", pattern);
            }
            if (c == '[') {  // [:name:]
                const size_t end = pattern.find(":]", i + 2);
                if (end == std::string_view::npos) {
                    return unsupported("an open [: inside a character class", pattern);
                }
                out += pattern.substr(i, end + 2 - i);
                i = end + 1;
                continue;
            }
            if (c == ']' && !is_first) {
                in_class = false;
            }
        } else if (c == '[') {
            in_class = true;
            class_begin = i;
        }
        out += c;
    }
    return out;
}

struct Pattern::Regex {
    pcre2_code* code = nullptr;
    ~Regex() { pcre2_code_free(code); }
};

struct Pattern::Scratch::State {
    pcre2_match_data* data = nullptr;
    // The match behind the piece that was given out last; consumed by the next call.
    size_t match_begin = 0, match_end = 0;
    bool has_match = false;
    ~State() { pcre2_match_data_free(data); }
};

Pattern::Scratch::Scratch() : state_(std::make_unique<State>()) {}
Pattern::Scratch::Scratch(Scratch&&) noexcept = default;
Pattern::Scratch::~Scratch() = default;

Pattern::Pattern(std::unique_ptr<Regex> regex) : regex_(std::move(regex)) {}
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Result<Pattern> Pattern::compile(std::string_view pattern) {
    TENON_ASSIGN(const std::string widened, widen_classes(pattern));
    int failure = 0;
    PCRE2_SIZE offset = 0;
    auto compiled = std::make_unique<Regex>();
    compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(widened.data()), widened.size(),
                                   PCRE2_UTF | PCRE2_UCP, &failure, &offset, nullptr);
    if (compiled->code == nullptr) {
        return error(Code::invalid_argument, "pattern {}: {} (at byte {} of its expanded form)",
                     pattern, message_of(failure), offset);
    }
    uint32_t matches_empty = 0;
    static_cast<void>(pcre2_pattern_info(compiled->code, PCRE2_INFO_MATCHEMPTY, &matches_empty));
    if (matches_empty != 0) {
        return unsupported("an empty match", pattern);
    }
    // Without executable memory the interpreter runs instead, with the same results.
    static_cast<void>(pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE));
    return Pattern(std::move(compiled));
}

Pattern::Scratch Pattern::make_scratch() const {
    Scratch scratch;
    scratch.state_->data = pcre2_match_data_create(1, nullptr);
    return scratch;
}

Status Pattern::next(std::string_view text, size_t begin, Scratch& scratch, size_t& end) const {
    Scratch::State& state = *scratch.state_;
    if (state.has_match && state.match_begin == begin) {
        end = state.match_end;
        state.has_match = false;
        return {};
    }
    if (state.data == nullptr) {
        return Status(Code::does_not_fit, "out of host memory");
    }
    const int found = pcre2_match(regex_->code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), begin, PCRE2_NO_UTF_CHECK, state.data, nullptr);
    if (found == PCRE2_ERROR_NOMATCH) {
        end = text.size();
        return {};
    }
    if (found < 0) {
        return error(Code::internal, "splitting text at byte {}: {}", begin, message_of(found));
    }
    const PCRE2_SIZE* match = pcre2_get_ovector_pointer(state.data);
    state.has_match = match[0] > begin;
    state.match_begin = match[0];
    state.match_end = match[1];
    end = state.has_match ? match[0] : match[1];
    return {};
}

}  // namespace tenon::dsv41
