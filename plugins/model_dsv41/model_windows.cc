// SPDX-License-Identifier: MIT
// The window group of a step: its rows, its sampling inputs, verification and the draft pass after
// it.
#include <algorithm>

#include "model.h"

namespace tenon::dsv41 {

namespace {

/// True if [offset, offset + count) lies in a pool of `size` entries.
bool inside(uint64_t offset, uint64_t count, uint64_t size) {
    return offset <= size && count <= size - offset;
}

}  // namespace

/// One window into rows [*row, ...) and logits [*logit, ...).
Status Dsv41Model::fill_window(const StepPlan& plan, int64_t index, int64_t* row, int64_t* logit) {
    const plan::Window& w = plan.windows[static_cast<uint64_t>(index)];
    TENON_TRY(check_slot(w.slot, w.generation, "window"));
    Slot& slot = slots_[w.slot];
    if (w.rows < 1 || w.rows > parts_.info.max_window_rows || w.forced < 0 || w.forced >= w.rows ||
        w.accept_max < 1 || w.position != slot.length ||
        w.position + w.rows > parts_.shape.context_tokens || w.source != 0 || w.top < 0 ||
        w.top > 20 || !inside(w.tokens_off, static_cast<uint64_t>(w.rows), plan.tokens.size)) {
        return error(Code::internal,
                     "window of slot {}: rows {} (forced {}, at most {}) at position {} of length "
                     "{}, context {}, "
                     "source {}, top {}, tokens at {} of {}",
                     w.slot, w.rows, w.forced, parts_.info.max_window_rows, w.position, slot.length,
                     parts_.shape.context_tokens, w.source, w.top, w.tokens_off, plan.tokens.size);
    }
    if (w.position < slot.whole_from) {
        return error(Code::internal, "window of slot {} at {}, whose state is whole from {} on",
                     w.slot, w.position, slot.whole_from);
    }
    if (*row + w.rows > parts_.info.max_step_rows) {
        return error(Code::internal, "windows of a step have more than {} rows",
                     parts_.info.max_step_rows);
    }
    for (int64_t page = w.position / parts_.shape.page_tokens;
         page <= (w.position + w.rows - 1) / parts_.shape.page_tokens; ++page) {
        if (state_.page_of(w.slot, page) < 0) {
            return error(Code::internal, "window of slot {}: page {} is not mapped", w.slot, page);
        }
    }
    WindowState& state = windows_[static_cast<size_t>(index)];
    state.window = w;
    state.segment_row = static_cast<int32_t>(*row);
    state.first_logit = static_cast<int32_t>(*logit);
    state.draft = -1;
    const bool every_row = (w.flags & plan::kWantLogprobs) != 0;
    step_.wants_logprobs = step_.wants_logprobs || every_row;
    step_.any_forced_logprobs = step_.any_forced_logprobs || (every_row && w.forced > 0);
    step_.top = every_row ? std::max(step_.top, w.top) : step_.top;
    for (int32_t r = 0; r < w.rows; ++r) {
        int32_t token_class = 0;
        TENON_TRY(
            this->token_class(plan.tokens[w.tokens_off + static_cast<uint64_t>(r)], &token_class));
        slot.remember(w.position + r, token_class);
        *logit += every_row || r >= w.forced ? 1 : 0;
    }
    *row += w.rows;
    return {};
}

Status Dsv41Model::build_windows(const StepPlan& plan) {
    const auto count = static_cast<int64_t>(plan.windows.size);
    step_.windows = count;
    int64_t rows = 0;
    int64_t logit_rows = 0;
    if (count > static_cast<int64_t>(windows_.size())) {
        return error(Code::internal, "{} windows for {} slots", count, windows_.size());
    }
    for (int64_t i = 0; i < count; ++i) {
        TENON_TRY(fill_window(plan, i, &rows, &logit_rows));
        for (int64_t j = 0; j < i; ++j) {
            if (windows_[static_cast<size_t>(j)].window.slot ==
                windows_[static_cast<size_t>(i)].window.slot) {
                return error(Code::internal, "slot {} has two windows in one step",
                             windows_[static_cast<size_t>(i)].window.slot);
            }
        }
    }
    step_.logit_rows = logit_rows;

    take_inputs();
    const WindowInputs& in = inputs_;
    int32_t* ids = in.ids.host;
    RowInfo* row = in.row.host;
    SegInfo* seg = in.seg.host;
    int32_t* index = in.logit_index.host;
    int32_t* given = in.given.host;
    RowGroup& g = window_group_;
    g = RowGroup();
    g.regime = Regime::decode;
    g.ids = in.ids.device.rows(0, rows);
    g.rows = {in.row.device.rows(0, rows), in.seg.device.rows(0, count), rows, count};
    g.tail = g.rows;
    logit_index_ = in.logit_index.device.rows(0, logit_rows);
    given_tokens_ = in.given.device.rows(0, logit_rows);
    int64_t out = 0;
    for (int64_t i = 0; i < count; ++i) {
        const WindowState& state = windows_[static_cast<size_t>(i)];
        const plan::Window& w = state.window;
        SegInfo& s = seg[i];
        s = SegInfo();
        s.slot = static_cast<int32_t>(w.slot);
        s.row0 = state.segment_row;
        s.rows = w.rows;
        s.pos0 = static_cast<int32_t>(w.position);
        s.out0 = static_cast<int32_t>(out);
        const bool every_row = (w.flags & plan::kWantLogprobs) != 0;
        for (int32_t r = 0; r < w.rows; ++r) {
            const int64_t at = state.segment_row + r;
            const bool wants_logits = every_row || r >= w.forced;
            ids[at] = plan.tokens[w.tokens_off + static_cast<uint64_t>(r)];
            row[at] = {static_cast<int32_t>(w.position) + r, s.slot, static_cast<int32_t>(i),
                       (wants_logits ? kRowLogits : 0) | (r > w.forced ? kRowDraft : 0)};
            if (wants_logits) {
                index[out] = static_cast<int32_t>(at);
                given[out] =
                    r < w.forced ? plan.tokens[w.tokens_off + static_cast<uint64_t>(r) + 1] : -1;
                ++out;
            }
        }
        g.visible_end = std::max(g.visible_end, w.position + w.rows);
    }
    return build_sampling(plan);
}

/// Parameters of every logits row, limits of every segment, drafts of the windows that get them.
Status Dsv41Model::build_sampling(const StepPlan& plan) {
    const int64_t count = step_.windows;
    const int64_t logit_rows = step_.logit_rows;
    int64_t bias_total = 0;
    any_bias_ = any_penalties_ = any_masks_ = false;
    for (int64_t i = 0; i < count; ++i) {
        const plan::Window& w = windows_[static_cast<size_t>(i)].window;
        const SlotSampling& s = slots_[w.slot].sampling;
        const int64_t rows = (w.flags & plan::kWantLogprobs) != 0 ? w.rows : w.rows - w.forced;
        bias_total += rows * static_cast<int64_t>(s.bias_ids.size());
        any_penalties_ = any_penalties_ || s.has_penalties();
        any_masks_ = any_masks_ || (w.flags & plan::kMasked) != 0;
    }
    any_bias_ = bias_total > 0;
    SampleParams* params = inputs_.params.host;
    VerifyLimits* limits = inputs_.limits.host;
    sample_params_ = inputs_.params.device.rows(0, logit_rows);
    limits_ = inputs_.limits.device.rows(0, count);
    auto* bias_begin = window_block_.take<int32_t>(DType::i32, {logit_rows + 1}, &bias_begin_);
    auto* bias_ids = window_block_.take<int32_t>(DType::i32, {bias_total}, &bias_ids_);
    auto* bias_add = window_block_.take<float>(DType::f32, {bias_total}, &bias_add_);
    int64_t out = 0;
    int64_t bias = 0;
    for (int64_t i = 0; i < count; ++i) {
        const plan::Window& w = windows_[static_cast<size_t>(i)].window;
        const SlotSampling& s = slots_[w.slot].sampling;
        limits[i].forced = w.forced;
        // A bound that no row of this window can exceed must not end it on the device: the plan may
        // ask for drafts behind the last emitted token.
        limits[i].accept_max = w.accept_max >= w.rows ? kVerifyTokens : w.accept_max;
        std::copy(std::begin(s.stops), std::end(s.stops), limits[i].stop_ids);
        const int32_t first = (w.flags & plan::kWantLogprobs) != 0 ? 0 : w.forced;
        for (int32_t r = first; r < w.rows; ++r, ++out) {
            params[out] = s.params;
            params[out].pos = static_cast<int32_t>(w.position) + r + 1;
            bias_begin[out] = static_cast<int32_t>(bias);
            std::copy(s.bias_ids.begin(), s.bias_ids.end(), bias_ids + bias);
            std::copy(s.bias_add.begin(), s.bias_add.end(), bias_add + bias);
            bias += static_cast<int64_t>(s.bias_ids.size());
        }
    }
    bias_begin[out] = static_cast<int32_t>(bias);

    step_.drafts = static_cast<int64_t>(plan.drafts.size);
    int32_t* slots = inputs_.draft_slots.host;
    SampleParams* draft_params = inputs_.draft_params.host;
    draft_params_ = inputs_.draft_params.device.rows(0, count);
    bool sampled = false;
    for (int64_t i = 0; i < count; ++i) {
        slots[i] = -1;
        draft_params[i] = slots_[windows_[static_cast<size_t>(i)].window.slot].sampling.params;
        sampled = sampled || draft_params[i].temperature != 0;
    }
    if (!sampled) {
        draft_params_ = TensorView();
    }
    for (int64_t d = 0; d < step_.drafts; ++d) {
        const plan::Draft& draft = plan.drafts[static_cast<uint64_t>(d)];
        TENON_TRY(check_slot(draft.slot, draft.generation, "draft"));
        const auto end = windows_.begin() + count;
        const auto found = std::find_if(windows_.begin(), end, [&](const WindowState& w) {
            return w.window.slot == draft.slot;
        });
        if (found == end || !parts_.with_drafts) {
            return error(Code::internal, "draft of slot {}: {}", draft.slot,
                         parts_.with_drafts ? "it has no window in this step"
                                            : "the model was loaded without drafts");
        }
        found->draft = static_cast<int32_t>(d);
        slots[found - windows_.begin()] = static_cast<int32_t>(draft.slot);
    }
    return commit_counts();
}

/// Tokens emitted by the last step enter the penalty counts before the next draw reads them.
Status Dsv41Model::commit_counts() {
    int64_t n = 0;
    for (const Slot& s : slots_) {
        n += s.uncounted_count;
    }
    auto* tokens = window_block_.take<int32_t>(DType::i32, {n}, &count_tokens_);
    auto* slots = window_block_.take<int32_t>(DType::i32, {n}, &count_slots_);
    int64_t at = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
        Slot& s = slots_[i];
        for (int32_t k = 0; k < s.uncounted_count; ++k, ++at) {
            tokens[at] = s.uncounted[k];
            slots[at] = static_cast<int32_t>(i);
        }
        s.uncounted_count = 0;
    }
    TENON_TRY(window_block_.upload(*device_, *stream_));
    if (n > 0 && parts_.ranks.rank == 0) {
        TENON_TRY(ops_[0].sample_count(SampleCount{count_tokens_, count_slots_, state_.seen()},
                                       *stream_));
    }
    return {};
}

/// The host-made inputs, each at the same place in every step: graphs read them there. Rows,
/// segments and draft slots that no window fills are dead.
void Dsv41Model::take_inputs() {
    const int64_t rows = parts_.info.max_step_rows;
    const auto slots = static_cast<int64_t>(windows_.size());
    WindowInputs& in = inputs_;
    const auto plain = [&](auto* input, int64_t n) {
        input->host = window_block_.take<int32_t>(DType::i32, {n}, &input->device);
        std::fill_n(input->host, n, -1);
    };
    const auto structs = [&](auto* input, int64_t n) {
        using E = std::remove_pointer_t<decltype(input->host)>;
        input->host = window_block_.take_structs<E>(n, &input->device);
        std::fill_n(input->host, n, E());
    };
    window_block_.reset();
    plain(&in.ids, rows);
    structs(&in.row, rows);
    structs(&in.seg, slots);
    plain(&in.logit_index, rows);
    plain(&in.given, rows);
    structs(&in.params, rows);
    structs(&in.limits, slots);
    plain(&in.draft_slots, slots);
    structs(&in.draft_params, slots);
}

Status Dsv41Model::run_windows(const StepPlan& plan) {
    if (step_.windows == 0) {
        return {};
    }
    const bool traced = trace_.wanted() && plan.chunks.empty();
    forward_.set_tracer(traced ? &trace_ : nullptr);
    active_region_ = kWindowRegion;
    std::fill(active_failed_.begin(), active_failed_.end(), uint8_t{0});
    step_.graphs = graphs_.ready() && !traced;
    if (step_.graphs) {
        TENON_TRY(replay_backbone());
    } else {
        TENON_TRY(forward_.backbone(window_group_, this));
    }
    std::copy(active_failed_.begin(), active_failed_.begin() + window_group_.rows.T,
              window_failed_.begin());
    const bool all_rows = step_.logit_rows == window_group_.rows.T;
    step_.sampling_graph = step_.graphs && all_rows && !any_penalties_ && !any_bias_ &&
                           !any_masks_ && !step_.wants_logprobs && !logits_.wanted();
    if (step_.sampling_graph) {
        return {};
    }
    TENON_TRY(forward_.digest(window_group_, probe_.device.rows(0, 1)));
    TENON_TRY(
        forward_.head(window_group_, all_rows ? TensorView() : logit_index_, step_.logit_rows));
    if (logits_.wanted() && parts_.ranks.rank == 0) {
        TENON_TRY(logits_.add(act_.logits, step_.logit_rows));
    }
    return {};
}

/// Draw, verify, broadcast, absorb.
Status Dsv41Model::sample_windows(const StepPlan&) {
    if (step_.windows == 0) {
        return {};
    }
    if (step_.sampling_graph) {
        return replay_sampling();
    }
    const OpSet& o = ops_[static_cast<size_t>(Regime::decode)];
    const int64_t m = step_.logit_rows;
    const TensorView decision = decision_.device.rows(0, step_.windows);
    if (parts_.ranks.rank == 0) {
        SampleDraw draw;
        draw.logits = act_.logits.rows(0, m);
        draw.params = sample_params_;
        if (any_penalties_) {
            draw.seen = state_.seen();
            draw.rows = window_group_.rows;
            draw.index = logit_index_;
            draw.ids = window_group_.ids;
        }
        if (any_bias_) {
            draw.bias_begin = bias_begin_;
            draw.bias_ids = bias_ids_;
            draw.bias_add = bias_add_;
        }
        draw.mask = any_masks_ ? mask_ : TensorView();
        draw.forbid = forbid_;
        draw.token = drawn_.device.rows(0, m);
        draw.scratch = act_.scratch;
        TENON_TRY(o.sample_draw(draw, *stream_));
        if (step_.wants_logprobs) {
            const int64_t n = std::max(step_.top, 1);
            SampleLogprobs lp;
            lp.logits = draw.logits;
            lp.token = draw.token;
            lp.ids = make_view(lp_ids_.device.data, DType::i32, {m, n}, lp_ids_.device.place);
            lp.lp = make_view(lp_values_.device.data, DType::f32, {m, n}, lp_values_.device.place);
            lp.token_lp = lp_drawn_.device.rows(0, m);
            lp.scratch = act_.scratch;
            TENON_TRY(o.sample_logprobs(lp, *stream_));
            if (step_.any_forced_logprobs) {
                // Forced tokens were not drawn: their own logprob, the list of the best is the
                // same.
                lp.token = given_tokens_;
                lp.token_lp = lp_given_.device.rows(0, m);
                TENON_TRY(o.sample_logprobs(lp, *stream_));
            }
        }
        TENON_TRY(o.spec_verify(
            SpecVerify{draw.token, window_group_.ids, window_group_.rows, limits_, decision},
            *stream_));
    }
    if (parts_.ranks.world > 1) {
        TENON_TRY(communicator_->broadcast(decision, 0, *stream_));
    }
    TENON_TRY(device_->copy(decision_.host.rows(0, step_.windows), decision, *stream_));
    TENON_TRY(device_->copy(probe_.host, probe_.device, *stream_));
    if (step_.wants_logprobs && parts_.ranks.rank == 0) {
        const int64_t n = std::max(step_.top, 1);
        const auto flat = [&](const Output& out, int64_t elements, bool host) {
            const TensorView& v = host ? out.host : out.device;
            return make_view(v.data, v.dtype, {elements}, v.place);
        };
        TENON_TRY(device_->copy(flat(lp_ids_, m * n, true), flat(lp_ids_, m * n, false), *stream_));
        TENON_TRY(
            device_->copy(flat(lp_values_, m * n, true), flat(lp_values_, m * n, false), *stream_));
        TENON_TRY(device_->copy(flat(lp_drawn_, m, true), flat(lp_drawn_, m, false), *stream_));
        TENON_TRY(device_->copy(flat(lp_given_, m, true), flat(lp_given_, m, false), *stream_));
    }
    if (parts_.with_drafts) {
        TENON_TRY_CTX(forward_.absorb(window_group_), "absorbing taps");
    }
    return {};
}

Status Dsv41Model::run_drafts(const StepPlan&) {
    if (step_.drafts == 0) {
        return {};
    }
    if (step_.graphs && !trace_.wanted()) {
        return replay_drafts();
    }
    forward_.set_tracer(trace_.wanted() ? &trace_ : nullptr);
    return draft_pass(window_group_.rows, draft_params_);
}

/// Drafts of the group's segments and their copies for the host.
Status Dsv41Model::draft_pass(const Rows& window, const TensorView& params) {
    const int64_t n = window.S;
    DraftPass pass;
    pass.decision = decision_.device.rows(0, n);
    pass.window = window;
    pass.slot = inputs_.draft_slots.device.rows(0, n);
    pass.params = params;
    pass.forbid = forbid_local_;
    pass.ids = draft_ids_;
    pass.row = draft_rows_;
    pass.seg = draft_segs_;
    pass.best = draft_best_;
    pass.best_own = draft_best_own_;
    pass.tokens = draft_tokens_.device.rows(0, n);
    pass.confidence = draft_confidence_.device.rows(0, n);
    TENON_TRY(forward_.draft(pass));
    TENON_TRY(device_->copy(draft_tokens_.host.rows(0, n), pass.tokens, *stream_));
    return device_->copy(draft_confidence_.host.rows(0, n), pass.confidence, *stream_);
}

}  // namespace tenon::dsv41
