// SPDX-License-Identifier: MIT
// Hand-made plans for slot 0; page i of the pool is page i of the sequence.
#include "host/lifecycle/step_driver.h"

#include <algorithm>

namespace tenon {
namespace {

// Logits of 256 rows of a large vocabulary are 132 MB already; chunk sizes change no bits.
constexpr int64_t kLogitRows = 256;

}  // namespace

StepDriver::StepDriver(Model& model, const ModelRequest& request)
    : model_(model), request_(request) {}

Status StepDriver::run(StepPlan* p, StepResult* result) {
    p->header.step = ++step_;
    TENON_TRY(model_.submit(*p));
    TENON_TRY(model_.collect(step_, Stage::tokens, result));
    TENON_TRY(model_.collect(step_, Stage::drafts, result));
    return model_.collect(step_, Stage::done, result);
}

Status StepDriver::open() {
    TENON_TRY(close());
    plan::SlotOp op;
    op.generation = ++generation_;
    op.op = plan::SlotOpKind::open;
    op.request = generation_;
    // The sampler is part of the slot's state: greedy, no stop ids.
    plan::Sampler sampler;
    sampler.generation = generation_;
    sampler.temperature = 0;
    StepPlan p;
    p.slot_ops = Span<const plan::SlotOp>(&op, 1);
    p.samplers = Span<const plan::Sampler>(&sampler, 1);
    StepResult result;
    TENON_TRY(run(&p, &result));
    open_ = true;
    length_ = 0;
    mapped_ = 0;
    return {};
}

Status StepDriver::close() {
    if (!open_) {
        return {};
    }
    plan::SlotOp op;
    op.generation = generation_;
    op.op = plan::SlotOpKind::close;
    StepPlan p;
    p.slot_ops = Span<const plan::SlotOp>(&op, 1);
    StepResult result;
    open_ = false;
    return run(&p, &result);
}

Status StepDriver::ensure_pages(int64_t length, std::vector<plan::PageMap>* maps,
                                std::vector<int32_t>* pages) {
    const ModelInfo& info = model_.info();
    // Rows of a window beyond the context are never asked for, so their pages need no table entry.
    const int64_t want =
        (std::min(length, request_.context_tokens) + info.page_tokens - 1) / info.page_tokens;
    if (want > pool_pages(request_, info)) {
        return error(Code::does_not_fit, "{} tokens need {} pages, the pool has {}", length, want,
                     pool_pages(request_, info));
    }
    if (want <= mapped_) {
        return {};
    }
    plan::PageMap map;
    map.generation = generation_;
    map.first_index = static_cast<uint32_t>(mapped_);
    map.count = static_cast<uint32_t>(want - mapped_);
    for (; mapped_ < want; ++mapped_) {
        pages->push_back(static_cast<int32_t>(mapped_));
    }
    maps->push_back(map);
    return {};
}

Status StepDriver::prefill(Span<const int32_t> ids, const Rows& logits) {
    auto* facet = facet_of<ModelLogits>(&model_);
    const bool wanted = logits != nullptr;
    if (wanted && facet == nullptr) {
        return error(Code::unavailable, "the model does not offer the facet {}",
                     ModelLogits::kFacet);
    }
    if (facet != nullptr) {
        facet->want(wanted);
    }
    const auto n = static_cast<int64_t>(ids.size);
    const int64_t most = model_.info().max_chunk_rows;
    for (int64_t at = 0; at < n;) {
        const int64_t rows = std::min(n - at, wanted ? std::min(most, kLogitRows) : most);
        std::vector<plan::PageMap> maps;
        std::vector<int32_t> pages;
        TENON_TRY(ensure_pages(length_ + rows, &maps, &pages));
        plan::Chunk chunk;
        chunk.generation = generation_;
        chunk.begin = length_;
        chunk.end = length_ + rows;
        chunk.stage_end = model_.info().prefill_stages;
        plan::Target target;
        target.at = chunk.end;
        target.outputs = wanted ? static_cast<int32_t>(rows) : 0;
        chunk.target_count = 1;
        StepPlan p;
        p.page_maps = maps;
        p.pages = pages;
        p.tokens = ids.subspan(static_cast<uint64_t>(at), static_cast<uint64_t>(rows));
        p.chunks = Span<const plan::Chunk>(&chunk, 1);
        p.targets = Span<const plan::Target>(&target, 1);
        StepResult result;
        TENON_TRY(run(&p, &result));
        if (result.chunks.size != 1 || result.chunks[0].status != RowStatus::ok) {
            return error(Code::io,
                         "rows {} to {}: Engram rows could not be read or logits are not finite",
                         chunk.begin, chunk.end);
        }
        if (wanted) {
            TensorView view;
            TENON_TRY(facet->rows(p.header.step, &view));
            TENON_TRY(logits(view));
        }
        length_ += rows;
        at += rows;
    }
    return {};
}

Status StepDriver::round(Span<const int32_t> tokens, bool draft, Round* out) {
    std::vector<plan::PageMap> maps;
    std::vector<int32_t> pages;
    TENON_TRY(ensure_pages(length_ + 1 + 2 * plan::kMaxWindowRows, &maps, &pages));
    plan::Window window;
    window.generation = generation_;
    window.position = length_;
    window.rows = static_cast<int32_t>(tokens.size);
    plan::Draft pass;
    pass.generation = generation_;
    pass.rows = model_.info().draft_rows;
    StepPlan p;
    p.page_maps = maps;
    p.pages = pages;
    p.tokens = tokens;
    p.windows = Span<const plan::Window>(&window, 1);
    if (draft) {
        p.drafts = Span<const plan::Draft>(&pass, 1);
    }
    StepResult result;
    TENON_TRY(run(&p, &result));
    if (result.windows.size != 1 || result.windows[0].status != RowStatus::ok ||
        result.windows[0].emitted < 1) {
        return error(Code::io,
                     "position {}: Engram rows could not be read or logits are not finite",
                     length_);
    }
    const int32_t* first = result.tokens.data + result.windows[0].tokens_off;
    out->emitted.assign(first, first + result.windows[0].emitted);
    out->timing = result.timing;
    out->drafts.clear();
    if (draft && result.drafts.size == 1) {
        const auto& found = result.drafts[0];
        out->drafts.assign(found.tokens, found.tokens + found.count);
    }
    length_ += result.windows[0].emitted;
    return {};
}

Status StepDriver::announce(Span<const int32_t> tokens) {
    TokenHint hint;
    hint.generation = generation_;
    hint.position = length_;
    hint.tokens = tokens;
    Status status = model_.prefetch(Span<const TokenHint>(&hint, 1));
    // Advice: a model that cannot take it reads the rows in the round.
    return status.code() == Code::unsupported ? Status() : std::move(status);
}

Status StepDriver::decode(int32_t pending, int32_t* next) {
    Round one;
    TENON_TRY(round(Span<const int32_t>(&pending, 1), false, &one));
    *next = one.emitted[0];
    return {};
}

Status StepDriver::decode_and_draft(int32_t pending, int32_t* next, std::vector<int32_t>* drafts) {
    Round one;
    TENON_TRY(round(Span<const int32_t>(&pending, 1), true, &one));
    *next = one.emitted[0];
    *drafts = std::move(one.drafts);
    return {};
}

}  // namespace tenon
