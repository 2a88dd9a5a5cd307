// SPDX-License-Identifier: MIT
// The fields of a generation request, read once into plain values.
#pragma once

#include <string>
#include <vector>

#include "generate.h"

namespace tenon::http {

struct GenerateFields {
    std::string model;
    bool stream = false, include_usage = false, return_ids = false;
    SamplingParams sampling;
    std::vector<LogitBias> bias;
    std::vector<int32_t> stop_ids;
    std::vector<std::string> stops;
    int64_t max_tokens = 0;
    int64_t replies = 1;
    bool wants_logprobs = false;
    bool drafts = true, ignore_eos = false, background = false;
    std::vector<int32_t> prompt_ids;  ///< completions with ids
    std::string prompt_text;          ///< completions with text
    bool has_ids = false;
};

/// 400 naming the first field that is wrong or not supported.
Refusal read_generate_fields(Api api, const Json& body, const EngineInfo& info,
                             const Settings& settings, int32_t known_ids, GenerateFields* out);

}  // namespace tenon::http
