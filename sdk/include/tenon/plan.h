// SPDX-License-Identifier: MIT
// The step plan and its result: everything that changes model state, as plain records
// (engine.md 1.5, 1.6).
#pragma once

#include "tenon/base.h"

namespace tenon::plan {

constexpr uint32_t kPlanMagic = 0x50534E54;    // "TNSP"
constexpr uint32_t kResultMagic = 0x52534E54;  // "TNSR"
constexpr uint16_t kMajor = 1;
constexpr uint16_t kMinor = 0;

constexpr int32_t kMaxWindowRows = 16;
constexpr int32_t kMaxDrafts = 15;

enum class SectionKind : uint16_t {
    slot_op = 1,
    page_map = 2,
    page_copy = 3,
    snap_in = 4,
    sampler = 5,
    feature = 6,
    window = 7,
    draft = 8,
    chunk = 9,
    target = 10,
    image_run = 11,
    encode = 12,
    snap_out = 13,
    prefetch = 14,
    tokens = 15,
    pages = 16,
    pairs = 17,
    bytes = 18,
    note = 19,
};

/// Wire header of a plan or a result, 64 bytes.
struct Header {
    uint32_t magic = kPlanMagic;
    uint16_t major = kMajor, minor = kMinor;
    uint32_t total_bytes = 0;
    uint32_t sections = 0;
    uint64_t step = 0;
    uint64_t group_epoch = 0;  ///< equal on all ranks; a plan of another one is refused
    uint64_t chain = 0;        ///< digest chain of the newest collected step
    uint64_t chain_step = 0;   ///< that step
    uint64_t digest = 0;       ///< XXH3-64 of all bytes with this field zero
    uint64_t flags = 0;        ///< kDrain, kNeedsMasks, kRecord
};
enum : uint64_t { kDrain = 1, kNeedsMasks = 2, kRecord = 4 };

struct SectionHeader {
    uint16_t kind = 0;
    uint16_t flags = 0;  ///< bit 0: required
    uint32_t count = 0;
    uint32_t bytes = 0;  ///< payload, multiple of 8
    uint32_t record_bytes = 0;
};

enum class SlotOpKind : uint32_t { open = 1, close = 2, rewind = 3, abandon_chunk = 5 };
struct SlotOp {
    uint32_t slot = 0, generation = 0;
    SlotOpKind op = SlotOpKind::open;
    uint32_t reserved = 0;
    int64_t length = 0;    ///< rewind: new length
    uint64_t request = 0;  ///< that holds the slot
};

/// Sets page-table entries [first_index, first_index + count) of a slot from pool `pages`.
struct PageMap {
    uint32_t slot = 0, generation = 0;
    uint32_t first_index = 0, count = 0;
    uint32_t pages_off = 0, reserved = 0;
};

struct PageCopy {
    int32_t src = 0, dst = 0;          ///< pages of the pool
    int32_t tokens = 0, reserved = 0;  ///< the rows of that many tokens are copied
};

enum class CutKind : uint16_t { full = 1, tail = 2, partial = 3 };
/// A snapshot's id is the number of its first cell, counted from 1; its cells are neighbours.
constexpr int32_t cells_of(CutKind kind) {
    return kind == CutKind::partial ? 1 : 2;
}
enum class SnapOpKind : uint16_t { restore = 1, import = 2, drop = 3, save = 4, exports = 5 };
/// `import` and `exports` carry one piece of a cut between state and the staging area of `job`
/// (ModelStaging): the last `staged` of its pages, then, if `snapshot` names one, its record. A
/// piece without snapshot brings pages only; an import with one lists all pages of [0, at), and the
/// cut exists from then on.
struct SnapOp {
    SnapOpKind op = SnapOpKind::restore;
    CutKind kind = CutKind::full;
    uint32_t snapshot = 0;
    uint32_t slot = 0, generation = 0;
    int64_t at = 0;
    uint64_t job = 0;
    uint32_t pages_off = 0, pages_count = 0;
    uint32_t staged = 0, reserved = 0;
};

/// Sampling of one slot from this step on (engine.md 1.2). Spans index pools of the same plan.
struct Sampler {
    uint32_t slot = 0, generation = 0;
    float temperature = 1, top_p = 1, min_p = 0;
    float presence = 0, frequency = 0, repetition = 1;
    int32_t top_k = 0, logprobs = -1;
    uint64_t seed = 0;
    uint32_t bias_off = 0, bias_count = 0;  ///< pool pairs {token, f32 bits}
    uint32_t stop_off = 0, stop_count = 0;  ///< pool tokens, at most 16
    uint32_t counts_off = 0,
             counts_count = 0;  ///< pool pairs {token, output count | in-prompt << 31}
    uint64_t reserved[3] = {};
};

struct Feature {
    uint32_t op = 0;       ///< 1 put, 2 drop
    uint32_t feature = 0;  ///< its id in the arena
    int32_t rows = 0, grid_rows = 0, grid_cols = 0;
    uint32_t reserved = 0;
    uint8_t key[32] = {};  ///< RequestImage::key
    uint64_t reserved2 = 0;
};

enum : uint32_t { kMasked = 1, kWantLogprobs = 2, kDrafted = 4 };
/// A decode window: rows `tokens[tokens_off ...]` of a slot at `position` = its length. Row 0 is
/// the pending token; rows 1..forced are given; the others are drafts to verify.
struct Window {
    uint32_t slot = 0, generation = 0;
    int64_t position = 0;
    int32_t rows = 1, forced = 0;
    uint32_t source = 0;  ///< 0 plan, 1 device
    uint32_t flags = 0;   ///< kMasked, kWantLogprobs, kDrafted
    uint32_t tokens_off = 0;
    int32_t top = 0;         ///< logprobs wanted per row
    int32_t accept_max = 1;  ///< bound of emitted
    uint32_t reserved = 0;
};

struct Draft {
    uint32_t slot = 0, generation = 0;
    int32_t rows = 0, reserved = 0;  ///< drafts wanted; the slot has a window in this plan
};

enum : uint32_t { kBoundedReplay = 1 };
struct Chunk {
    uint32_t slot = 0, generation = 0;
    int64_t begin = 0, end = 0;  ///< prompt positions [begin, end); begin = the slot's length
    int32_t stage_begin = 0, stage_end = 1;     ///< of ModelInfo::prefill_stages
    uint32_t flags = 0;                         ///< kBoundedReplay
    uint32_t tokens_off = 0;                    ///< end - begin tokens
    uint32_t target_off = 0, target_count = 0;  ///< at most kMaxChunkTargets
    uint32_t image_off = 0, image_count = 0;
    uint64_t reserved = 0;
};

struct Target {
    int64_t at = 0;         ///< a length; kind full: every layer's state is exact there
    int32_t outputs = 0;    ///< logits are wanted of rows [at - outputs, at)
    uint32_t snapshot = 0;  ///< saved there if not 0
    CutKind kind = CutKind::full;
    uint16_t reserved16 = 0;
    uint32_t reserved = 0;
    uint64_t reserved2 = 0;
};

struct ImageRun {
    int64_t position = 0;
    int32_t rows = 0;                       ///< from `position` on: not tokens
    uint32_t feature = 0;                   ///< where their embeddings are
    int32_t feature_row = 0, reserved = 0;  ///< the first of them
    uint64_t reserved2 = 0;
};

struct Encode {
    uint32_t feature = 0;
    int32_t grid_rows = 0, grid_cols = 0;    ///< patches
    int32_t stage_begin = 0, stage_end = 0;  ///< of the vision tower
    uint32_t reserved = 0;
    uint8_t key[32] = {};  ///< RequestImage::key
    uint64_t reserved2 = 0;
};

struct Prefetch {
    uint32_t slot = 0, generation = 0;
    int64_t begin = 0, end = 0;  ///< positions likely in the next step; advice
};

struct Pair {
    int32_t token = 0;
    uint32_t bits = 0;  ///< f32 bits or counts: see Sampler
};

static_assert(sizeof(Header) == 64 && sizeof(SectionHeader) == 16 && sizeof(SlotOp) == 32);
static_assert(sizeof(PageMap) == 24 && sizeof(PageCopy) == 16 && sizeof(SnapOp) == 48);
static_assert(sizeof(Sampler) == 96 && sizeof(Feature) == 64 && sizeof(Window) == 48);
static_assert(sizeof(Draft) == 16 && sizeof(Chunk) == 64 && sizeof(Target) == 32);
static_assert(sizeof(ImageRun) == 32 && sizeof(Encode) == 64 && sizeof(Prefetch) == 24);
static_assert(sizeof(Pair) == 8);

}  // namespace tenon::plan

namespace tenon {

/// One step for every rank. Spans point into one contiguous buffer owned by the engine (4 in
/// rotation), valid until the step's `done`. Execution order: slot_ops, page_maps, page_copies,
/// snap_in, samplers, features, windows, drafts, chunks, encodes, snap_out.
struct StepPlan {
    plan::Header header;
    Span<const plan::SlotOp> slot_ops;
    Span<const plan::PageMap> page_maps;
    Span<const plan::PageCopy> page_copies;
    Span<const plan::SnapOp> snap_in;
    Span<const plan::Sampler> samplers;
    Span<const plan::Feature> features;
    Span<const plan::Window> windows;
    Span<const plan::Draft> drafts;
    Span<const plan::Chunk> chunks;
    Span<const plan::Target> targets;
    Span<const plan::ImageRun> image_runs;
    Span<const plan::Encode> encodes;
    Span<const plan::SnapOp> snap_out;
    Span<const plan::Prefetch> prefetches;
    Span<const int32_t> tokens;
    Span<const int32_t> pages;
    Span<const plan::Pair> pairs;
    Span<const uint8_t> bytes;
    Span<const uint8_t> note;
};

enum class RowStatus : uint32_t { ok = 0, io = 1, nan = 2 };  ///< io: a table row; nan: logits
enum class WindowFinish : uint32_t { none = 0, stop_id = 1, accept_max = 2 };

struct TokenLogprob {
    int32_t token = 0;
    float logprob = 0;
};

struct WindowResult {
    uint32_t slot = 0, generation = 0;
    int32_t accepted = 0;  ///< drafts kept
    int32_t emitted = 0;   ///< accepted + 1, forced ones included
    WindowFinish finish = WindowFinish::none;
    RowStatus status = RowStatus::ok;
    uint32_t tokens_off = 0;    ///< into StepResult::tokens, `emitted` entries
    uint32_t logprobs_off = 0;  ///< into StepResult::logprobs: per emitted token 1 + top entries
    int32_t top = 0;
    uint32_t reserved = 0;
};

struct DraftResult {
    uint32_t slot = 0, generation = 0;
    int32_t count = 0;  ///< valid drafts, in order; an id out of range ends the list
    uint32_t reserved = 0;
    int32_t tokens[plan::kMaxDrafts] = {};
    float confidence[plan::kMaxDrafts] = {};  ///< raw logits
};

struct ChunkResult {
    uint32_t slot = 0, generation = 0;
    int32_t stage_end = 0;  ///< stages done
    RowStatus status = RowStatus::ok;
    uint32_t logprobs_off = 0, logprobs_count = 0;  ///< prompt logprobs of target rows
};

struct JobResult {
    uint64_t job = 0;
    uint32_t code = 0;  ///< Code; 0 = done
    uint32_t reserved = 0;
};

/// Microseconds spent in the parts of a step.
struct StepTiming {
    int64_t windows = 0, drafts = 0, chunks = 0, engram_wait = 0, exchange_wait = 0;
};

/// Spans into the model's memory, valid until the next `collect` of the same step.
struct StepResult {
    uint64_t step = 0;
    Span<const WindowResult> windows;
    Span<const DraftResult> drafts;
    Span<const ChunkResult> chunks;
    Span<const JobResult> jobs;
    Span<const int32_t> tokens;
    Span<const TokenLogprob> logprobs;
    uint64_t probe = 0;  ///< hash of the replicated hidden rows
    StepTiming timing;
};

}  // namespace tenon
