// SPDX-License-Identifier: MIT
// A byte-level TextCodec: ids 0…255 are bytes, control ids follow. Renders, parses and decodes for
// real.
#pragma once

#include <string>
#include <vector>

#include "tenon/text.h"

namespace tenon::fakes {

constexpr int32_t kBos = 256, kEos = 257, kThinkOpen = 258, kThinkClose = 259;
constexpr int32_t kCallOpen = 260;  ///< then the name, kCallArgs, the arguments' JSON, kCallClose
constexpr int32_t kCallArgs = 261, kCallClose = 262, kUser = 263, kAssistant = 264, kSystem = 265;
constexpr int32_t kImage = 266;      ///< forbidden
constexpr int32_t kTextVocab = 272;  ///< 267…271 exist and have no text

/// Bytes of a text as ids.
std::vector<int32_t> ids_of(std::string_view text);

/// Requests `{"messages": [{"role", "content"}], "thinking": bool, "tools": […]}`; content is a
/// string or text parts. Prompt: bos, per message a role id and the text's bytes, then kAssistant
/// and, when thinking, kThinkOpen. Thread-safe; `release` deletes.
class ScriptedCodec final : public Implements<ScriptedCodec, TextCodec> {
  public:
    TextInfo info() noexcept override;
    Status render(StrView request_json, Prompt** out) noexcept override;
    Status encode(StrView text, uint32_t flags, TokenList** out) noexcept override;
    Status decode(Span<const int32_t> ids, uint32_t flags, Blob** out) noexcept override;
    Status make_parser(const ReplyParserConfig& config, ReplyParser** out) noexcept override;
    Status make_stop(const ReplyParserConfig& config, StopMatcher** out) noexcept override;
    Status make_decoder(uint32_t flags, StreamDecoder** out) noexcept override;
    StrView token_bytes(int32_t id) noexcept override;
};

}  // namespace tenon::fakes
