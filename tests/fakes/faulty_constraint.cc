// SPDX-License-Identifier: MIT
// A compiler of `choice` grammars that breaks one rule of tenon/constraint.h, chosen by the option
// `fault`: the suite must notice each.
#include "faulty.h"
#include "tenon/constraint.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace tenon::testing {
namespace {

struct Words {
    std::vector<std::string> tokens;
    std::vector<int32_t> ends;
    std::string fault;

    bool is_end(int32_t id) const { return std::find(ends.begin(), ends.end(), id) != ends.end(); }
};

class Choice final : public Implements<Choice, TokenConstraint> {
  public:
    Choice(std::shared_ptr<const Words> words, std::vector<std::string> texts)
        : words_(std::move(words)), texts_(std::move(texts)) {}
    ~Choice() = default;

    int32_t walk(Span<const int32_t> candidates) noexcept override {
        State state = state_;
        int32_t legal = 0;
        while (legal < static_cast<int32_t>(candidates.size) &&
               step(&state, candidates[static_cast<size_t>(legal)])) {
            ++legal;
        }
        if (words_->fault == "walk_moves") {
            state_ = state;
        }
        return legal;
    }

    Status fill(Span<const int32_t> drafts, Span<uint32_t> masks,
                int64_t words_per_row) noexcept override {
        const auto vocabulary = static_cast<int32_t>(words_->tokens.size());
        const bool fits = words_per_row * 32 >= vocabulary &&
                          static_cast<int64_t>(masks.size) >=
                              static_cast<int64_t>(drafts.size + 1) * words_per_row;
        State state = state_;
        if (!fits || walk(drafts) != static_cast<int32_t>(drafts.size)) {
            if (words_->fault == "writes_anyway" && masks.size > 0) {
                masks[0] = 1;
            }
            return error(Code::invalid_argument, "masks do not fit, or drafts are illegal");
        }
        for (size_t row = 0; row <= drafts.size; ++row) {
            uint32_t* mask = masks.data + row * static_cast<size_t>(words_per_row);
            std::fill(mask, mask + words_per_row, words_->fault == "sets_padding" ? ~0U : 0U);
            for (int32_t id = 0; id < vocabulary; ++id) {
                State next = words_->fault == "first_row_only" ? state_ : state;
                const uint32_t bit = 1U << (id % 32);
                mask[id / 32] = step(&next, id) ? mask[id / 32] | bit : mask[id / 32] & ~bit;
            }
            if (row < drafts.size) {
                step(&state, drafts[row]);
            }
        }
        return {};
    }

    Status accept(Span<const int32_t> emitted) noexcept override {
        State state = state_;
        for (size_t i = 0; i < emitted.size; ++i) {
            if (!step(&state, emitted[i])) {
                if (words_->fault == "half_accepts") {
                    state_ = state;
                }
                return error(Code::invalid_argument, "token {} at {} is not in the grammar",
                             emitted[i], i);
            }
        }
        state_ = state;
        return {};
    }

    bool complete() noexcept override {
        if (words_->fault == "never_complete" || state_.ended) {
            return false;
        }
        State state = state_;
        for (int32_t id = 0; id < static_cast<int32_t>(words_->tokens.size()); ++id) {
            State next = state;
            if (!words_->is_end(id) && step(&next, id)) {
                return false;
            }
        }
        return true;
    }

  private:
    struct State {
        std::string text;
        bool ended = false;
    };

    bool step(State* state, int32_t id) const {
        if (id < 0 || id >= static_cast<int32_t>(words_->tokens.size()) ||
            (state->ended && words_->fault != "goes_on")) {
            return false;
        }
        if (words_->is_end(id)) {
            state->ended = std::find(texts_.begin(), texts_.end(), state->text) != texts_.end();
            return state->ended || words_->fault == "ends_anywhere";
        }
        const std::string& token = words_->tokens[static_cast<size_t>(id)];
        const std::string longer = state->text + token;
        const bool legal =
            !token.empty() && std::any_of(texts_.begin(), texts_.end(), [&](const std::string& t) {
                return t.compare(0, longer.size(), longer) == 0;
            });
        if (legal) {
            state->text = longer;
        }
        return legal;
    }

    std::shared_ptr<const Words> words_;
    std::vector<std::string> texts_;
    State state_;
};

class Compiler final : public Implements<Compiler, ConstraintCompiler> {
  public:
    Compiler(Host&, std::string fault) : fault_(std::move(fault)) {}
    ~Compiler() = default;

    Status use(const TokenVocabulary& vocabulary) noexcept override {
        return guard([&]() -> Status {
            const auto size = static_cast<int32_t>(vocabulary.bytes.size);
            auto words = std::make_shared<Words>();
            for (const int32_t end : vocabulary.end_ids) {
                if (fault_ != "any_end" && (end < 0 || end >= size)) {
                    return error(Code::invalid_argument, "end token {} of {}", end, size);
                }
            }
            if (size == 0) {
                return error(Code::invalid_argument, "an empty vocabulary");
            }
            for (const StrView& bytes : vocabulary.bytes) {
                words->tokens.push_back(bytes.str());
            }
            words->ends.assign(vocabulary.end_ids.begin(), vocabulary.end_ids.end());
            words->fault = fault_;
            words_ = std::move(words);
            return {};
        });
    }

    Status compile(StrView kind, StrView source, TokenConstraint** out) noexcept override {
        return guard([&]() -> Status {
            if (kind != StrView("choice")) {
                return error(Code::unsupported, "{}: only choice", kind);
            }
            // Strings without escapes but \uXXXX below U+0800: what the suite sends.
            std::vector<std::string> texts;
            const std::string text = source.str();
            size_t at = 0;
            while ((at = text.find('"', at)) != std::string::npos) {
                const size_t close = text.find('"', at + 1);
                if (close == std::string::npos) {
                    break;
                }
                texts.push_back(unescaped(text.substr(at + 1, close - at - 1)));
                at = close + 1;
            }
            if ((text.empty() || text.back() != ']') && fault_ != "takes_anything") {
                return error(Code::invalid_argument, "byte {}: the array does not end",
                             text.size());
            }
            if (fault_ == "swaps_words") {
                std::reverse(texts[0].begin(), texts[0].end());
            }
            *out = new Choice(words_, std::move(texts));
            return {};
        });
    }

  private:
    static std::string unescaped(const std::string& in) {
        std::string out;
        for (size_t i = 0; i < in.size(); ++i) {
            if (in.compare(i, 2, "\\u") != 0) {
                out += in[i];
                continue;
            }
            const auto code = static_cast<unsigned>(std::stoul(in.substr(i + 2, 4), nullptr, 16));
            out += static_cast<char>(0xc0 | code >> 6);
            out += static_cast<char>(0x80 | (code & 63));
            i += 5;
        }
        return out;
    }

    const std::string fault_;
    std::shared_ptr<const Words> words_;
};

constexpr OptionSpec kOptions[] = {
    fault_option("none|walk_moves|writes_anyway|sets_padding|first_row_only|half_accepts|"
                 "never_complete|goes_on|ends_anywhere|any_end|takes_anything|swaps_words")};

constexpr Component kComponents[] = {
    faulty_component<Compiler>(PluginKind::constraint, "faulty_constraint", kOptions)};

}  // namespace
}  // namespace tenon::testing

TENON_PLUGIN("faulty_constraint", "0.1.0", "Breaks one rule of grammars", "MIT", experimental,
             tenon::testing::kComponents)
