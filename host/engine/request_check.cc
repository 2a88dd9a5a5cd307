// SPDX-License-Identifier: MIT
// Ranges of every request field, and the copy that the engine keeps.
#include "host/engine/request_check.h"

#include "tenon/plan_check.h"

#include <algorithm>
#include <cmath>

namespace tenon::engine {
namespace {

constexpr uint64_t kMaxStopStrings = 64;
constexpr uint64_t kMaxStopBytes = 4096;

Status bad(std::string_view field, double found, std::string_view expected) {
    return error(Code::invalid_argument, "{}: {} is out of range, expected {}", field, found,
                 expected);
}

struct FloatRule {
    const char* field;
    float value;
    float low, high;
    bool low_open, high_open;
    const char* expected;
};

Status check_floats(const SamplingParams& s) {
    constexpr float kMost = 3.4e38f;
    const FloatRule rules[] = {
        {"temperature", s.temperature, 0, kMost, false, false, "a finite number of at least 0"},
        {"top_p", s.top_p, 0, 1, true, false, "above 0, at most 1"},
        {"min_p", s.min_p, 0, 1, false, true, "at least 0, below 1"},
        {"presence_penalty", s.presence, -2, 2, false, false, "-2 to 2"},
        {"frequency_penalty", s.frequency, -2, 2, false, false, "-2 to 2"},
        {"repetition_penalty", s.repetition, 0, 2, true, false, "above 0, at most 2"},
    };
    for (const FloatRule& r : rules) {
        const bool low = r.low_open ? r.value > r.low : r.value >= r.low;
        const bool high = r.high_open ? r.value < r.high : r.value <= r.high;
        if (!std::isfinite(r.value) || !low || !high) {
            return bad(r.field, r.value, r.expected);
        }
    }
    return {};
}

Status check_id(std::string_view field, uint64_t index, int32_t id, int32_t vocab) {
    if (id < 0 || id >= vocab) {
        return error(Code::invalid_argument, "{}[{}]: token id {} is not in the vocabulary of {}",
                     field, index, id, vocab);
    }
    return {};
}

Status check_sampling(const SamplingParams& s, const RequestLimits& limits, bool ignore_eos) {
    TENON_TRY(check_floats(s));
    if (s.logprobs < -1 || s.logprobs > plan::kMaxLogprobs) {
        return bad("logprobs", s.logprobs, "0 to 20, or -1 for none");
    }
    if (s.bias.size > plan::kMaxBias) {
        return bad("logit_bias", static_cast<double>(s.bias.size), "at most 4096 entries");
    }
    for (uint64_t i = 0; i < s.bias.size; ++i) {
        TENON_TRY(check_id("logit_bias", i, s.bias[i].token, limits.vocab));
        if (!std::isfinite(s.bias[i].add)) {
            return error(Code::invalid_argument, "logit_bias[{}]: {} is not finite", i,
                         s.bias[i].add);
        }
    }
    bool has_eos = ignore_eos || limits.eos < 0;
    for (uint64_t i = 0; i < s.stop_ids.size; ++i) {
        TENON_TRY(check_id("stop_token_ids", i, s.stop_ids[i], limits.vocab));
        has_eos = has_eos || s.stop_ids[i] == limits.eos;
    }
    const uint64_t most = plan::kMaxStops - (has_eos ? 0 : 1);
    if (s.stop_ids.size > most) {
        return error(Code::invalid_argument, "stop_token_ids: {} ids, at most {}", s.stop_ids.size,
                     most);
    }
    return {};
}

Status check_prompt(const RequestDesc& d, const RequestLimits& limits) {
    if (d.tokens.empty()) {
        return Status(Code::invalid_argument, "prompt: it has no tokens");
    }
    const auto n = static_cast<int64_t>(d.tokens.size);
    if (n + 1 > limits.context_tokens) {
        return error(Code::does_not_fit,
                     "the prompt has {} tokens; the context of {} leaves no room for a reply", n,
                     limits.context_tokens);
    }
    const int32_t vocab = std::min(limits.vocab, limits.text_vocab);
    for (uint64_t i = 0; i < d.tokens.size; ++i) {
        TENON_TRY(check_id("prompt", i, d.tokens[i], vocab));
    }
    int64_t last = 0;
    for (uint64_t i = 0; i < d.borders.size; ++i) {
        const int64_t at = d.borders[i].position;
        if (at < last || at > n) {
            return error(Code::invalid_argument, "borders[{}]: position {} is not in {} to {}", i,
                         at, last, n);
        }
        last = at;
    }
    if (d.max_new_tokens < 0) {
        return bad("max_tokens", static_cast<double>(d.max_new_tokens),
                   "at least 1, or 0 for the default");
    }
    const int64_t room = limits.context_tokens - n;
    if (d.max_new_tokens > room && !limits.clamp_max_tokens) {
        return error(Code::does_not_fit,
                     "max_tokens: {} with a prompt of {} tokens is over the context of {}; the "
                     "room left is {}",
                     d.max_new_tokens, n, limits.context_tokens, room);
    }
    return {};
}

Status check_images(const RequestDesc& d, const RequestLimits& limits) {
    if (!d.images.empty() && !limits.images) {
        return Status(Code::unsupported, "images: this model reads text only");
    }
    int64_t end = 0;
    for (uint64_t i = 0; i < d.images.size; ++i) {
        const RequestImage& image = d.images[i];
        if (image.position < end || image.rows < 1 ||
            image.position + image.rows > static_cast<int64_t>(d.tokens.size) - 1) {
            return error(Code::invalid_argument,
                         "images[{}]: {} rows at {} overlap the one before or the prompt's end", i,
                         image.rows, image.position);
        }
        end = image.position + image.rows;
    }
    return {};
}

Status check_stops(const RequestDesc& d) {
    if (d.stops.size > kMaxStopStrings) {
        return bad("stop", static_cast<double>(d.stops.size), "at most 64 strings");
    }
    for (uint64_t i = 0; i < d.stops.size; ++i) {
        if (d.stops[i].empty() || d.stops[i].size > kMaxStopBytes) {
            return error(Code::invalid_argument, "stop[{}]: {} bytes, expected 1 to {}", i,
                         d.stops[i].size, kMaxStopBytes);
        }
    }
    return {};
}

bool has_penalties(const SamplingParams& s) {
    return s.presence != 0 || s.frequency != 0 || s.repetition != 1;
}

/// The distinct ids of the prompt, marked as such: penalties look at them.
std::vector<plan::Pair> prompt_counts(Span<const int32_t> tokens) {
    std::vector<int32_t> ids(tokens.begin(), tokens.end());
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    std::vector<plan::Pair> counts;
    counts.reserve(ids.size());
    for (const int32_t id : ids) {
        counts.push_back({id, uint32_t{1} << 31});
    }
    return counts;
}

plan::Sampler make_sampler(const SamplingParams& s, uint64_t seed) {
    plan::Sampler sampler;
    sampler.temperature = s.temperature;
    sampler.top_p = s.top_p;
    sampler.min_p = s.min_p;
    sampler.presence = s.presence;
    sampler.frequency = s.frequency;
    sampler.repetition = s.repetition;
    sampler.top_k = std::max(s.top_k, 0);  // clients write 0 or -1 for "off"
    sampler.logprobs = s.logprobs;
    sampler.seed = seed;
    return sampler;
}

}  // namespace

Status check_request(const RequestDesc& d, const RequestLimits& limits) {
    TENON_TRY(check_prompt(d, limits));
    TENON_TRY(check_sampling(d.sampling, limits, (d.flags & kIgnoreEos) != 0));
    TENON_TRY(check_stops(d));
    TENON_TRY(check_images(d, limits));
    if (d.replies < 1 || d.replies > kMaxReplies) {
        return bad("n", d.replies, "1 to 8");
    }
    if (d.deadline_us < 0) {
        return bad("deadline", static_cast<double>(d.deadline_us), "at least 0");
    }
    if (d.priority != Priority::foreground && d.priority != Priority::background) {
        return bad("priority", static_cast<double>(d.priority), "foreground or background");
    }
    if (d.constraint != nullptr) {
        return Status(Code::unsupported, "response_format: this engine draws without token masks");
    }
    if (d.thinking_budget < -1) {
        return bad("thinking_budget", static_cast<double>(d.thinking_budget),
                   "at least 0, or -1 for none");
    }
    if (d.thinking_budget >= 0) {
        return Status(Code::unsupported, "thinking_budget: this engine forces no tokens");
    }
    if ((d.flags & kPromptLogprobs) != 0) {
        return Status(Code::unsupported,
                      "prompt_logprobs: this engine keeps no logits of prompt rows");
    }
    return {};
}

namespace {

/// Whether the next turn can repeat the reply: a chat's, from the header on. Image rows have one
/// token id whatever they show, so prompts with images are left out.
bool records_turn(const RequestDesc& d, const RequestLimits& limits) {
    const bool from_header =
        d.parser.start == ReplyStart::reasoning || d.parser.start == ReplyStart::content;
    return limits.records_turns && (d.flags & kRawText) == 0 && from_header && d.images.empty();
}

}  // namespace

Result<Request*> make_request(const RequestDesc& d, const RequestLimits& limits, TextCodec& codec,
                              uint64_t id, int64_t now_us, std::shared_ptr<WakeEvent> wake) {
    TENON_TRY(check_request(d, limits));
    auto drop = [](Request* r) {
        for (int32_t i = 0; i < r->live_replies; ++i) {
            r->unref();
        }
        r->unref();
    };
    std::unique_ptr<Request, decltype(drop)> request(new Request(id, d.replies, std::move(wake)),
                                                     drop);
    Request& r = *request;
    r.tokens.assign(d.tokens.begin(), d.tokens.end());
    r.borders.assign(d.borders.begin(), d.borders.end());
    for (const RequestImage& image : d.images) {
        ImageSpan& span = r.images.emplace_back();
        span.position = image.position;
        span.rows = image.rows;
        std::copy(std::begin(image.key), std::end(image.key), span.key.begin());
    }
    r.label = d.label.str();
    r.flags = d.flags;
    r.wants_ids = (d.flags & kReturnIds) != 0 || d.sampling.logprobs >= 0;
    for (const LogitBias& b : d.sampling.bias) {
        plan::Pair pair{b.token, 0};
        std::memcpy(&pair.bits, &b.add, sizeof pair.bits);
        r.bias.push_back(pair);
    }
    if (has_penalties(d.sampling)) {
        r.counts = prompt_counts(d.tokens);
    }
    if (r.bias.size() + r.counts.size() > limits.pairs) {
        return error(Code::does_not_fit,
                     "logit_bias: with penalties {} ids are named, at most {} fit a step",
                     r.bias.size() + r.counts.size(), limits.pairs);
    }
    if (limits.eos >= 0 && (d.flags & kIgnoreEos) == 0) {
        r.stops.push_back(limits.eos);
    }
    for (const int32_t stop : d.sampling.stop_ids) {
        if (std::find(r.stops.begin(), r.stops.end(), stop) == r.stops.end()) {
            r.stops.push_back(stop);
        }
    }
    const uint64_t seed =
        d.sampling.seed_set ? d.sampling.seed : default_seed(limits.seed_salt, d.tokens);
    const int64_t room = limits.context_tokens - static_cast<int64_t>(d.tokens.size);
    const int64_t wanted = d.max_new_tokens > 0 ? d.max_new_tokens : limits.default_max_tokens;
    ReplyParserConfig config = d.parser;
    config.stops = d.stops;
    const bool raw = (d.flags & kRawText) != 0;
    if (raw) {
        config = ReplyParserConfig{};
        config.stops = d.stops;
    }
    const bool records = records_turn(d, limits);
    Digest before{};
    if (records) {
        Sha256 sha = prompt_sha(d.cache_salt);
        sha.add_ids(d.tokens.subspan(0, d.tokens.size - 1));
        before = sha.finish();
    }
    for (Reply& reply : r.replies()) {
        const auto j = static_cast<uint64_t>(reply.reply);
        reply.arrival_us = now_us;
        reply.deadline_us = d.deadline_us > 0 ? now_us + d.deadline_us : 0;
        reply.max_new = std::min(wanted, room);
        reply.prompt = r.tokens;
        reply.sampler = make_sampler(d.sampling, seed + j);
        reply.bias = r.bias;
        reply.counts = r.counts;
        reply.stops = r.stops;
        reply.background = d.priority == Priority::background;
        reply.borders = r.borders;
        reply.images = r.images;
        reply.cache_salt = d.cache_salt;
        // A continued completion repeats what was generated.
        reply.keeps_reasoning = d.keeps_reasoning || raw;
        reply.no_prefix = (d.flags & kNoPrefix) != 0;
        reply.strict_prefix = (d.flags & kStrictPrefix) != 0;
        reply.drafts_allowed = (d.flags & kDraftsAllowed) != 0;
        reply.timings.seed = seed + j;
        reply.timings.prompt_tokens = static_cast<int64_t>(d.tokens.size);
        if (records) {
            reply.turn = std::make_unique<RecordedTurn>();
            reply.turn->prompt = before;
            reply.turn->starts_reasoning = d.parser.start == ReplyStart::reasoning;
        }
        if (config.call_id_seed != 0 && j > 0) {
            ++config.call_id_seed;
        }
        TENON_ASSIGN(reply.text,
                     raw ? make_raw_text(codec, d.stops) : make_parsed_text(codec, config));
        if (!d.stops.empty()) {
            TENON_TRY(codec.make_stop(config, reply.stop.out()));
        }
    }
    return request.release();
}

}  // namespace tenon::engine
