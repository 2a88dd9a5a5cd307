// SPDX-License-Identifier: MIT
// One reply of one request: what the engine and the delivery thread know about it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/engine/sink.h"
#include "tenon/model.h"

namespace tenon {

/// What all replies of a request share; immutable after submit.
struct RequestData {
    uint64_t id = 0;
    uint64_t arrival_seq = 0;
    int64_t arrival_us = 0;
    int64_t deadline_us = 0;  ///< absolute, 0 = none
    bool background = false;
    std::vector<int32_t> tokens;
    SamplingParams sampling;  ///< its spans are unused: the copies below hold
    std::vector<plan::Pair> bias;
    std::vector<plan::Pair> counts;  ///< distinct prompt tokens, with penalties only
    std::vector<int32_t> stop_ids;
    int64_t max_new = 0;
    uint32_t flags = 0;
    std::string label;
    std::shared_ptr<SinkState> sink;
};

enum class StreamState : uint32_t { waiting, prefilling, decoding, done };

/// Where a stream belongs: the engine thread owns everything but `delivery`.
struct ReplyStream {
    std::shared_ptr<RequestData> request;  // replies of one request share it
    int32_t reply = 0;
    uint64_t seed = 0;
    StreamState state = StreamState::waiting;
    int32_t slot = -1;
    uint32_t generation = 0;
    int64_t length = 0;   ///< positions whose state is computed
    int32_t pending = 0;  ///< token[length]
    int64_t emitted = 0;
    bool opened = false;  ///< its open is in a submitted plan
    bool sampler_sent = false;
    int64_t blocked_since = 0;
    std::vector<int32_t> pages;
    Ref<StopMatcher> stop;
    ReplyTimings timings;
    int64_t admitted_us = 0, prefilled_us = 0;

    /// Delivery thread only.
    struct Delivery {
        Ref<ReplyParser> parser;
        Ref<StreamDecoder> raw;          ///< completions: no parser
        std::vector<std::string> stops;  ///< completions: matched in the text
        std::string held;
        bool stopped = false;
        std::vector<uint8_t> sha;  ///< SHA-256 context's input is hashed at the end
        std::vector<int32_t> ids;
    } delivery;
};

using StreamPtr = std::shared_ptr<ReplyStream>;

}  // namespace tenon
