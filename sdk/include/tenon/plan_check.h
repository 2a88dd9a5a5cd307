// SPDX-License-Identifier: MIT
// Limits of plans and results that need no state: counts, ranges, spans inside pools
// (engine.md 1.5).
#pragma once

#include <cmath>

#include "tenon/plan.h"

namespace tenon::plan {

constexpr uint64_t kMaxPlanBytes = 4u << 20;
constexpr uint32_t kMaxSections = 32;
constexpr uint64_t kMaxWindows = 256;
constexpr int64_t kMaxRows = 512;  ///< of all windows
constexpr uint64_t kMaxChunks = 16;
constexpr int64_t kMaxChunkTokens = 16'384;
constexpr uint64_t kMaxTargets = 64;
constexpr uint32_t kMaxChunkTargets = 4;
constexpr uint64_t kMaxPageEntries = 65'536;
constexpr uint32_t kMaxStops = 16;
constexpr uint32_t kMaxBias = 4096;
constexpr int32_t kMaxLogprobs = 20;
constexpr int64_t kMaxPosition = int64_t{1} << 40;  ///< keeps sums of positions far from overflow

constexpr uint64_t kKnownFlags = kDrain | kNeedsMasks | kRecord;
constexpr uint16_t kSectionRequired = 1;

namespace detail {

inline Status bad(const char* section, uint64_t index, const char* what) {
    return error(Code::invalid_argument, "{}[{}]: {}", section, index, what);
}

inline bool inside(uint64_t offset, uint64_t count, uint64_t pool) {
    return offset <= pool && count <= pool - offset;
}

inline bool position_ok(int64_t p) {
    return p >= 0 && p <= kMaxPosition;
}

inline Status check_snaps(const char* name, Span<const SnapOp> ops, bool out, uint64_t pages) {
    for (uint64_t i = 0; i < ops.size; ++i) {
        const SnapOp& s = ops[i];
        const bool is_out = s.op == SnapOpKind::save || s.op == SnapOpKind::exports;
        if (s.op < SnapOpKind::restore || s.op > SnapOpKind::exports || is_out != out) {
            return bad(name, i, "operation does not belong here");
        }
        if (s.kind < CutKind::full || s.kind > CutKind::partial || !position_ok(s.at) ||
            s.reserved != 0) {
            return bad(name, i, "cut kind, position or reserved field out of range");
        }
        if (!inside(s.pages_off, s.pages_count, pages)) {
            return bad(name, i, "pages lie outside the pool");
        }
        const bool has_piece = s.op == SnapOpKind::import || s.op == SnapOpKind::exports;
        if (s.staged > (has_piece ? s.pages_count : 0)) {
            return bad(name, i, "more pages are staged than it names");
        }
    }
    return {};
}

inline Status check_sampler(const Sampler& s, uint64_t i, uint64_t tokens, uint64_t pairs) {
    const float floats[] = {s.temperature, s.top_p, s.min_p, s.presence, s.frequency, s.repetition};
    for (const float f : floats) {
        if (!std::isfinite(f)) {
            return bad("sampler", i, "not finite");
        }
    }
    if (s.temperature < 0 || s.top_p <= 0 || s.top_p > 1 || s.min_p < 0 || s.min_p >= 1 ||
        s.repetition <= 0 || s.top_k < 0 || s.logprobs < -1 || s.logprobs > kMaxLogprobs) {
        return bad("sampler", i, "a parameter is out of range");
    }
    if (s.bias_count > kMaxBias || s.stop_count > kMaxStops ||
        !inside(s.bias_off, s.bias_count, pairs) || !inside(s.stop_off, s.stop_count, tokens) ||
        !inside(s.counts_off, s.counts_count, pairs)) {
        return bad("sampler", i, "bias, stops or counts lie outside their pool or limit");
    }
    if ((s.reserved[0] | s.reserved[1] | s.reserved[2]) != 0) {
        return bad("sampler", i, "reserved fields are not zero");
    }
    return {};
}

inline Status check_window(const Window& w, uint64_t i, uint64_t tokens) {
    if (w.rows < 1 || w.rows > kMaxWindowRows || w.forced < 0 || w.forced >= w.rows) {
        return bad("window", i, "rows or forced out of range");
    }
    if (w.accept_max < 1 || w.accept_max > kMaxWindowRows || w.top < 0 || w.top > kMaxLogprobs) {
        return bad("window", i, "accept_max or top out of range");
    }
    if (!position_ok(w.position) || w.source > 1 || w.reserved != 0 ||
        (w.flags & ~(kMasked | kWantLogprobs | kDrafted)) != 0) {
        return bad("window", i, "position, source, flags or reserved field out of range");
    }
    if (!inside(w.tokens_off, static_cast<uint64_t>(w.rows), tokens)) {
        return bad("window", i, "tokens lie outside the pool");
    }
    return {};
}

inline Status check_chunk(const Chunk& c, uint64_t i, const StepPlan& p) {
    if (!position_ok(c.begin) || !position_ok(c.end) || c.begin >= c.end) {
        return bad("chunk", i, "begin and end are no range");
    }
    if (c.stage_begin < 0 || c.stage_begin >= c.stage_end || c.stage_end > 4096) {
        return bad("chunk", i, "stages are no range");
    }
    if ((c.flags & ~uint32_t{kBoundedReplay}) != 0 || c.reserved != 0) {
        return bad("chunk", i, "flags or reserved field out of range");
    }
    if (c.end - c.begin > kMaxChunkTokens ||
        !inside(c.tokens_off, static_cast<uint64_t>(c.end - c.begin), p.tokens.size)) {
        return bad("chunk", i, "tokens lie outside the pool or beyond the limit");
    }
    if (c.target_count > kMaxChunkTargets ||
        !inside(c.target_off, c.target_count, p.targets.size) ||
        !inside(c.image_off, c.image_count, p.image_runs.size)) {
        return bad("chunk", i, "targets or image runs lie outside their section");
    }
    return {};
}

}  // namespace detail

/// Everything about a plan that can be checked without state. Allocates only for its error.
inline Status check(const StepPlan& p) {
    using detail::bad;
    using detail::inside;
    using detail::position_ok;
    if (p.windows.size > kMaxWindows || p.chunks.size > kMaxChunks ||
        p.targets.size > kMaxTargets || p.pages.size > kMaxPageEntries) {
        return error(Code::invalid_argument,
                     "{} windows, {} chunks, {} targets, {} page entries; limits {}, {}, {}, {}",
                     p.windows.size, p.chunks.size, p.targets.size, p.pages.size, kMaxWindows,
                     kMaxChunks, kMaxTargets, kMaxPageEntries);
    }
    for (uint64_t i = 0; i < p.slot_ops.size; ++i) {
        const SlotOp& s = p.slot_ops[i];
        const bool known = s.op == SlotOpKind::open || s.op == SlotOpKind::close ||
                           s.op == SlotOpKind::rewind || s.op == SlotOpKind::abandon_chunk;
        if (!known || !position_ok(s.length) || s.reserved != 0) {
            return bad("slot_op", i, "operation, length or reserved field out of range");
        }
    }
    uint64_t entries = 0;
    for (uint64_t i = 0; i < p.page_maps.size; ++i) {
        const PageMap& m = p.page_maps[i];
        entries += m.count;
        if (m.count == 0 || entries > kMaxPageEntries || m.reserved != 0 ||
            !inside(m.pages_off, m.count, p.pages.size)) {
            return bad("page_map", i, "pages lie outside the pool or beyond the limit");
        }
    }
    for (uint64_t i = 0; i < p.page_copies.size; ++i) {
        const PageCopy& c = p.page_copies[i];
        if (c.src < 0 || c.dst < 0 || c.src == c.dst || c.tokens < 1 || c.reserved != 0) {
            return bad("page_copy", i, "source, destination or token count out of range");
        }
    }
    TENON_TRY(detail::check_snaps("snap_in", p.snap_in, false, p.pages.size));
    TENON_TRY(detail::check_snaps("snap_out", p.snap_out, true, p.pages.size));
    for (uint64_t i = 0; i < p.samplers.size; ++i) {
        TENON_TRY(detail::check_sampler(p.samplers[i], i, p.tokens.size, p.pairs.size));
    }
    for (uint64_t i = 0; i < p.features.size; ++i) {
        const Feature& f = p.features[i];
        if (f.op < 1 || f.op > 2 || f.rows < 0 || f.grid_rows < 0 || f.grid_cols < 0 ||
            f.reserved != 0 || f.reserved2 != 0) {
            return bad("feature", i, "a field is out of range");
        }
    }
    int64_t rows = 0;
    for (uint64_t i = 0; i < p.windows.size; ++i) {
        TENON_TRY(detail::check_window(p.windows[i], i, p.tokens.size));
        rows += p.windows[i].rows;
    }
    if (rows > kMaxRows) {
        return error(Code::invalid_argument, "{} window rows, limit {}", rows, kMaxRows);
    }
    for (uint64_t i = 0; i < p.drafts.size; ++i) {
        const Draft& d = p.drafts[i];
        if (d.rows < 1 || d.rows > kMaxDrafts || d.reserved != 0) {
            return bad("draft", i, "rows or reserved field out of range");
        }
    }
    int64_t chunk_tokens = 0;
    for (uint64_t i = 0; i < p.chunks.size; ++i) {
        TENON_TRY(detail::check_chunk(p.chunks[i], i, p));
        chunk_tokens += p.chunks[i].end - p.chunks[i].begin;
    }
    if (chunk_tokens > kMaxChunkTokens) {
        return error(Code::invalid_argument, "{} chunk tokens, limit {}", chunk_tokens,
                     kMaxChunkTokens);
    }
    for (uint64_t i = 0; i < p.targets.size; ++i) {
        const Target& t = p.targets[i];
        if (!position_ok(t.at) || t.outputs < 0 || t.outputs > t.at || t.kind < CutKind::full ||
            t.kind > CutKind::partial || t.reserved16 != 0 || t.reserved != 0 || t.reserved2 != 0) {
            return bad("target", i, "a field is out of range");
        }
    }
    for (uint64_t i = 0; i < p.image_runs.size; ++i) {
        const ImageRun& r = p.image_runs[i];
        if (!position_ok(r.position) || r.rows < 1 || r.feature_row < 0 || r.reserved != 0 ||
            r.reserved2 != 0) {
            return bad("image_run", i, "a field is out of range");
        }
    }
    for (uint64_t i = 0; i < p.encodes.size; ++i) {
        const Encode& e = p.encodes[i];
        if (e.grid_rows < 1 || e.grid_cols < 1 || e.stage_begin < 0 ||
            e.stage_begin >= e.stage_end || e.reserved != 0 || e.reserved2 != 0) {
            return bad("encode", i, "a field is out of range");
        }
    }
    for (uint64_t i = 0; i < p.prefetches.size; ++i) {
        const Prefetch& f = p.prefetches[i];
        if (!position_ok(f.begin) || !position_ok(f.end) || f.begin > f.end) {
            return bad("prefetch", i, "begin and end are no range");
        }
    }
    return {};
}

/// Everything about a result that can be checked without its plan.
inline Status check(const StepResult& r) {
    using detail::bad;
    using detail::inside;
    for (uint64_t i = 0; i < r.windows.size; ++i) {
        const WindowResult& w = r.windows[i];
        const bool counts = w.status == RowStatus::ok ? w.emitted >= 1 : w.emitted >= 0;
        if (!counts || w.emitted > kMaxWindowRows || w.accepted < 0 || w.accepted > w.emitted ||
            w.top < 0 || w.top > kMaxLogprobs || w.finish > WindowFinish::accept_max ||
            w.status > RowStatus::nan || w.reserved != 0) {
            return bad("window", i, "a field is out of range");
        }
        const auto n = static_cast<uint64_t>(w.emitted);
        const uint64_t lps = w.top > 0 ? n * (1 + static_cast<uint64_t>(w.top)) : 0;
        if (!inside(w.tokens_off, n, r.tokens.size) ||
            !inside(w.logprobs_off, lps, r.logprobs.size)) {
            return bad("window", i, "tokens or logprobs lie outside their pool");
        }
    }
    for (uint64_t i = 0; i < r.drafts.size; ++i) {
        if (r.drafts[i].count < 0 || r.drafts[i].count > kMaxDrafts || r.drafts[i].reserved != 0) {
            return bad("draft", i, "a field is out of range");
        }
    }
    for (uint64_t i = 0; i < r.chunks.size; ++i) {
        const ChunkResult& c = r.chunks[i];
        if (c.stage_end < 0 || c.status > RowStatus::nan ||
            !inside(c.logprobs_off, c.logprobs_count, r.logprobs.size)) {
            return bad("chunk", i, "a field is out of range");
        }
    }
    for (uint64_t i = 0; i < r.jobs.size; ++i) {
        if (r.jobs[i].code > static_cast<uint32_t>(Code::internal) || r.jobs[i].reserved != 0) {
            return bad("job", i, "a field is out of range");
        }
    }
    return {};
}

}  // namespace tenon::plan
