// SPDX-License-Identifier: MIT
// Model families and loaded models: static facts, memory plan, and the step contract
// (engine.md 1.4, 2).
#pragma once

#include "tenon/overlay.h"
#include "tenon/plan.h"
#include "tenon/plugin.h"
#include "tenon/quant.h"
#include "tenon/storage.h"
#include "tenon/text.h"
#include "tenon/transport.h"

namespace tenon {

/// What the profile asks of a model; the same struct goes to plan and load.
struct ModelRequest {
    uint32_t struct_size = sizeof(ModelRequest);
    int32_t rank = 0, world = 1;
    int32_t slots = 4;
    int64_t context_tokens = 0;  ///< 0 = the model's limit
    int32_t window_rows = 16;    ///< most rows of one window
    int32_t step_rows = 16;      ///< rows of all windows of a step
    int32_t chunk_rows = 2048;   ///< prompt rows of a step
    int32_t in_flight = 1;       ///< steps submitted and not collected
    int64_t pool_tokens = 0;     ///< positions in the page pool; 0 = slots * context
    int32_t snapshot_cells = 0;  ///< of kept cuts; 0 = none are kept
    int32_t stages = 0;          ///< slices of a chunk; 0 = the model's choice
    bool drafts = true;          ///< load the drafter, if there is one
    bool replay_exact = true;    ///< false: prompt tails are approximate (dsv41.md 3.11)
    bool engram_self_test = true;
    bool packed_state = true;  ///< state_format: packed | bf16
    bool spill = false;        ///< plans will import and export cuts: staging is needed
    uint8_t reserved[3] = {};
    StrView engram_dir;     ///< for messages; the host opens it as ModelServices::tables
    StrView engram_layout;  ///< auto | official | packed
    Span<const StrView> fusions_off;
    Device* device = nullptr;  ///< whose layout `plan` counts; nothing is allocated on it
};

/// Static facts that the planner needs; it knows no layer (engine.md 1.4).
struct ModelInfo {
    uint32_t struct_size = sizeof(ModelInfo);
    int32_t page_tokens = 256;  ///< positions of one page
    int64_t page_bytes = 0;
    int32_t max_window_rows = 16, max_step_rows = 16, max_chunk_rows = 2048;
    int32_t prefill_stages = 1;
    int64_t partial_distance = 0;  ///< 0 = full cuts only
    bool capture_inside = false;   ///< can save a cut inside a chunk, not only at its end
    bool has_tables = false;       ///< needs a row store
    uint8_t reserved[2] = {};
    int32_t draft_rows = 0, draft_max = 0;  ///< of a draft pass; 0 = no drafter
    int32_t numeric_classes = 1;            ///< 2: chunk rows may differ in bits from window rows
    int32_t max_in_flight = 1;
    int32_t ring_slack = 0;  ///< ring_rows - window: how far a rewind may go
    int32_t vocab = 0;       ///< logits per row
    int64_t context_limit = 0;
    int64_t snapshot_bytes = 0;  ///< of one cell
    char family[24] = {};
    char summary[160] = {};  ///< one line for logs: layers, width, experts
};

enum class PlanPlace : uint32_t { device, pinned, host, disk };
struct MemoryEntry {
    StrView tag;  ///< engine.md 1.7: "weights.experts", "state.pages", …
    PlanPlace place = PlanPlace::device;
    uint32_t reserved = 0;
    int64_t bytes = 0;
    int64_t count = 1;  ///< for the note: pages, slots, …
    StrView note;
};
/// Views live until the family's next call.
struct MemoryPlan {
    uint32_t struct_size = sizeof(MemoryPlan);
    uint32_t reserved = 0;
    Span<const MemoryEntry> entries;
    int64_t bytes_per_context_token =
        0;  ///< of the page pool, for "largest context that would fit"
    int64_t bytes_per_slot = 0;
    int64_t token_bytes = 0;  ///< weights of this rank that one decode row reads; 0 = not stated
};

/// Pages of the pool: how many the model allocates and the planner may hand out, ids 0 … n - 1
/// (engine.md 1.7). Two pages a slot beyond `pool_tokens` let every live slot go on past a page
/// border.
inline int64_t pool_pages(const ModelRequest& request, const ModelInfo& info) {
    const int64_t context =
        request.context_tokens > 0 ? request.context_tokens : info.context_limit;
    const int64_t tokens = request.pool_tokens > 0 ? request.pool_tokens : request.slots * context;
    return (tokens + info.page_tokens - 1) / info.page_tokens + 2 * int64_t{request.slots};
}

struct CostTable {
    uint32_t struct_size = sizeof(CostTable);
    uint32_t reserved = 0;
    Span<const int64_t> window_us;  ///< index = rows of the step
    Span<const int64_t> draft_us;   ///< index = streams
    Span<const int64_t> stage_us;   ///< index = stage, for chunk_rows rows
};

struct WarmUp {
    uint32_t struct_size = sizeof(WarmUp);
    bool measure = true;  ///< false: every size runs once, figures are rough
    uint8_t reserved[3] = {};
};

/// Masks of a step with `needs_masks`: rows in window order, 1 bit = allowed.
struct MaskBatch {
    Span<const uint32_t> words;
    int64_t rows = 0, words_per_row = 0;
};

struct TokenHint {
    uint32_t slot = 0, generation = 0;
    int64_t position = 0;  ///< of the first token
    Span<const int32_t> tokens;
};

enum class Stage : uint32_t { tokens, drafts, done };  ///< collected in this order

/// Everything a model is given at load. Borrowed; outlives the model.
struct ModelServices {
    uint32_t struct_size = sizeof(ModelServices);
    uint32_t reserved = 0;
    Host* host = nullptr;
    Device* device = nullptr;
    Span<OpTable* const> op_tables;
    Span<QuantFormat* const> formats;  ///< the chain, in profile order
    Communicator* communicator = nullptr;
    RowStore* store = nullptr;  ///< null if the profile names none
    Checkpoint* checkpoint = nullptr;
    WeightSource* weights = nullptr;  ///< decorated by weight overlays
    /// Where the row tables lie: engram.dir opened by the host, else the checkpoint itself. Its
    /// `dir()` is where packed tables are looked for; official tables are found in its `weights()`.
    Checkpoint* tables = nullptr;
    MediaCache* media = nullptr;
};

/// A loaded model on one rank. Thread: the engine thread, except `abort` (any) and `text`.
class Model : public Object {
  public:
    static constexpr const char* kFacet = "model.runtime/1";
    virtual const ModelInfo& info() noexcept = 0;
    /// Enqueues one step; the only call that changes state. May run everything at once (CPU).
    /// errors  internal: a mirror error; io; peer; device
    virtual Status submit(const StepPlan& plan) noexcept = 0;
    virtual Status set_masks(uint64_t step, const MaskBatch& masks) noexcept = 0;  ///< rank 0
    /// In order tokens, drafts, done; blocks until the stage or the deadline.
    virtual Status collect(uint64_t step, Stage stage, StepResult* out) noexcept = 0;
    virtual bool ready(uint64_t step, Stage stage) noexcept = 0;  ///< `collect` would not wait
    virtual Status prefetch(Span<const TokenHint> hints) noexcept = 0;  ///< advice only
    /// Touches every size once and measures; after it nothing allocates.
    virtual Status warm_up(const WarmUp& options, CostTable* out) noexcept = 0;
    virtual void abort() noexcept = 0;       ///< waits in submit and collect end with `peer`
    virtual TextCodec& text() noexcept = 0;  ///< thread-safe
};

/// Optional facet of a Model: per-position logits of the last submitted step, for `score` and
/// tests. Before `submit`, `want(true)` makes chunks compute logits of their target rows (outputs)
/// and windows keep theirs; rows then come in order windows, chunks.
class ModelLogits : public Object {
  public:
    static constexpr const char* kFacet = "model.logits/1";
    virtual void want(bool on) noexcept = 0;
    /// f32 [rows, vocab] on the host; valid until the next submit.
    virtual Status rows(uint64_t step, TensorView* out) noexcept = 0;
};

/// Optional facet of a Model that was loaded with `ModelRequest::spill`: host memory through which
/// pieces of cuts leave and enter the state (engine.md 4.5).
///
/// A job's area is job % areas(). What an export put there is complete when `done` of its step was
/// collected; what an import takes must be there before `submit` and stay until `done`. Pages come
/// first, page_bytes each, then the snapshot's record.
class ModelStaging : public Object {
  public:
    static constexpr const char* kFacet = "model.staging/1";
    virtual int32_t areas() noexcept = 0;
    /// The model's memory; the caller fills and reads it from any thread between steps that name
    /// it.
    virtual Span<uint8_t> area(int32_t index) noexcept = 0;
    /// Of the record of a full cut.
    virtual int64_t snapshot_bytes() noexcept = 0;
    /// Everything that decides what the bytes mean: configuration, row formats, parts of a record.
    /// Lives as long as the model.
    virtual StrView state_format() noexcept = 0;
};
constexpr int64_t kMostPiecePages = 64;
/// Pages that a piece without snapshot may have.
inline int64_t piece_pages(int64_t area_bytes, int64_t page_bytes) {
    return area_bytes / page_bytes < kMostPiecePages ? area_bytes / page_bytes : kMostPiecePages;
}

/// Optional facet of a Model: named copies of state and layer outputs, for tests and `inspect`-like
/// tools. Names: "layers.L.h", "layers.L.attn_out", "layers.L.ffn_out", "layers.L.pre_in",
/// "layers.L.experts", "layers.L.expert_weights", "layers.L.chosen" (i32 [rows, K], -1 padded),
/// "candidates", "engram_rows", "taps", "main_x", "final"; of the last submitted step's chunk,
/// f32/bf16/i32 as in the golden trace. "state.layers.L.window_kv", "state.layers.L.compressed_kv",
/// "state.layers.L.index_keys", "state.mtp.S.ring": bf16, of a slot up to its length.
class ModelTrace : public Object {
  public:
    static constexpr const char* kFacet = "model.trace/1";
    virtual void want(bool on) noexcept = 0;
    /// View owned by the model until the next call. errors  not_found
    virtual Status get(StrView name, uint32_t slot, TensorView* out) noexcept = 0;
};

/// Optional facet of a Model: image pixels to embedding rows (API issue).
class Vision : public Object {
  public:
    static constexpr const char* kFacet = "model.vision/1";
    virtual Status put_pixels(const uint8_t key[32], const TensorView& patches, int32_t grid_rows,
                              int32_t grid_cols) noexcept = 0;
};

/// A model family: claims checkpoints, plans memory, loads.
class ModelFamily : public Object {
  public:
    static constexpr const char* kFacet = "model.family/1";
    /// errors  not_found: another family's model_type; invalid_argument: claims it, but the config
    /// is wrong
    virtual Status inspect(Checkpoint& checkpoint, ModelInfo* out) noexcept = 0;
    /// Text side alone: needs only tokenizer.json (config.json optional). The codec stays the
    /// family's and lives as long as it.
    virtual Status open_text(Checkpoint& checkpoint, TextCodec** out) noexcept = 0;
    /// Bytes per place and tag; allocates nothing. `formats` as in ModelServices.
    virtual Status plan(Checkpoint& checkpoint, WeightSource& weights,
                        Span<QuantFormat* const> formats, const ModelRequest& request,
                        MemoryPlan* out) noexcept = 0;
    virtual Status load(const ModelServices& services, const ModelRequest& request,
                        Model** out) noexcept = 0;
};

struct PackProgress {
    int64_t rows_done = 0, rows_total = 0;
    int32_t layer = 0, reserved = 0;
};
struct PackRequest {
    uint32_t struct_size = sizeof(PackRequest);
    int32_t rank = 0, world = 1;
    bool verify_only = false;
    uint8_t reserved[3] = {};
    Checkpoint* source = nullptr;  ///< holds the official tables
    StrView out_dir;
    void (*progress)(void* arg, const PackProgress&) noexcept = nullptr;
    void* arg = nullptr;
    bool (*cancelled)(void* arg) noexcept = nullptr;
};

/// Optional facet of a ModelFamily: builds the packed row tables of one rank (`tenon pack-engram`).
/// Resumable and checksummed; an unfinished file is never opened by `load`.
class RowPacker : public Object {
  public:
    static constexpr const char* kFacet = "model.row_packer/1";
    virtual Status pack(Checkpoint& checkpoint, const PackRequest& request) noexcept = 0;
};

}  // namespace tenon
