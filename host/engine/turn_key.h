// SPDX-License-Identifier: MIT
// Keys by which the replay memory finds an assistant turn: the prompt before it, and what of it a
// client sends back.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "host/engine/sha256.h"
#include "tenon/text.h"

namespace tenon::engine {

using Digest = std::array<uint8_t, 32>;

/// A running digest of the prompt of one caller (Engine::cache_salt).
Sha256 prompt_sha(uint64_t cache_salt);

/// How exactly the visible message has to agree.
enum class TurnMatch {
    text,      ///< content byte for byte, calls without their ids
    call_ids,  ///< ids of the calls; the content may have other blanks around it
};

/// Key of a turn. `with_reasoning` false: as if the message had none.
Digest turn_key(const Digest& prompt, const VisibleTurn& turn, bool with_reasoning,
                TurnMatch match);

/// JSON without blanks between tokens and with one spelling of each string. Text that is no JSON
/// comes out as some text, always the same.
std::string plain_json(std::string_view json);

/// A turn while its reply is delivered. One thread.
struct RecordedTurn {
    struct Call {
        std::string id, name, arguments;
    };

    Digest prompt{};  ///< of all prompt ids but the last, the marker of reasoning
    bool starts_reasoning = false;
    bool is_odd = false;       ///< holds what cannot be sent back; it is not kept
    std::vector<int32_t> ids;  ///< sampled, without end tokens
    std::string reasoning, content;
    std::vector<Call> calls;

    void add(const ReplyEvent& event);
    std::vector<VisibleCall> visible_calls() const;
};

}  // namespace tenon::engine
