// SPDX-License-Identifier: MIT
// Results of a step: tokens, drafts, chunk statuses; and reading ahead for the next one.
#include <algorithm>

#include "model.h"

namespace tenon::dsv41 {

namespace {

constexpr int64_t kPollUs = 50'000;
constexpr int64_t kStepLimitUs = 600'000'000;  ///< longer than any step of any device

}  // namespace

Status Dsv41Model::wait_event(Event& event) {
    const int64_t limit = host_->now_us() + kStepLimitUs;
    for (;;) {
        if (aborted_.load(std::memory_order_relaxed)) {
            return error(Code::peer, "aborted while waiting for the device");
        }
        Status status = event.wait(kPollUs);
        if (status.code() != Code::deadline || host_->now_us() > limit) {
            return status;
        }
    }
}

RowStatus Dsv41Model::engram_status(int64_t first_row, int64_t rows,
                                    const std::vector<uint8_t>& failed) const {
    const auto begin = failed.begin() + first_row;
    return std::any_of(begin, begin + rows, [](uint8_t f) { return f != 0; }) ? RowStatus::io
                                                                              : RowStatus::ok;
}

/// Asks for the rows of positions that the next step is likely to run: `tokens` from the slot's
/// length on.
Status Dsv41Model::read_ahead(uint32_t slot, Slot& s, Span<const int32_t> tokens) {
    if (!engram_.is_open() || tokens.empty()) {
        return {};
    }
    const int64_t history = engram_.hash().history();
    const auto most = static_cast<uint64_t>(EngramReader::kEarlyPositions);
    run_classes_.clear();
    for (int64_t i = history; i > 0; --i) {
        run_classes_.push_back(s.class_at(s.length - i));
    }
    for (uint64_t i = 0; i < std::min(tokens.size, most); ++i) {
        const int32_t token = tokens[i];
        if (token < 0 || static_cast<size_t>(token) >= parts_.token_classes.size()) {
            break;
        }
        run_classes_.push_back(parts_.token_classes[static_cast<size_t>(token)]);
    }
    const auto count = static_cast<int64_t>(run_classes_.size()) - history;
    return engram_.read_ahead(
        {slot, s.length, 0, count, {run_classes_.data(), run_classes_.size()}, true});
}

Status Dsv41Model::collect_tokens() {
    if (step_.tokens_done) {
        return {};
    }
    const int64_t before = host_->now_us();
    TENON_TRY(wait_event(*tokens_event_));
    timing_.windows += host_->now_us() - before;  // a device may run behind `submit`
    window_results_.clear();
    result_tokens_.clear();
    result_logprobs_.clear();
    const auto* decisions = decision_.as<VerifyDecision>();
    const bool has_logprobs = step_.wants_logprobs && parts_.ranks.rank == 0;
    const int64_t stride = std::max(step_.top, 1);
    for (int64_t i = 0; i < step_.windows; ++i) {
        const WindowState& state = windows_[static_cast<size_t>(i)];
        const plan::Window& w = state.window;
        const VerifyDecision& d = decisions[i];
        Slot& slot = slots_[w.slot];
        WindowResult r;
        r.slot = w.slot;
        r.generation = w.generation;
        r.accepted = d.accepted;
        r.emitted = d.emitted;
        r.tokens_off = static_cast<uint32_t>(result_tokens_.size());
        r.logprobs_off = static_cast<uint32_t>(result_logprobs_.size());
        r.status = engram_status(state.segment_row, w.rows, window_failed_);
        if (d.finish == static_cast<int32_t>(VerifyFinish::no_token)) {
            r.status = RowStatus::nan;
        } else {
            const bool at_bound = d.finish == 0 && d.emitted >= w.accept_max;
            r.finish = at_bound ? WindowFinish::accept_max : static_cast<WindowFinish>(d.finish);
        }
        const bool counts = slot.sampling.has_penalties() && parts_.ranks.rank == 0;
        for (int32_t k = 0; k < std::min(d.emitted, kVerifyTokens); ++k) {
            result_tokens_.push_back(d.tokens[k]);
            if (counts && slot.uncounted_count < plan::kMaxWindowRows) {
                slot.uncounted[slot.uncounted_count++] = d.tokens[k];
            }
        }
        if (has_logprobs && (w.flags & plan::kWantLogprobs) != 0) {
            r.top = w.top;
            for (int32_t k = 0; k < d.emitted; ++k) {
                const int64_t m = state.first_logit + k;
                const Output& own = k < w.forced ? lp_given_ : lp_drawn_;
                result_logprobs_.push_back({d.tokens[k], own.as<float>()[m]});
                for (int32_t t = 0; t < w.top; ++t) {
                    result_logprobs_.push_back({lp_ids_.as<int32_t>()[m * stride + t],
                                                lp_values_.as<float>()[m * stride + t]});
                }
            }
        }
        slot.length += d.emitted;
        window_results_.push_back(r);
    }
    step_.tokens_done = true;
    // The pending tokens are certain now; their rows are read while the drafts are made.
    for (int64_t i = 0; i < step_.windows; ++i) {
        const WindowResult& r = window_results_[static_cast<size_t>(i)];
        if (r.emitted > 0 && r.finish != WindowFinish::stop_id && r.status == RowStatus::ok) {
            const int32_t pending =
                result_tokens_[r.tokens_off + static_cast<uint32_t>(r.emitted) - 1];
            TENON_TRY(read_ahead(r.slot, slots_[r.slot], {&pending, 1}));
        }
    }
    return {};
}

Status Dsv41Model::collect_drafts() {
    TENON_TRY(collect_tokens());
    if (step_.drafts_done) {
        return {};
    }
    const int64_t before = host_->now_us();
    TENON_TRY(wait_event(*drafts_event_));
    timing_.drafts += step_.drafts > 0 ? host_->now_us() - before : 0;
    draft_results_.assign(static_cast<size_t>(step_.drafts), DraftResult());
    const int64_t block = parts_.config.draft.block;
    for (int64_t i = 0; i < step_.windows; ++i) {
        const WindowState& state = windows_[static_cast<size_t>(i)];
        if (state.draft < 0) {
            continue;
        }
        DraftResult& r = draft_results_[static_cast<size_t>(state.draft)];
        r.slot = state.window.slot;
        r.generation = state.window.generation;
        const bool goes_on = decision_.as<VerifyDecision>()[i].finish == 0;
        if (!goes_on || window_results_[static_cast<size_t>(i)].status != RowStatus::ok) {
            continue;
        }
        const int32_t* tokens = draft_tokens_.as<int32_t>() + i * (block + 1);
        const float* confidence = draft_confidence_.as<float>() + i * block;
        while (r.count < block && tokens[r.count + 1] >= 0 &&
               tokens[r.count + 1] < parts_.config.vocab) {
            r.tokens[r.count] = tokens[r.count + 1];
            r.confidence[r.count] = confidence[r.count];
            ++r.count;
        }
        TENON_TRY(read_ahead(r.slot, slots_[r.slot], {tokens, static_cast<uint64_t>(r.count) + 1}));
    }
    step_.drafts_done = true;
    return {};
}

Status Dsv41Model::collect_done() {
    TENON_TRY(collect_drafts());
    if (step_.done) {
        return {};
    }
    const int64_t before = host_->now_us();
    TENON_TRY(wait_event(*done_event_));
    timing_.chunks += step_.chunks > 0 ? host_->now_us() - before : 0;
    probe_value_ = (step_.windows > 0 ? probe_.as<uint64_t>()[0] : 0) + chunk_probe_ +
                   (step_.chunks > 0 ? probe_.as<uint64_t>()[kProbeStride] : 0);
    step_.done = true;
    step_.open = false;
    const uint64_t faults = device_->fault_count();
    if (faults != fault_base_) {
        const uint64_t n = faults - fault_base_;
        fault_base_ = faults;
        return error(
            Code::internal,
            "step {}: the device skipped {} accesses outside of pages, tables or vocabulary",
            step_.number, n);
    }
    return {};
}

/// A step whose results nobody asked for ends here, so that lengths stay right.
Status Dsv41Model::finish_open_step() {
    if (!step_.open) {
        return {};
    }
    if (!step_.sampled) {
        // It failed, or its masks never came: what it enqueued still reads the pinned inputs.
        step_.open = false;
        return device_->synchronize(*stream_);
    }
    return collect_done();
}

Status Dsv41Model::collect(uint64_t step, Stage stage, StepResult* out) noexcept {
    return guard([&]() -> Status {
        if (step != step_.number || !step_.sampled) {
            return error(
                Code::internal, "collect of step {}: {}", step,
                step != step_.number ? "it is not the step in flight" : "it still waits for masks");
        }
        Status status = stage == Stage::tokens   ? collect_tokens()
                        : stage == Stage::drafts ? collect_drafts()
                                                 : collect_done();
        TENON_TRY(std::move(status));
        StepResult r;
        r.step = step;
        r.windows = window_results_;
        r.tokens = result_tokens_;
        r.logprobs = result_logprobs_;
        if (stage != Stage::tokens) {
            r.drafts = draft_results_;
        }
        if (stage == Stage::done) {
            r.chunks = chunk_results_;
            r.jobs = job_results_;
            r.logprobs = result_logprobs_;
            r.probe = probe_value_;
            if (!chunk_logprobs_.empty()) {
                for (ChunkResult& c : chunk_results_) {
                    c.logprobs_off += static_cast<uint32_t>(result_logprobs_.size());
                }
                result_logprobs_.insert(result_logprobs_.end(), chunk_logprobs_.begin(),
                                        chunk_logprobs_.end());
                chunk_logprobs_.clear();
                r.logprobs = result_logprobs_;
            }
        }
        r.timing = timing_;
        *out = r;
        return {};
    });
}

bool Dsv41Model::ready(uint64_t step, Stage stage) noexcept {
    if (step != step_.number || !step_.sampled) {
        return false;
    }
    Event& event = stage == Stage::tokens   ? *tokens_event_
                   : stage == Stage::drafts ? *drafts_event_
                                            : *done_event_;
    return event.done();
}

Status Dsv41Model::prefetch(Span<const TokenHint> hints) noexcept {
    return guard([&]() -> Status {
        for (const TokenHint& h : hints) {
            // Advice: what does not fit the present state is left out.
            if (h.slot < slots_.size() && slots_[h.slot].generation == h.generation &&
                h.generation != 0 && h.position == slots_[h.slot].length) {
                TENON_TRY(read_ahead(h.slot, slots_[h.slot], h.tokens));
            }
        }
        return {};
    });
}

void Dsv41Model::abort() noexcept {
    aborted_.store(true, std::memory_order_relaxed);
    engram_.abort();
    if (communicator_ != nullptr) {
        communicator_->abort();
    }
}

}  // namespace tenon::dsv41
