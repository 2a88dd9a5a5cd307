// SPDX-License-Identifier: MIT
// The memory plan: weights by format, state by slots and context, buffers by rows.
#include "memory_plan.h"

#include <algorithm>

#include "decode_graphs.h"
#include "plugins/quant_common/weight_pipe.h"
#include "slots.h"
#include "snapshots.h"
#include "staging.h"
#include "step_block.h"

namespace tenon::dsv41 {

namespace {

constexpr int64_t kScoreArena = int64_t{64} << 20;
constexpr int64_t kDecodeRows = 64;

constexpr int64_t round_up(int64_t value, int64_t to) {
    return (value + to - 1) / to * to;
}

int64_t padded(int64_t bytes) {
    return StepBlock::padded(bytes);
}

int64_t draft_group_rows(const ModelConfig& c, const StateShape& s) {
    const int64_t block = std::max(c.draft.block, 1);
    const int64_t segments = std::min<int64_t>(s.slots, std::max<int64_t>(kDecodeRows / block, 1));
    return segments * block;
}

// What one decode row reads of the weights under a tag; drafts are a pass of their own.
int64_t bytes_read_by_row(const ModelConfig& c, const std::string& tag, int64_t bytes) {
    if (tag == "weights.experts") {
        const int64_t shared = c.shared_experts > 0 ? 1 : 0;
        return bytes * (c.experts_per_token + shared) / (c.experts + shared);
    }
    if (tag == "weights.embed") {
        return bytes / std::max<int64_t>(c.vocab, 1);
    }
    return tag == "weights.draft" ? 0 : bytes;
}

}  // namespace

ActivationShape activation_shape(const ModelConfig& c, const ModelRequest& r, const StateShape& s,
                                 bool with_drafts) {
    ActivationShape a;
    const int64_t drafted = with_drafts ? draft_group_rows(c, s) : 0;
    a.rows = std::max<int64_t>({r.chunk_rows, r.step_rows, drafted});
    a.logit_rows = round_up(std::max<int64_t>(r.step_rows, drafted), 16);
    a.tail_rows = std::max<int64_t>(s.ring_rows, r.step_rows);
    if (!s.sources.empty()) {
        int32_t least = s.sources[0].ratio;
        for (const StateShape::Source& source : s.sources) {
            least = std::min(least, source.ratio);
        }
        a.max_visible = s.context_tokens / least;
        const int64_t row = round_up(std::max<int64_t>(a.max_visible, 4), 4) * 4;
        const int64_t all = round_up(a.rows, 16) * row;
        a.score_bytes = std::max(std::min(all, kScoreArena), 16 * row);
    }
    return a;
}

BlockSizes block_sizes(const ModelConfig& c, const ModelRequest& r, const StateShape& s) {
    BlockSizes b;
    const int64_t rows = r.step_rows;
    const int64_t slots = s.slots;
    const int64_t block = std::max(c.draft.block, 1);
    const int64_t words = (int64_t{c.vocab} + 31) / 32;
    b.window = padded(rows * 4) * 3 + padded(rows * static_cast<int64_t>(sizeof(RowInfo))) +
               padded(slots * static_cast<int64_t>(sizeof(SegInfo))) +
               padded(rows * static_cast<int64_t>(sizeof(SampleParams))) +
               padded(slots * static_cast<int64_t>(sizeof(VerifyLimits))) + padded((rows + 1) * 4) +
               2 * padded(rows * kMaxBias * 4) + padded(rows * words * 4) + padded(slots * 4) +
               padded(slots * static_cast<int64_t>(sizeof(SampleParams))) +
               2 * padded(slots * plan::kMaxWindowRows * 4) + 4096;
    const int64_t chunk = r.chunk_rows;
    // Logit tiles of a chunk take two padded lists of at least 16 rows each.
    b.chunk = padded(chunk * 4) + padded(chunk * static_cast<int64_t>(sizeof(RowInfo))) +
              2 * padded(64) + 2 * (c.layers + 1) * padded(64) + (chunk / 16 + 1) * 2 * 512 +
              3 * padded(kMaxPageCopies * 4) + 4096;
    const int64_t logit_rows = round_up(std::max<int64_t>(rows, draft_group_rows(c, s)), 16);
    b.output = padded(slots * 128) + padded(16) + 4 * padded(logit_rows * 4) +
               2 * padded(logit_rows * kMaxLogprobs * 4) + 2 * padded(slots * (block + 1) * 4) +
               4096;
    const int64_t drafted = slots * block;
    b.work = padded(drafted * 4) + padded(drafted * 16) + padded(slots * 32) +
             padded(int64_t{std::max(r.world, 1)} * slots * 8) + padded(slots * 8) + 4096;
    return b;
}

EngramOptions engram_options(const ModelConfig&, const ModelRequest& r, const StateShape& s,
                             EngramLayout layout) {
    EngramOptions o;
    o.layout = layout;
    o.self_test = r.engram_self_test;
    // Windows, and two chunks in turn: the second is read while the first runs.
    o.regions = {r.step_rows, r.chunk_rows, r.chunk_rows};
    o.early_slots = s.slots;
    return o;
}

int64_t tail_distance(const ModelConfig& c, bool exact) {
    if (!has_tail(c)) {
        return 0;
    }
    const int64_t above = c.layers - 1 - c.kv_sources.back();
    return exact ? above * (c.window - 1) : c.window;
}

bool has_tail(const ModelConfig& c) {
    const int32_t source = c.kv_sources.empty() ? c.layers : c.kv_sources.back();
    const bool tables_below = std::all_of(c.engram.layers.begin(), c.engram.layers.end(),
                                          [source](int32_t layer) { return layer <= source; });
    return source + 1 < c.layers && tables_below;
}

ModelInfo model_info(const ModelConfig& c, const ModelRequest& r, const StateShape& s) {
    ModelInfo info;
    info.page_tokens = s.page_tokens;
    info.page_bytes = s.page_bytes;
    info.max_window_rows = r.window_rows;
    info.max_step_rows = r.step_rows;
    info.max_chunk_rows = r.chunk_rows;
    info.prefill_stages = 1;
    info.partial_distance = tail_distance(c, r.replay_exact);
    info.has_tables = c.has_engram();
    info.draft_rows = r.drafts ? c.draft.block : 0;
    info.draft_max = info.draft_rows;
    info.numeric_classes = 1;
    info.max_in_flight = 1;
    info.ring_slack = s.ring_rows - c.window;
    info.vocab = c.vocab;
    info.context_limit = c.max_positions;
    info.snapshot_bytes = snapshot_shape(c, s, r.drafts && c.has_drafts()).cell_bytes;
    std::snprintf(info.family, sizeof info.family, "dsv41");
    std::snprintf(info.summary, sizeof info.summary,
                  "layers=%d hidden=%d heads=%dx%d experts=%d top=%d engram_tables=%d "
                  "draft_stages=%d vocab=%d",
                  c.layers, c.hidden, c.heads, c.head_dim, c.experts, c.experts_per_token,
                  static_cast<int>(c.engram.layers.size()), c.draft.stages, c.vocab);
    return info;
}

void PlanTable::add(std::string tag, PlanPlace place, int64_t bytes, int64_t count,
                    std::string note) {
    if (bytes <= 0) {
        return;
    }
    texts_.push_back(std::move(tag));
    const StrView tag_view(texts_.back());
    texts_.push_back(std::move(note));
    MemoryEntry e;
    e.tag = tag_view;
    e.place = place;
    e.bytes = bytes;
    e.count = count;
    e.note = texts_.back();
    entries_.push_back(e);
}

Status PlanTable::build(const ModelConfig& c, const ModelRequest& r, WeightSource& weights,
                        Span<QuantFormat* const> formats, MemoryPlan* out) {
    entries_.clear();
    texts_.clear();
    texts_.reserve(128);  // views into it must not move
    TENON_ASSIGN(const StateShape s, state_shape(c, r));
    const RankShape ranks{r.rank, r.world};
    const bool with_drafts = r.drafts && c.has_drafts();
    WeightLoader loader(weights, formats, nullptr, nullptr, r.rank, r.world);
    loader.plan_for(r.device);
    ModelWeights unused;
    TENON_TRY(load_weights(c, ranks, with_drafts, loader, &unused));
    out->token_bytes = 0;
    for (const auto& [tag, bytes] : loader.bytes()) {
        add(tag, PlanPlace::device, bytes, 1, "");
        out->token_bytes += bytes_read_by_row(c, tag, bytes);
    }
    if (r.device != nullptr && !r.device->info().cpu) {
        add(quant::kRingTag, PlanPlace::pinned, quant::kRingBytes, 1, "while weights load");
        add("weight staging", PlanPlace::device, std::min(loader.largest(), quant::kStagingBytes),
            1, "while weights load");
    }

    add("state.pages", PlanPlace::device, s.pages * s.page_bytes, s.pages,
        format("pages of {} tokens, {} bytes each", s.page_tokens, s.page_bytes));
    const int64_t table = padded(s.slots * s.table_width * 4);
    add("state.tables", PlanPlace::device, table, s.slots, "page tables");
    add("state.tables", PlanPlace::pinned, table, s.slots, "host mirror of the page tables");
    const int64_t layers = c.layers + (with_drafts ? c.draft.stages : 0);
    const int64_t rings = s.ring_bytes_per_slot(c) * layers;
    add("state.windows", PlanPlace::device,
        s.ring_bytes(c, layers) + padded(s.slots * s.raw_bytes_per_slot(c)) + 256, s.slots,
        format("rings of {} rows and raw pairs", s.ring_rows));
    const SnapshotShape cut = snapshot_shape(c, s, with_drafts);
    add("snapshots", PlanPlace::device, r.snapshot_cells * cut.cell_bytes, r.snapshot_cells,
        format("cells of {} bytes; a full cut takes two", cut.cell_bytes));
    if (r.spill && r.snapshot_cells > 0) {
        add("spill.staging", PlanPlace::pinned,
            kStagingAreas * staging_area_bytes(s, cut) + staging_id_bytes(), kStagingAreas,
            "pieces of kept cuts on their way to and from disk");
        add("spill.staging", PlanPlace::device, staging_id_bytes(), 1, "page ids of pieces");
    }
    if (r.rank == 0) {
        add("sampler", PlanPlace::device, int64_t{s.slots} * c.vocab * 2, s.slots,
            "penalty counts");
        add("sampler", PlanPlace::pinned, int64_t{c.vocab} * 2, 1, "");
    }
    add("masks", PlanPlace::device, (int64_t{c.vocab} + 31) / 32 * 4, 1,
        "ids that are never sampled");

    const ActivationShape shape = activation_shape(c, r, s, with_drafts);
    int64_t local = 0;
    int64_t exchange = 0;
    Activations::plan(c, ranks, shape, false, with_drafts, &local, &exchange);
    add("prefill.scratch", PlanPlace::device, local, shape.rows, "activations of one row group");
    add("exchange", r.world > 1 ? PlanPlace::pinned : PlanPlace::device, exchange, shape.rows,
        "partial sums and logits");
    // What ops ask for is known only when they are bound; experts ask for the most.
    const int64_t slots = c.experts_per_token + 1;
    const int64_t scratch =
        shape.rows * slots * (3 * int64_t{c.expert_width} / r.world + 2 * int64_t{c.hidden}) * 4;
    const BlockSizes blocks = block_sizes(c, r, s);
    add("decode.scratch", PlanPlace::device, scratch + blocks.work, 1,
        "scratch of single ops, estimated");
    if (r.device != nullptr && r.world == 1 && facet_of<GraphCapture>(r.device) != nullptr) {
        const GraphSizes graphs =
            graph_sizes(c, r.step_rows, s.slots, s.context_tokens, with_drafts);
        add("graphs", PlanPlace::device, graph_bytes(c, graphs),
            static_cast<int64_t>(graphs.rows.size()), "captured decode rounds, estimated");
    }
    add("plan", PlanPlace::pinned, blocks.window + blocks.chunk, 1, "step blocks");
    add("plan", PlanPlace::device, blocks.window + blocks.chunk, 1, "step blocks");
    add("logprobs", PlanPlace::pinned, blocks.output, 1, "results");
    add("logprobs", PlanPlace::device, blocks.output, 1, "results");
    if (c.has_engram()) {
        const EngramOptions o = engram_options(c, r, s, EngramLayout::automatic);
        add("engram.staging", PlanPlace::pinned, EngramReader::staging_bytes(c, ranks, o),
            r.chunk_rows,
            format("two chunks, one window group, {} positions a slot",
                   EngramReader::kEarlyPositions));
        int64_t rows = 0;
        for (const int64_t n : c.engram.rows) {
            rows += n;
        }
        add("engram.tables", PlanPlace::disk, rows / r.world * engram_row_bytes(c.engram.width),
            rows / r.world, "rows");
    }
    out->entries = entries_;
    out->bytes_per_context_token = (s.page_bytes + s.page_tokens - 1) / s.page_tokens;
    out->bytes_per_slot = rings + s.raw_bytes_per_slot(c) +
                          (r.rank == 0 ? int64_t{c.vocab} * 2 : 0) + s.table_width * 8 +
                          2 * s.page_bytes;
    return {};
}

}  // namespace tenon::dsv41
