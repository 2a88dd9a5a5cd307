// SPDX-License-Identifier: MIT
// The sections of a step plan that change state before rows run, and submit itself.
#include <algorithm>
#include <cmath>

#include "model.h"

namespace tenon::dsv41 {

namespace {

bool inside(uint64_t offset, uint64_t count, uint64_t size) {
    return offset <= size && count <= size - offset;
}

}  // namespace

Status Dsv41Model::check_slot(uint32_t slot, uint32_t generation, const char* section) {
    if (slot >= slots_.size()) {
        return error(Code::internal, "{} names slot {} of {}", section, slot, slots_.size());
    }
    if (generation == 0 || slots_[slot].generation != generation) {
        return error(Code::internal, "{} names generation {} of slot {}, it has {}", section,
                     generation, slot, slots_[slot].generation);
    }
    return {};
}

Status Dsv41Model::token_class(int32_t token, int32_t* out) const {
    if (token < 0 || token >= parts_.config.vocab) {
        return error(Code::internal, "token {} is outside the vocabulary of {}", token,
                     parts_.config.vocab);
    }
    if (parts_.token_classes.empty()) {
        *out = 0;
        return {};
    }
    if (static_cast<size_t>(token) >= parts_.token_classes.size()) {
        return error(Code::internal, "token {} is unknown to the tokenizer, which has {} ids",
                     token, parts_.token_classes.size());
    }
    *out = parts_.token_classes[static_cast<size_t>(token)];
    return {};
}

Status Dsv41Model::apply_slot_ops(const StepPlan& plan) {
    for (const plan::SlotOp& op : plan.slot_ops) {
        if (op.slot >= slots_.size()) {
            return error(Code::internal, "slot_op names slot {} of {}", op.slot, slots_.size());
        }
        Slot& slot = slots_[op.slot];
        switch (op.op) {
            case plan::SlotOpKind::open:
                if (slot.generation != 0 || op.generation == 0) {
                    return error(Code::internal,
                                 "slot {} is opened as generation {} while it has {}", op.slot,
                                 op.generation, slot.generation);
                }
                slot.open(op.generation);
                engram_.forget_slot(op.slot);
                TENON_TRY(state_.clear_slot(op.slot, *device_, *stream_));
                break;
            case plan::SlotOpKind::close:
            case plan::SlotOpKind::abandon_chunk:
                // With one stage no chunk stays open, so there is nothing to abandon.
                TENON_TRY(check_slot(op.slot, op.generation, "slot_op"));
                if (op.op == plan::SlotOpKind::close) {
                    slot.generation = 0;
                    slot.uncounted_count = 0;
                }
                break;
            case plan::SlotOpKind::rewind:
                TENON_TRY(check_slot(op.slot, op.generation, "slot_op"));
                if (op.length < 0 || op.length > slot.length) {
                    return error(Code::internal, "slot {} is rewound to {} from {}", op.slot,
                                 op.length, slot.length);
                }
                slot.length = op.length;
                break;
            default:
                return error(Code::internal, "slot_op {} is unknown", static_cast<uint32_t>(op.op));
        }
    }
    return {};
}

Status Dsv41Model::apply_pages(const StepPlan& plan) {
    const StateShape& shape = parts_.shape;
    for (const plan::PageMap& m : plan.page_maps) {
        TENON_TRY(check_slot(m.slot, m.generation, "page_map"));
        if (!inside(m.pages_off, m.count, plan.pages.size) ||
            !inside(m.first_index, m.count, static_cast<uint64_t>(shape.table_width))) {
            return error(Code::internal,
                         "page_map of slot {}: entries {} + {} of {}, pages {} of {}", m.slot,
                         m.first_index, m.count, shape.table_width, m.pages_off, plan.pages.size);
        }
        const Span<const int32_t> pages = plan.pages.subspan(m.pages_off, m.count);
        for (const int32_t page : pages) {
            if (page < -1 || page >= shape.pages) {
                return error(Code::internal, "page_map of slot {}: page {} of {}", m.slot, page,
                             shape.pages);
            }
        }
        if (m.count > 0) {
            TENON_TRY(state_.map_pages(m.slot, m.first_index, pages, *device_, *stream_));
        }
    }
    const auto n = static_cast<int64_t>(plan.page_copies.size);
    if (n > 0) {
        chunk_block_.reset();
        TensorView src;
        TensorView dst;
        TensorView tokens;
        if (n > 1024) {
            return error(Code::internal, "{} page copies in one step, at most 1024", n);
        }
        auto* from = chunk_block_.take<int32_t>(DType::i32, {n}, &src);
        auto* to = chunk_block_.take<int32_t>(DType::i32, {n}, &dst);
        auto* count = chunk_block_.take<int32_t>(DType::i32, {n}, &tokens);
        for (int64_t i = 0; i < n; ++i) {
            const plan::PageCopy& c = plan.page_copies[static_cast<uint64_t>(i)];
            const bool known =
                c.src >= 0 && c.src < shape.pages && c.dst >= 0 && c.dst < shape.pages;
            if (!known || c.src == c.dst || c.tokens < 0 || c.tokens > shape.page_tokens) {
                return error(Code::internal, "page_copy {} -> {} of {} tokens; {} pages of {}",
                             c.src, c.dst, c.tokens, shape.pages, shape.page_tokens);
            }
            from[i] = c.src;
            to[i] = c.dst;
            count[i] = c.tokens;
        }
        TENON_TRY(chunk_block_.upload(*device_, *stream_));
        TENON_TRY(ops_[0].pages_copy(
            PagesCopy{state_.pool(), src, dst, tokens, state_.planes(), shape.page_tokens},
            *stream_));
        TENON_TRY(device_->synchronize(*stream_));  // the block is used again by chunks
    }
    return {};
}

Status Dsv41Model::apply_samplers(const StepPlan& plan) {
    for (const plan::Sampler& s : plan.samplers) {
        TENON_TRY(check_slot(s.slot, s.generation, "sampler"));
        const bool finite = std::isfinite(s.temperature) && std::isfinite(s.top_p) &&
                            std::isfinite(s.min_p) && std::isfinite(s.presence) &&
                            std::isfinite(s.frequency) && std::isfinite(s.repetition);
        if (!finite || s.temperature < 0 || s.repetition <= 0 || s.bias_count > kMaxBias ||
            s.stop_count > kMaxStops || !inside(s.bias_off, s.bias_count, plan.pairs.size) ||
            !inside(s.stop_off, s.stop_count, plan.tokens.size) ||
            !inside(s.counts_off, s.counts_count, plan.pairs.size)) {
            return error(Code::internal,
                         "sampler of slot {} is malformed (temperature {}, repetition {}, bias {}, "
                         "stops {})",
                         s.slot, s.temperature, s.repetition, s.bias_count, s.stop_count);
        }
        Slot& slot = slots_[s.slot];
        SlotSampling& out = slot.sampling;
        out.reset();
        out.params.temperature = s.temperature;
        out.params.top_p = s.top_p;
        out.params.min_p = s.min_p;
        out.params.repetition = s.repetition;
        out.params.presence = s.presence;
        out.params.frequency = s.frequency;
        out.params.top_k = s.top_k;
        out.params.seed = s.seed;
        for (uint32_t i = 0; i < s.stop_count; ++i) {
            out.stops[i] = plan.tokens[s.stop_off + i];
        }
        for (uint32_t i = 0; i < s.bias_count; ++i) {
            const plan::Pair& p = plan.pairs[s.bias_off + i];
            if (p.token < 0 || p.token >= parts_.config.vocab) {
                return error(Code::internal, "sampler of slot {}: bias for token {}", s.slot,
                             p.token);
            }
            float add = 0;
            std::memcpy(&add, &p.bits, 4);
            out.bias_ids.push_back(p.token);
            out.bias_add.push_back(add);
        }
        const Span<const plan::Pair> counts = plan.pairs.subspan(s.counts_off, s.counts_count);
        for (const plan::Pair& p : counts) {
            if (p.token < 0 || p.token >= parts_.config.vocab) {
                return error(Code::internal, "sampler of slot {}: count of token {}", s.slot,
                             p.token);
            }
        }
        slot.uncounted_count = 0;
        if (out.has_penalties() && parts_.ranks.rank == 0) {
            TENON_TRY(state_.set_counts(s.slot, counts, *device_, *stream_));
        }
    }
    return {};
}

/// Reads of all windows and of the first chunk, before anything waits.
Status Dsv41Model::start_engram(const StepPlan& plan) {
    if (plan.windows.size > 0 && engram_.is_open()) {
        const int64_t history = engram_.hash().history();
        run_classes_.clear();
        runs_.clear();
        for (uint64_t i = 0; i < plan.windows.size; ++i) {
            const plan::Window& w = plan.windows[i];
            const Slot& slot = slots_[w.slot];
            const size_t at = run_classes_.size();
            for (int64_t k = -history; k < w.rows; ++k) {
                run_classes_.push_back(slot.class_at(w.position + k));
            }
            runs_.push_back({w.slot,
                             w.position,
                             windows_[i].segment_row,
                             w.rows,
                             {run_classes_.data() + at, run_classes_.size() - at},
                             true});
        }
        TENON_TRY(engram_.start(kWindowRegion, window_group_.rows.T, runs_));
    }
    return plan.chunks.empty() ? Status() : start_chunk_engram(plan, 0);
}

Status Dsv41Model::rows_of(int32_t table, TensorView* values, TensorView* scales) {
    if (capturing_) {
        engram_.staged(active_region_, table, window_group_.rows.T, values, scales);
        return {};
    }
    // One second is the longest that a step waits for rows of its windows (engine.md 2.1).
    const int64_t timeout_us = active_region_ == kWindowRegion ? 1'000'000 : 10'000'000;
    return engram_.wait(active_region_, table, timeout_us,
                        {active_failed_.data(), active_failed_.size()}, values, scales);
}

Status Dsv41Model::submit(const StepPlan& plan) noexcept {
    return guard([&]() -> Status {
        if (aborted_.load(std::memory_order_relaxed)) {
            return error(Code::peer, "aborted");
        }
        TENON_TRY(finish_open_step());
        if (!plan.features.empty() || !plan.image_runs.empty() || !plan.encodes.empty()) {
            return error(Code::unsupported, "step {}: features and images are not implemented",
                         plan.header.step);
        }
        step_ = Step();
        waits_for_masks_ = false;
        step_.number = plan.header.step;
        step_.needs_masks = (plan.header.flags & plan::kNeedsMasks) != 0 && parts_.ranks.rank == 0;
        step_.open = true;
        timing_ = StepTiming();
        logits_.begin(step_.number);
        trace_.begin();
        const int64_t start = host_->now_us();
        const int64_t waited = engram_.wait_us();
        TENON_TRY(apply_slot_ops(plan));
        TENON_TRY(apply_pages(plan));
        TENON_TRY(apply_snap_in(plan));
        TENON_TRY(apply_samplers(plan));
        TENON_TRY(build_windows(plan));
        TENON_TRY(start_engram(plan));
        TENON_TRY(run_windows(plan));
        timing_.windows = host_->now_us() - start;
        timing_.engram_wait = engram_.wait_us() - waited;
        if (step_.needs_masks && any_masks_) {
            plan_ = plan;
            waits_for_masks_ = true;
            return {};
        }
        any_masks_ = false;
        return finish_submit(plan);
    });
}

/// Everything from the sampling stretch on.
Status Dsv41Model::finish_submit(const StepPlan& plan) {
    const int64_t start = host_->now_us();
    const int64_t waited = engram_.wait_us();
    TENON_TRY(sample_windows(plan));
    TENON_TRY(device_->record(*tokens_event_, *stream_));
    timing_.windows += host_->now_us() - start;
    const int64_t drafts = host_->now_us();
    TENON_TRY(run_drafts(plan));
    TENON_TRY(device_->record(*drafts_event_, *stream_));
    const int64_t chunks = host_->now_us();
    timing_.drafts = chunks - drafts;
    TENON_TRY(run_chunks(plan));
    TENON_TRY(apply_snap_out(plan));
    TENON_TRY(device_->record(*done_event_, *stream_));
    timing_.chunks = host_->now_us() - chunks;
    timing_.engram_wait += engram_.wait_us() - waited;
    step_.sampled = true;
    return {};
}

Status Dsv41Model::set_masks(uint64_t step, const MaskBatch& masks) noexcept {
    return guard([&]() -> Status {
        if (!step_.open || step != step_.number || step_.sampled) {
            return error(Code::internal, "masks for step {}, which does not wait for any", step);
        }
        if (!std::exchange(waits_for_masks_, false)) {
            return {};
        }
        const StepPlan& plan = plan_;
        int64_t wanted = 0;
        for (int64_t i = 0; i < step_.windows; ++i) {
            const plan::Window& w = windows_[static_cast<size_t>(i)].window;
            wanted += (w.flags & plan::kMasked) != 0 ? w.rows : 0;
        }
        if (masks.rows != wanted || masks.words_per_row != mask_words_ ||
            masks.words.size < static_cast<uint64_t>(wanted * mask_words_)) {
            return error(Code::internal, "masks of step {}: {} rows of {} words, expected {} of {}",
                         step, masks.rows, masks.words_per_row, wanted, mask_words_);
        }
        auto* out =
            window_block_.take<uint32_t>(DType::u32, {step_.logit_rows, mask_words_}, &mask_);
        const uint32_t* from = masks.words.data;
        for (int64_t i = 0; i < step_.windows; ++i) {
            const plan::Window& w = windows_[static_cast<size_t>(i)].window;
            const bool masked = (w.flags & plan::kMasked) != 0;
            const bool every_row = (w.flags & plan::kWantLogprobs) != 0;
            for (int32_t r = 0; r < w.rows; ++r) {
                if (every_row || r >= w.forced) {
                    if (masked) {
                        std::copy_n(from, mask_words_, out);
                    } else {
                        std::fill_n(out, mask_words_, ~0U);
                    }
                    out += mask_words_;
                }
                from += masked ? mask_words_ : 0;
            }
        }
        TENON_TRY(window_block_.upload(*device_, *stream_));
        return finish_submit(plan);
    });
}

}  // namespace tenon::dsv41
