// SPDX-License-Identifier: MIT
// Field checks of engine.md 1.1 and 1.2, defaults, seeds.
#include "host/engine/submission.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cmath>

namespace tenon {
namespace {

Status out_of_range(const char* field, double found, const char* expected) {
    return error(Code::invalid_argument, "{}: {} is not {}", field, found, expected);
}

Status check_sampling(const SamplingParams& s, int32_t vocab) {
    const auto finite = [](float v) { return std::isfinite(v); };
    if (!finite(s.temperature) || s.temperature < 0 || s.temperature > 100) {
        return out_of_range("temperature", static_cast<double>(s.temperature), "between 0 and 100");
    }
    if (!finite(s.top_p) || s.top_p <= 0 || s.top_p > 1) {
        return out_of_range("top_p", static_cast<double>(s.top_p), "above 0 and at most 1");
    }
    if (!finite(s.min_p) || s.min_p < 0 || s.min_p >= 1) {
        return out_of_range("min_p", static_cast<double>(s.min_p), "at least 0 and below 1");
    }
    if (!finite(s.presence) || std::fabs(s.presence) > 2) {
        return out_of_range("presence_penalty", static_cast<double>(s.presence),
                            "between -2 and 2");
    }
    if (!finite(s.frequency) || std::fabs(s.frequency) > 2) {
        return out_of_range("frequency_penalty", static_cast<double>(s.frequency),
                            "between -2 and 2");
    }
    if (!finite(s.repetition) || s.repetition <= 0 || s.repetition > 2) {
        return out_of_range("repetition_penalty", static_cast<double>(s.repetition),
                            "above 0 and at most 2");
    }
    if (s.top_k < 0) {
        return out_of_range("top_k", s.top_k, "0 or more");
    }
    if (s.logprobs < -1 || s.logprobs > 20) {
        return out_of_range("top_logprobs", s.logprobs, "between 0 and 20");
    }
    if (s.bias.size > 4096) {
        return error(Code::invalid_argument, "logit_bias: {} entries, at most 4096", s.bias.size);
    }
    for (const LogitBias& b : s.bias) {
        if (b.token < 0 || b.token >= vocab || !finite(b.add)) {
            return error(Code::invalid_argument,
                         "logit_bias: token {} with {} is not a finite bias of an id below {}",
                         b.token, b.add, vocab);
        }
    }
    if (s.stop_ids.size > 15) {
        return error(Code::invalid_argument, "stop_token_ids: {} entries, at most 15",
                     s.stop_ids.size);
    }
    for (const int32_t id : s.stop_ids) {
        if (id < 0 || id >= vocab) {
            return error(Code::invalid_argument, "stop_token_ids: {} is not an id below {}", id,
                         vocab);
        }
    }
    return {};
}

uint64_t default_seed(const std::string& salt, const std::vector<int32_t>& tokens) {
    std::vector<uint8_t> text(salt.begin(), salt.end());
    const auto* bytes = reinterpret_cast<const uint8_t*>(tokens.data());
    text.insert(text.end(), bytes, bytes + tokens.size() * sizeof(int32_t));
    unsigned char hash[32];
    EVP_Digest(text.data(), text.size(), hash, nullptr, EVP_sha256(), nullptr);
    uint64_t seed = 0;
    std::memcpy(&seed, hash, sizeof seed);
    return seed;
}

Status fill_parser(const RequestDesc& r, TextCodec& codec, ReplyStream* s) {
    ReplyStream::Delivery& d = s->delivery;
    d.ids.reserve(static_cast<size_t>(std::min<int64_t>(s->request->max_new, 4096)));
    ReplyParserConfig config = r.parser;
    config.stops = r.stops;
    if ((r.flags & kRawText) != 0) {
        TENON_TRY(codec.make_decoder(0, d.raw.out()));
        for (const StrView& stop : r.stops) {
            d.stops.push_back(stop.str());
        }
        config.start = ReplyStart::content_continued;
        config.tools_json = "";
    } else {
        TENON_TRY(codec.make_parser(config, d.parser.out()));
    }
    return r.stops.empty() ? Status() : codec.make_stop(config, s->stop.out());
}

}  // namespace

Result<std::vector<StreamPtr>> make_streams(const RequestDesc& r, const EngineSettings& settings,
                                            const SubmitLimits& limits, TextCodec& codec) {
    if (r.tokens.empty()) {
        return error(Code::invalid_argument, "prompt: is empty");
    }
    const auto n = static_cast<int64_t>(r.tokens.size);
    for (uint64_t i = 0; i < r.tokens.size; ++i) {
        if (r.tokens[i] < 0 || r.tokens[i] >= limits.known_ids) {
            return error(Code::invalid_argument,
                         "prompt: token {} at position {} is not an id below {}", r.tokens[i], i,
                         limits.known_ids);
        }
    }
    if (r.replies < 1 || r.replies > 8) {
        return error(Code::invalid_argument, "n: {} is not between 1 and 8", r.replies);
    }
    if (n + 1 > limits.context_tokens) {
        return error(Code::does_not_fit,
                     "the prompt has {} tokens; the context of {} leaves no room for a reply", n,
                     limits.context_tokens);
    }
    if (r.max_new_tokens < 0) {
        return error(Code::invalid_argument, "max_tokens: {} is not 1 or more", r.max_new_tokens);
    }
    if (r.constraint != nullptr) {
        return error(Code::unsupported, "response_format: this build has no constraint plugin");
    }
    if (r.thinking_budget >= 0) {
        return error(Code::unsupported, "thinking_budget: is not supported by this version");
    }
    for (const StrView& stop : r.stops) {
        if (stop.empty()) {
            return error(Code::invalid_argument, "stop: an empty string");
        }
    }
    TENON_TRY(check_sampling(r.sampling, limits.vocab));

    auto data = std::make_shared<RequestData>();
    data->id = limits.request_id;
    data->arrival_seq = limits.arrival_seq;
    data->arrival_us = limits.now_us;
    data->deadline_us = r.deadline_us > 0 ? limits.now_us + r.deadline_us : 0;
    data->background = r.priority == Priority::background;
    data->tokens.assign(r.tokens.begin(), r.tokens.end());
    data->sampling = r.sampling;
    data->sampling.bias = {};
    data->sampling.stop_ids = {};
    data->flags = r.flags;
    data->label = r.label.str();
    const int64_t room = limits.context_tokens - n;
    data->max_new =
        r.max_new_tokens > 0 ? r.max_new_tokens : std::min(settings.sampling.max_tokens, room);
    if (data->max_new > room) {
        if (!settings.clamp_max_tokens) {
            return error(
                Code::does_not_fit,
                "max_tokens: {} and {} prompt tokens exceed the context of {}; at most {} fit",
                data->max_new, n, limits.context_tokens, room);
        }
        data->max_new = room;
    }
    for (const LogitBias& b : r.sampling.bias) {
        plan::Pair pair;
        pair.token = b.token;
        std::memcpy(&pair.bits, &b.add, sizeof pair.bits);
        data->bias.push_back(pair);
    }
    const int32_t eos = codec.info().eos;
    if ((r.flags & kIgnoreEos) == 0 && eos >= 0) {
        data->stop_ids.push_back(eos);
    }
    data->stop_ids.insert(data->stop_ids.end(), r.sampling.stop_ids.begin(),
                          r.sampling.stop_ids.end());
    const bool penalties =
        r.sampling.presence != 0 || r.sampling.frequency != 0 || r.sampling.repetition != 1;
    if (penalties) {
        std::vector<int32_t> distinct = data->tokens;
        std::sort(distinct.begin(), distinct.end());
        distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
        for (const int32_t token : distinct) {
            data->counts.push_back({token, 0x80000000u});  // in the prompt, not in the output
        }
    }
    data->sink = std::make_shared<SinkState>(data->id, r.replies);
    const uint64_t seed = r.sampling.seed_set
                              ? r.sampling.seed
                              : default_seed(settings.sampling.seed_salt, data->tokens);
    std::vector<StreamPtr> streams;
    for (int32_t j = 0; j < r.replies; ++j) {
        auto s = std::make_shared<ReplyStream>();
        s->request = data;
        s->reply = j;
        s->seed = seed + static_cast<uint64_t>(j);
        s->timings.prompt_tokens = n;
        s->timings.seed = s->seed;
        TENON_TRY(fill_parser(r, codec, s.get()));
        streams.push_back(std::move(s));
    }
    return streams;
}

}  // namespace tenon
