// SPDX-License-Identifier: MIT
// Warm-up: every size once through submit and collect, measured for the planner's cost table.
#include <algorithm>

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
    std::vector<int32_t> tokens, pages;

    StepPlan view() const {
        StepPlan p;
        p.slot_ops = slot_ops;
        p.page_maps = maps;
        p.windows = windows;
        p.drafts = drafts;
        p.chunks = chunks;
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
    void close(uint32_t slot) { slot_ops.push_back({slot, 1, plan::SlotOpKind::close, 0, 0, 0}); }
};

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

/// `rows` window rows spread over as many slots as needed, from position 0; then one draft pass.
Status Dsv41Model::warm_windows(int64_t rows, bool drafts, int64_t* window_us, int64_t* draft_us) {
    WarmPlan p;
    const int64_t per_slot =
        std::min<int64_t>(parts_.info.max_window_rows, parts_.shape.context_tokens - 1);
    int64_t left = rows;
    uint32_t slot = 0;
    for (; left > 0 && slot < slots_.size(); ++slot) {
        const auto n = static_cast<int32_t>(std::min(per_slot, left));
        p.open(slot, 1);
        plan::Window w;
        w.slot = slot;
        w.generation = 1;
        w.rows = n;
        w.accept_max = n;
        w.tokens_off = static_cast<uint32_t>(p.tokens.size());
        p.windows.push_back(w);
        if (drafts) {
            p.drafts.push_back({slot, 1, 0, 0});
        }
        p.tokens.resize(p.tokens.size() + static_cast<size_t>(n), 0);
        left -= n;
    }
    TENON_TRY(submit(p.view()));
    StepResult result;
    TENON_TRY(collect(0, Stage::done, &result));
    *window_us = std::max<int64_t>(result.timing.windows, 1);
    *draft_us = std::max<int64_t>(result.timing.drafts, 1);
    WarmPlan end;
    for (uint32_t s = 0; s < slot; ++s) {
        end.close(s);
    }
    TENON_TRY(submit(end.view()));
    return collect(0, Stage::done, &result);
}

Status Dsv41Model::warm_chunk(int64_t rows, int64_t* us) {
    WarmPlan p;
    p.open(0, (rows + parts_.shape.page_tokens - 1) / parts_.shape.page_tokens);
    p.tokens.assign(static_cast<size_t>(rows), 0);
    plan::Chunk c;
    c.generation = 1;
    c.end = rows;
    p.chunks.push_back(c);
    TENON_TRY(submit(p.view()));
    StepResult result;
    TENON_TRY(collect(0, Stage::done, &result));
    *us = std::max<int64_t>(result.timing.chunks, 1);
    WarmPlan end;
    end.close(0);
    TENON_TRY(submit(end.view()));
    return collect(0, Stage::done, &result);
}

Status Dsv41Model::warm_up(const WarmUp& options, CostTable* out) noexcept {
    return guard([&]() -> Status {
        const int64_t most = std::min<int64_t>(
            parts_.info.max_step_rows, int64_t{parts_.info.max_window_rows} * parts_.shape.slots);
        cost_windows_.assign(static_cast<size_t>(parts_.info.max_step_rows) + 1, 0);
        cost_drafts_.assign(slots_.size() + 1, 0);
        cost_stages_.assign(1, 0);
        int64_t window_us = 0;
        int64_t draft_us = 0;
        // The first pass pays for page faults and first touches; only later ones are kept.
        TENON_TRY_CTX(warm_windows(most, parts_.with_drafts, &window_us, &draft_us), "warm-up");
        const int64_t chunk =
            std::min<int64_t>(parts_.info.max_chunk_rows, parts_.shape.context_tokens);
        const int64_t sample =
            options.measure ? std::min<int64_t>(chunk, 256) : std::min<int64_t>(chunk, 16);
        int64_t chunk_us = 0;
        TENON_TRY_CTX(warm_chunk(sample, &chunk_us), "warm-up");
        cost_stages_[0] = chunk_us * parts_.info.max_chunk_rows / sample;
        if (options.measure) {
            for (int64_t rows = 1; rows <= most; rows = rows < 4 ? rows + 1 : rows * 2) {
                TENON_TRY_CTX(warm_windows(rows, parts_.with_drafts, &window_us, &draft_us),
                              "warm-up");
                cost_windows_[static_cast<size_t>(rows)] = window_us;
                const int64_t streams =
                    (rows + parts_.info.max_window_rows - 1) / parts_.info.max_window_rows;
                cost_drafts_[static_cast<size_t>(streams)] = draft_us;
            }
        }
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
