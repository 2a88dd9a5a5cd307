// SPDX-License-Identifier: MIT
// The control tokens of the dsv41 chat format, by name, and their ids in one vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "text/tokenizer.h"

namespace tenon::dsv41 {

enum class Control : uint32_t {
    bos,
    eos,
    pad,
    system,
    user,
    assistant,
    think_open,
    think_close,
    reminder,
    image,
    dsml,
    action,
    query,
    authority,
    domain,
    title,
    read_url,
};
constexpr size_t kControls = 17;

constexpr std::string_view control_text(Control control) {
    constexpr std::string_view kTexts[kControls] = {
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜▁pad▁｜>",
        "<｜System｜>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<think>",
        "</think>",
        "<｜latest_reminder｜>",
        "<｜deepseek_image｜>",
        "｜DSML｜",
        "<｜action｜>",
        "<｜query｜>",
        "<｜authority｜>",
        "<｜domain｜>",
        "<｜title｜>",
        "<｜read_url｜>",
    };
    return kTexts[static_cast<size_t>(control)];
}

/// Ids of the control tokens; -1 where the vocabulary has none. Only a request that needs such a
/// token fails.
class ControlTokens {
  public:
    ControlTokens() { ids_.fill(-1); }
    explicit ControlTokens(const Tokenizer& tokenizer) {
        for (size_t i = 0; i < kControls; ++i) {
            ids_[i] = tokenizer.find(control_text(static_cast<Control>(i))).value_or(-1);
        }
    }
    int32_t id(Control control) const { return ids_[static_cast<size_t>(control)]; }

  private:
    std::array<int32_t, kControls> ids_;
};

}  // namespace tenon::dsv41
