// SPDX-License-Identifier: MIT
// Warm-up: every size once through submit and collect, measured for the planner's cost table.
#include <algorithm>
#include <limits>

#include "model.h"

namespace tenon::dsv41 {

namespace {

/// A plan of our own: all slots opened as generation 1, pages handed out one after another.
struct WarmPlan {
    std::vector<plan::SlotOp> slot_ops;
    std::vector<plan::PageMap> maps;
    std::vector<plan::Window> windows;
    std::vector<plan::Draft> drafts;
    std::vector<plan::Chunk> chunks;
    std::vector<plan::Target> targets;
    std::vector<int32_t> tokens, pages;

    StepPlan view() const {
        StepPlan p;
        p.slot_ops = slot_ops;
        p.page_maps = maps;
        p.windows = windows;
        p.drafts = drafts;
        p.chunks = chunks;
        p.targets = targets;
        p.tokens = tokens;
        p.pages = pages;
        return p;
    }
    void open(uint32_t slot, int64_t page_count) {
        slot_ops.push_back({slot, 1, plan::SlotOpKind::open, 0, 0, 0});
        maps.push_back({slot, 1, 0, static_cast<uint32_t>(page_count),
                        static_cast<uint32_t>(pages.size()), 0});
        for (int64_t i = 0; i < page_count; ++i) {
            pages.push_back(static_cast<int32_t>(pages.size()));
        }
    }
    void rewind(uint32_t slot, int64_t length) {
        slot_ops.push_back({slot, 1, plan::SlotOpKind::rewind, 0, length, 0});
    }
    /// The only chunk, [0, rows); a full target at its end makes all layers run.
    void add_chunk(plan::Chunk c, int64_t rows) {
        c.end = rows;
        c.target_count = 1;
        chunks.push_back(c);
        plan::Target target;
        target.at = rows;
        targets.push_back(target);
    }
    void close(uint32_t slot) { slot_ops.push_back({slot, 1, plan::SlotOpKind::close, 0, 0, 0}); }
};

/// Rows of context behind every measured window, and passes whose median counts.
constexpr int64_t kWarmRows = 64;
constexpr int kPasses = 5;
/// A window of a drafting stream: pending token and five drafts.
constexpr int64_t kUsualWindow = 6;

int64_t median(std::vector<int64_t> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

/// Fills what was not measured by straight lines between neighbours.
void interpolate(std::vector<int64_t>* costs) {
    size_t last = 0;
    for (size_t i = 1; i < costs->size(); ++i) {
        if ((*costs)[i] == 0) {
            continue;
        }
        for (size_t k = last + 1; k < i; ++k) {
            const auto span = static_cast<int64_t>(i - last);
            const auto part = static_cast<int64_t>(k - last);
            (*costs)[k] = (*costs)[last] + ((*costs)[i] - (*costs)[last]) * part / span;
        }
        last = i;
    }
    for (size_t k = last + 1; k < costs->size(); ++k) {
        (*costs)[k] = (*costs)[last];
    }
}

}  // namespace

/// Varied ids, so that rows take different experts and table rows, as texts do.
void Dsv41Model::warm_ids(int64_t count, std::vector<int32_t>* out) {
    const size_t known = parts_.token_classes.empty() ? static_cast<size_t>(parts_.config.vocab)
                                                      : parts_.token_classes.size();
    for (int64_t i = 0; i < count; ++i) {
        warm_state_ = warm_state_ * 1664525U + 1013904223U;  // Numerical Recipes' generator
        out->push_back(static_cast<int32_t>((warm_state_ >> 8) % static_cast<uint32_t>(known)));
    }
}

Status Dsv41Model::warm_step(const StepPlan& plan, StepTiming* timing) {
    TENON_TRY(submit(plan));
    StepResult result;
    TENON_TRY(collect(0, Stage::done, &result));
    *timing = result.timing;
    return {};
}

/// Opens all slots and fills each with `rows` prompt rows.
Status Dsv41Model::warm_open(int64_t rows) {
    const int64_t room = rows + parts_.info.max_window_rows;
    const int64_t pages = (room + parts_.shape.page_tokens - 1) / parts_.shape.page_tokens;
    WarmPlan open;
    for (size_t s = 0; s < slots_.size(); ++s) {
        open.open(static_cast<uint32_t>(s), pages);
    }
    StepTiming timing;
    TENON_TRY(warm_step(open.view(), &timing));
    for (size_t s = 0; rows > 0 && s < slots_.size(); ++s) {
        WarmPlan p;
        warm_ids(rows, &p.tokens);
        plan::Chunk c;
        c.slot = static_cast<uint32_t>(s);
        c.generation = 1;
        p.add_chunk(c, rows);
        TENON_TRY(warm_step(p.view(), &timing));
    }
    return {};
}

/// Windows of `rows` rows in all behind `length` rows of context, over `streams` slots; with drafts
/// also the draft pass.
Status Dsv41Model::warm_windows(int64_t length, int64_t rows, int64_t streams, bool drafts,
                                StepTiming* timing) {
    WarmPlan p;
    for (int64_t i = 0; i < streams; ++i) {
        const auto slot = static_cast<uint32_t>(i);
        p.rewind(slot, length);
        plan::Window w;
        w.slot = slot;
        w.generation = 1;
        w.position = length;
        w.rows = static_cast<int32_t>(rows / streams + (i < rows % streams ? 1 : 0));
        w.accept_max = w.rows;
        w.tokens_off = static_cast<uint32_t>(p.tokens.size());
        p.windows.push_back(w);
        if (drafts) {
            p.drafts.push_back({slot, 1, 0, 0});
        }
        warm_ids(w.rows, &p.tokens);
    }
    return warm_step(p.view(), timing);
}

/// Sizes of windows and of draft passes. Every pass goes through all sizes, so that a disturbance
/// of the machine hits one sample of each and not all of one.
Status Dsv41Model::warm_rounds(int64_t length, int64_t most, bool measure) {
    const auto slots = static_cast<int64_t>(slots_.size());
    std::vector<int64_t> sizes;
    for (int64_t rows = 1; rows < most; rows += rows < 8 ? 1 : 4) {
        sizes.push_back(rows);
    }
    sizes.push_back(most);
    const int64_t streams = parts_.with_drafts ? std::min(slots, most) : 0;
    std::vector<std::vector<int64_t>> windows(sizes.size());
    std::vector<std::vector<int64_t>> drafts(static_cast<size_t>(streams));
    StepTiming timing;
    for (int pass = 0; pass < (measure ? kPasses : 1); ++pass) {
        for (size_t i = 0; i < sizes.size(); ++i) {
            const int64_t rows = sizes[i];
            const int64_t most_rows = parts_.info.max_window_rows;
            const int64_t fewest = (rows + most_rows - 1) / most_rows;
            const int64_t usual = std::min((rows + kUsualWindow - 1) / kUsualWindow, slots);
            TENON_TRY(warm_windows(length, rows, std::max(usual, fewest), false, &timing));
            windows[i].push_back(std::max<int64_t>(timing.windows, 1));
        }
        for (int64_t n = 1; n <= streams; ++n) {
            TENON_TRY(warm_windows(length, n, n, true, &timing));
            drafts[static_cast<size_t>(n) - 1].push_back(std::max<int64_t>(timing.drafts, 1));
        }
    }
    // No size costs more than a larger one: what seems to was disturbed.
    int64_t least = std::numeric_limits<int64_t>::max();
    for (size_t i = sizes.size(); i > 0; --i) {
        least = std::min(least, median(windows[i - 1]));
        cost_windows_[static_cast<size_t>(sizes[i - 1])] = least;
    }
    least = std::numeric_limits<int64_t>::max();
    for (size_t n = drafts.size(); n > 0; --n) {
        least = std::min(least, median(drafts[n - 1]));
        cost_drafts_[n] = least;
    }
    return {};
}

Status Dsv41Model::warm_chunk(int64_t rows, int64_t* us) {
    WarmPlan p;
    p.open(0, (rows + parts_.shape.page_tokens - 1) / parts_.shape.page_tokens);
    warm_ids(rows, &p.tokens);
    plan::Chunk c;
    c.generation = 1;
    p.add_chunk(c, rows);
    StepTiming timing;
    TENON_TRY(warm_step(p.view(), &timing));
    *us = std::max<int64_t>(timing.chunks, 1);
    WarmPlan end;
    end.close(0);
    return warm_step(end.view(), &timing);
}

Status Dsv41Model::warm_up(const WarmUp& options, CostTable* out) noexcept {
    return guard([&]() -> Status {
        const auto slots = static_cast<int64_t>(slots_.size());
        const int64_t most = std::min<int64_t>(parts_.info.max_step_rows,
                                               int64_t{parts_.info.max_window_rows} * slots);
        cost_windows_.assign(static_cast<size_t>(parts_.info.max_step_rows) + 1, 0);
        cost_drafts_.assign(slots_.size() + 1, 0);
        cost_stages_.assign(1, 0);
        // Two pages a slot exist for every geometry (engine.md 1.7).
        const int64_t room =
            std::min(2 * int64_t{parts_.shape.page_tokens}, parts_.shape.context_tokens) -
            parts_.info.max_window_rows;
        const int64_t length =
            std::clamp<int64_t>(room, 0, std::min<int64_t>(kWarmRows, parts_.info.max_chunk_rows));
        TENON_TRY_CTX(warm_open(length), "warm-up");
        // The first pass pays for page faults and first touches; only later ones are kept.
        StepTiming timing;
        TENON_TRY_CTX(
            warm_windows(length, most, std::min(slots, most), parts_.with_drafts, &timing),
            "warm-up");
        TENON_TRY_CTX(capture_graphs(), "warm-up");
        TENON_TRY_CTX(warm_rounds(length, most, options.measure), "warm-up");
        WarmPlan end;
        for (int64_t s = 0; s < slots; ++s) {
            end.close(static_cast<uint32_t>(s));
        }
        TENON_TRY_CTX(warm_step(end.view(), &timing), "warm-up");
        const int64_t chunk =
            std::min<int64_t>(parts_.info.max_chunk_rows, parts_.shape.context_tokens);
        const int64_t sample = std::min<int64_t>(chunk, options.measure ? 256 : 16);
        int64_t chunk_us = 0;
        TENON_TRY_CTX(warm_chunk(sample, &chunk_us), "warm-up");
        cost_stages_[0] = chunk_us * parts_.info.max_chunk_rows / sample;
        interpolate(&cost_windows_);
        interpolate(&cost_drafts_);
        fault_base_ = device_->fault_count();
        step_ = Step();
        CostTable table;
        table.window_us = cost_windows_;
        table.draft_us = cost_drafts_;
        table.stage_us = cost_stages_;
        *out = table;
        return {};
    });
}

}  // namespace tenon::dsv41
