// SPDX-License-Identifier: MIT
// Plans in short.
#include "host/engine/plan_log.h"

#include <algorithm>

namespace tenon::engine {
namespace {

template <class Ranges>
std::string listed(const Ranges& ranges, uint64_t count) {
    std::string out;
    for (uint64_t i = 0; i < std::min<uint64_t>(count, ranges.size()); ++i) {
        out += format("{}{}.{}@{}..{}", i == 0 ? "" : " ", ranges[i].slot, ranges[i].generation,
                      ranges[i].begin, ranges[i].end);
    }
    return count > ranges.size() ? out + format(" and {} more", count - ranges.size()) : out;
}

}  // namespace

void PlanLog::note(const StepPlan& p, uint64_t bytes) {
    Kept& k = plans_[noted_++ % kPlans];
    k.step = p.header.step;
    k.bytes = bytes;
    k.slot_ops = p.slot_ops.size;
    k.page_maps = p.page_maps.size;
    k.page_copies = p.page_copies.size;
    k.snap_in = p.snap_in.size;
    k.snap_out = p.snap_out.size;
    k.samplers = p.samplers.size;
    k.drafts = p.drafts.size;
    k.targets = p.targets.size;
    k.pages = p.pages.size;
    k.windows = p.windows.size;
    for (uint64_t i = 0; i < std::min(k.windows, kWindows); ++i) {
        const plan::Window& w = p.windows[i];
        k.window[i] = {w.slot, w.generation, w.position, w.position + w.rows};
    }
    k.chunks = p.chunks.size;
    for (uint64_t i = 0; i < std::min(k.chunks, kChunks); ++i) {
        const plan::Chunk& c = p.chunks[i];
        k.chunk[i] = {c.slot, c.generation, c.begin, c.end};
    }
}

std::string PlanLog::line_of(const Kept& k) {
    std::string out = format("step={} bytes={} windows=[{}] chunks=[{}]", k.step, k.bytes,
                             listed(k.window, k.windows), listed(k.chunk, k.chunks));
    const auto add = [&out](const char* name, uint64_t count) {
        out += count > 0 ? format(" {}={}", name, count) : "";
    };
    add("slot_ops", k.slot_ops);
    add("page_maps", k.page_maps);
    add("pages", k.pages);
    add("page_copies", k.page_copies);
    add("snap_in", k.snap_in);
    add("snap_out", k.snap_out);
    add("samplers", k.samplers);
    add("drafts", k.drafts);
    add("targets", k.targets);
    return out;
}

}  // namespace tenon::engine
