// SPDX-License-Identifier: MIT
// What the sources of the scripted model share: its sizes and the form of its refusals.
#pragma once

#include "tenon/base.h"

namespace tenon::fakes::scripted {

constexpr int32_t kVocab = 288;  // a few logits beyond the tokenizer, as real models have
constexpr int32_t kWindow = 8;   // ring rows that a row looks back at

inline Status wrong(uint64_t step, std::string_view what) {
    return error(Code::internal, "scripted model, step {}: {}", step, what);
}

}  // namespace tenon::fakes::scripted
