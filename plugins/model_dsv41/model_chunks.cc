// SPDX-License-Identifier: MIT
// Prompt chunks: one segment in the prefill regime; layers above the last kv source see its tail.
#include <algorithm>

#include "model.h"

namespace tenon::dsv41 {

namespace {

/// Beyond every position that a layer could be needed for.
constexpr int64_t kFar = int64_t{1} << 40;

SegInfo segment(const plan::Chunk& c, int64_t first, int64_t rows) {
    SegInfo s;
    s.slot = static_cast<int32_t>(c.slot);
    s.rows = static_cast<int32_t>(rows);
    s.pos0 = static_cast<int32_t>(first);
    return s;
}

}  // namespace

Status Dsv41Model::build_chunk(const StepPlan& plan, const plan::Chunk& c, int64_t) {
    const int64_t rows = c.end - c.begin;
    if (rows < 1 || rows > parts_.info.max_chunk_rows || c.stage_begin != 0 || c.stage_end != 1 ||
        c.begin != slots_[c.slot].length || c.end > parts_.shape.context_tokens ||
        c.tokens_off > plan.tokens.size ||
        static_cast<uint64_t>(rows) > plan.tokens.size - c.tokens_off ||
        c.target_off > plan.targets.size || c.target_count > plan.targets.size - c.target_off) {
        return error(Code::internal,
                     "chunk of slot {}: [{}, {}) at length {}, at most {} rows and context {}, "
                     "stages {}..{} of 1, "
                     "tokens at {} of {}, targets {} + {} of {}",
                     c.slot, c.begin, c.end, slots_[c.slot].length, parts_.info.max_chunk_rows,
                     parts_.shape.context_tokens, c.stage_begin, c.stage_end, c.tokens_off,
                     plan.tokens.size, c.target_off, c.target_count, plan.targets.size);
    }
    if (c.image_count != 0) {
        return error(Code::unsupported, "chunk of slot {}: image rows are not implemented", c.slot);
    }
    for (int64_t page = c.begin / parts_.shape.page_tokens;
         page <= (c.end - 1) / parts_.shape.page_tokens; ++page) {
        if (state_.page_of(c.slot, page) < 0) {
            return error(Code::internal, "chunk of slot {}: page {} is not mapped", c.slot, page);
        }
    }
    chunk_block_.reset();
    RowGroup& g = chunk_group_;
    g = RowGroup();
    g.regime = Regime::prefill;
    g.visible_end = c.end;
    g.store_first = rows <= parts_.shape.ring_rows - parts_.config.window;

    TensorView row_view;
    TensorView seg_view;
    TensorView tail_seg_view;
    auto* ids = chunk_block_.take<int32_t>(DType::i32, {rows}, &g.ids);
    auto* row = chunk_block_.take_structs<RowInfo>(rows, &row_view);
    auto* seg = chunk_block_.take_structs<SegInfo>(1, &seg_view);
    auto* tail_seg = chunk_block_.take_structs<SegInfo>(1, &tail_seg_view);
    seg[0] = segment(c, c.begin, rows);
    for (int64_t i = 0; i < rows; ++i) {
        ids[i] = plan.tokens[c.tokens_off + static_cast<uint64_t>(i)];
        row[i] = {static_cast<int32_t>(c.begin + i), static_cast<int32_t>(c.slot), 0, 0};
    }
    g.rows = {row_view, seg_view, rows, 1};
    build_tail(plan, c);
    // Taps exist for the rows that reach the layers which they are taken from.
    const int64_t tapped = tail_layers_.empty() ? 0 : tail_layers_.back().input0;
    g.tail_row0 = std::max(rows - std::min<int64_t>(rows, parts_.shape.ring_rows), tapped);
    const int64_t tail = rows - g.tail_row0;
    tail_seg[0] = segment(c, c.begin + g.tail_row0, tail);
    g.tail = {row_view.rows(g.tail_row0, tail), tail_seg_view, tail, 1};
    return {};
}

/// Rows that each layer above the last kv source computes, from the top down: the state at a full
/// target t needs the window before t of every layer, and a row's output needs the window before
/// the row. With `bounded` replay all of them start one window before t and see nothing older.
void Dsv41Model::build_tail(const StepPlan& plan, const plan::Chunk& c) {
    tail_layers_.clear();
    const ModelConfig& config = parts_.config;
    if (parts_.info.partial_distance == 0 || trace_.wanted()) {
        return;
    }
    const int64_t rows = c.end - c.begin;
    const int64_t window = config.window;
    const bool bounded = (c.flags & plan::kBoundedReplay) != 0;
    int64_t output = c.end + kFar;  // of the layer that is looked at, as positions
    int64_t input = c.end + kFar;
    for (const plan::Target& t : plan.targets.subspan(c.target_off, c.target_count)) {
        if (t.kind == plan::CutKind::full) {
            output = std::min(output, t.at - t.outputs);
            input = std::min({input, t.at - t.outputs - (window - 1), t.at - window});
        }
    }
    const int64_t replay = input;
    const auto row_of = [&](int64_t position) {
        const int64_t row = std::clamp<int64_t>(position - c.begin, 0, rows);
        return row == rows ? rows : row / 4 * 4;
    };
    const int32_t source = config.kv_sources.back();
    tail_layers_.resize(static_cast<size_t>(config.layers - source));
    for (int32_t layer = config.layers - 1; layer >= source; --layer) {
        TailLayer& t = tail_layers_[static_cast<size_t>(layer - source)];
        t.output0 = row_of(output);
        // The source's own window rows and compressed rows are made of every row.
        t.input0 = layer == source ? 0 : std::min(row_of(input), t.output0);
        SegInfo* seg = chunk_block_.take_structs<SegInfo>(1, &t.store_seg);
        *seg = segment(c, c.begin + t.input0, t.output0 - t.input0);
        seg = chunk_block_.take_structs<SegInfo>(1, &t.attend_seg);
        *seg = segment(c, c.begin + t.output0, rows - t.output0);
        seg->win_lo[1] = static_cast<int32_t>(bounded ? std::max<int64_t>(replay, 0) : 0);
        output = t.input0 == rows ? input : c.begin + t.input0;
        input = bounded ? output : output - (window - 1);
    }
    chunk_group_.tail_layers = tail_layers_;
}

/// Which lengths the slot's upper layers can be exact at, before and after this chunk.
Status Dsv41Model::check_targets(const StepPlan& plan, const plan::Chunk& c) {
    if (parts_.info.partial_distance == 0) {
        return {};
    }
    Slot& slot = slots_[c.slot];
    int64_t first = -1;
    for (const plan::Target& t : plan.targets.subspan(c.target_off, c.target_count)) {
        if (t.kind == plan::CutKind::full && t.at > c.begin && (first < 0 || t.at < first)) {
            first = t.at;
        }
    }
    if (first >= 0 && first < slot.whole_from) {
        return error(Code::internal,
                     "chunk of slot {}: full target at {}, but the cut that it "
                     "went on from allows none before {}",
                     c.slot, first, slot.whole_from);
    }
    slot.whole_from = first >= 0 ? first : c.end + parts_.info.partial_distance;
    return {};
}

/// Starts the reads of a chunk's rows; the classes of its tokens become the slot's history.
Status Dsv41Model::start_chunk_engram(const StepPlan& plan, int64_t index) {
    const plan::Chunk& c = plan.chunks[static_cast<uint64_t>(index)];
    TENON_TRY(check_slot(c.slot, c.generation, "chunk"));
    const int64_t rows = c.end - c.begin;
    if (rows < 1 || rows > parts_.info.max_chunk_rows || c.tokens_off > plan.tokens.size ||
        static_cast<uint64_t>(rows) > plan.tokens.size - c.tokens_off) {
        return error(Code::internal, "chunk of slot {}: [{}, {}), tokens at {} of {}", c.slot,
                     c.begin, c.end, c.tokens_off, plan.tokens.size);
    }
    Slot& slot = slots_[c.slot];
    const int64_t history = engram_.is_open() ? engram_.hash().history() : 0;
    run_classes_.clear();
    for (int64_t i = history; i > 0; --i) {
        run_classes_.push_back(slot.class_at(c.begin - i));
    }
    for (int64_t i = 0; i < rows; ++i) {
        int32_t token_class = 0;
        TENON_TRY(
            this->token_class(plan.tokens[c.tokens_off + static_cast<uint64_t>(i)], &token_class));
        run_classes_.push_back(token_class);
    }
    for (int64_t i = std::max<int64_t>(0, rows - Slot::kHistory); i < rows; ++i) {
        slot.remember(c.begin + i, run_classes_[static_cast<size_t>(history + i)]);
    }
    if (!engram_.is_open()) {
        return {};
    }
    const EngramReader::Run run{
        c.slot, c.begin, 0, rows, {run_classes_.data(), run_classes_.size()}, false};
    return engram_.start(chunk_region(index), rows, {&run, 1});
}

/// Starts reading the rows of the chunk that the next step will probably run, while the last one of
/// this step computes. Advice: what does not fit is left out.
Status Dsv41Model::prefetch_chunk(const StepPlan& plan) {
    if (!engram_.is_open() || plan.prefetches.empty()) {
        return {};
    }
    uint64_t total = 0;  // their tokens are the last of the pool
    for (const plan::Prefetch& p : plan.prefetches) {
        total += static_cast<uint64_t>(std::max<int64_t>(p.end - p.begin, 0));
    }
    const plan::Prefetch& p = plan.prefetches[0];
    const int64_t rows = p.end - p.begin;
    if (total > plan.tokens.size || rows < 1 || rows > parts_.info.max_chunk_rows ||
        p.slot >= slots_.size() || slots_[p.slot].generation != p.generation) {
        return {};
    }
    const int64_t history = engram_.hash().history();
    run_classes_.clear();
    for (int64_t i = history; i > 0; --i) {
        run_classes_.push_back(slots_[p.slot].class_at(p.begin - i));
    }
    for (const int32_t token :
         plan.tokens.subspan(plan.tokens.size - total, static_cast<uint64_t>(rows))) {
        int32_t token_class = 0;
        TENON_TRY(this->token_class(token, &token_class));
        run_classes_.push_back(token_class);
    }
    const EngramReader::Run run{
        p.slot, p.begin, 0, rows, {run_classes_.data(), run_classes_.size()}, false};
    return engram_.prefetch(chunk_region(step_.chunks), run);
}

/// Logits of the rows that targets ask for, in tiles.
Status Dsv41Model::chunk_outputs(const StepPlan& plan, const plan::Chunk& c, int64_t index) {
    ChunkResult& result = chunk_results_[static_cast<size_t>(index)];
    result.logprobs_off = static_cast<uint32_t>(chunk_logprobs_.size());
    int64_t first = c.end;
    int64_t last = c.begin;
    for (uint32_t i = 0; i < c.target_count; ++i) {
        const plan::Target& t = plan.targets[c.target_off + i];
        const int64_t from = std::max(c.begin, t.at - t.outputs);
        const int64_t to = std::min(c.end, t.at);
        if (from < to) {
            first = std::min(first, from);
            last = std::max(last, to);
        }
    }
    if (first >= last) {
        return {};
    }
    // Several targets of one chunk with outputs share the rows between them.
    const int64_t tile = act_.logits.shape[0];
    for (int64_t at = first; at < last; at += tile) {
        const int64_t n = std::min(tile, last - at);
        TensorView rows;
        TensorView next;
        auto* index_rows = chunk_block_.take<int32_t>(DType::i32, {n}, &rows);
        auto* next_tokens = chunk_block_.take<int32_t>(DType::i32, {n}, &next);
        for (int64_t i = 0; i < n; ++i) {
            const int64_t row = at + i - c.begin;
            index_rows[i] = static_cast<int32_t>(row);
            next_tokens[i] = at + i + 1 < c.end
                                 ? plan.tokens[c.tokens_off + static_cast<uint64_t>(row) + 1]
                                 : -1;
        }
        TENON_TRY(chunk_block_.upload(*device_, *stream_));
        TENON_TRY(forward_.head(chunk_group_, rows, n));
        if (parts_.ranks.rank != 0) {
            continue;
        }
        if (logits_.wanted()) {
            TENON_TRY(logits_.add(act_.logits, n));
        }
        SampleLogprobs lp;
        lp.logits = act_.logits.rows(0, n);
        lp.token = next;
        lp.ids = make_view(lp_ids_.device.data, DType::i32, {n, 1}, lp_ids_.device.place);
        lp.lp = make_view(lp_values_.device.data, DType::f32, {n, 1}, lp_values_.device.place);
        lp.token_lp = lp_drawn_.device.rows(0, n);
        lp.scratch = act_.scratch;
        TENON_TRY(ops_[static_cast<size_t>(Regime::prefill)].sample_logprobs(lp, *stream_));
        TENON_TRY(device_->copy(chunk_lp_.host.rows(0, n), lp.token_lp, *stream_));
        TENON_TRY(device_->synchronize(*stream_));
        for (int64_t i = 0;
             i < n && next_tokens[i] >= 0 && chunk_logprobs_.size() < chunk_logprobs_.capacity();
             ++i) {
            chunk_logprobs_.push_back({next_tokens[i], chunk_lp_.as<float>()[i]});
        }
    }
    result.logprobs_count = static_cast<uint32_t>(chunk_logprobs_.size()) - result.logprobs_off;
    return {};
}

Status Dsv41Model::run_chunks(const StepPlan& plan) {
    step_.chunks = static_cast<int64_t>(plan.chunks.size);
    if (step_.chunks > static_cast<int64_t>(chunk_results_.capacity())) {
        return error(Code::internal, "{} chunks in one step, at most {}", step_.chunks,
                     chunk_results_.capacity());
    }
    chunk_results_.resize(static_cast<size_t>(step_.chunks));
    chunk_logprobs_.clear();
    chunk_probe_ = 0;
    for (int64_t i = 0; i < step_.chunks; ++i) {
        const plan::Chunk& c = plan.chunks[static_cast<uint64_t>(i)];
        if (i > 0) {
            // The block of the chunk before is still in use until its work is done.
            TENON_TRY(device_->synchronize(*stream_));
        }
        TENON_TRY(check_slot(c.slot, c.generation, "chunk"));
        if (i + 1 < step_.chunks) {
            TENON_TRY(start_chunk_engram(plan, i + 1));
        }
        TENON_TRY(build_chunk(plan, c, i));
        TENON_TRY(check_targets(plan, c));
        TENON_TRY(chunk_block_.upload(*device_, *stream_));
        if (i + 1 == step_.chunks) {
            TENON_TRY(prefetch_chunk(plan));
        }
        ChunkResult& result = chunk_results_[static_cast<size_t>(i)];
        result = ChunkResult();
        result.slot = c.slot;
        result.generation = c.generation;
        result.stage_end = c.stage_end;
        forward_.set_tracer(trace_.wanted() ? &trace_ : nullptr);
        active_region_ = chunk_region(i);
        std::fill(active_failed_.begin(), active_failed_.end(), uint8_t{0});
        TENON_TRY(forward_.backbone(chunk_group_, this));
        if (trace_.wanted() && engram_.is_open()) {
            const Span<const int64_t> row_ids = engram_.ids(active_region_);
            const auto count = static_cast<int64_t>(row_ids.size);
            trace_.keep_host("engram_rows", make_view(row_ids.data, DType::i64, {count}));
        }
        const bool io =
            std::any_of(active_failed_.begin(), active_failed_.begin() + chunk_group_.rows.T,
                        [](uint8_t f) { return f != 0; });
        result.status = io ? RowStatus::io : RowStatus::ok;
        TensorView probe = probe_.device.rows(kProbeStride, 1);
        TENON_TRY(forward_.digest(chunk_group_, probe));
        if (parts_.with_drafts && chunk_group_.tail.T > 0) {
            TENON_TRY_CTX(forward_.absorb(chunk_group_), "absorbing taps");
        }
        TENON_TRY(capture_targets(plan, c));
        TENON_TRY(chunk_outputs(plan, c, i));
        TENON_TRY(device_->copy(probe_.host.rows(kProbeStride, 1), probe, *stream_));
        slots_[c.slot].length = c.end;
        if (i + 1 < step_.chunks) {
            TENON_TRY(device_->synchronize(*stream_));
            chunk_probe_ += probe_.as<uint64_t>()[kProbeStride];
        }
    }
    chunk_turn_ += step_.chunks;
    return {};
}

}  // namespace tenon::dsv41
