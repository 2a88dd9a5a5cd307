// SPDX-License-Identifier: MIT
// From a RequestDesc to streams: every value is checked here, on the front end's thread, before any
// HTTP 200.
#pragma once

#include <vector>

#include "host/engine/engine_settings.h"
#include "host/engine/stream.h"

namespace tenon {

/// Facts that the checks need.
struct SubmitLimits {
    int64_t context_tokens = 0;
    int32_t vocab = 0;      ///< logits of the model
    int32_t known_ids = 0;  ///< ids of the tokenizer
    int64_t now_us = 0;
    uint64_t request_id = 0, arrival_seq = 0;
};

/// Makes one stream a reply, with parser and stop matcher.
///
/// errors  invalid_argument naming the field; does_not_fit: prompt and max_tokens exceed the
/// context
Result<std::vector<StreamPtr>> make_streams(const RequestDesc& request,
                                            const EngineSettings& settings,
                                            const SubmitLimits& limits, TextCodec& codec);

}  // namespace tenon
