// SPDX-License-Identifier: MIT
// A Model without weights: next tokens are a hash of the sequence, read back through pages and
// rings.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tenon/model.h"
#include "tests/fakes/scripted_codec.h"

namespace tenon::fakes {

struct ScriptedOptions {
    int32_t slots = 4;
    int64_t context = 512;
    int64_t pool_pages = 0;  ///< 0 = tenon::pool_pages
    int32_t page_tokens = 8;
    int32_t step_rows = 16, window_rows = 16, chunk_rows = 32;
    int32_t stages = 1;
    int32_t snapshot_cells = 0;
    int64_t partial_distance = 0;  ///< 0 = full cuts only
    int32_t draft_max = 0;         ///< 0 = no drafter
    int32_t draft_quality = 70;    ///< percent of drafts that repeat what the model will draw
    bool draft_garbage = false;    ///< some drafts are no ids at all
    int32_t eos_permille = 20;     ///< how often the end token is the likeliest
    bool staging = false;          ///< cuts can be imported and exported
    int32_t staging_pages = 4;     ///< of one piece
    int64_t step_us = 0;           ///< each step takes this long in collect(tokens)
};

/// Where an injected error appears.
enum class FaultAt { submit, tokens, drafts, done, warm_up };

/// State lies in page cells and a ring per slot, each tagged with its position, and a row reads the
/// cells and ring rows before it, whose contents the slot remembers. So a wrong page id, a page of
/// another sequence, a stale ring row, a wrong position or a stale generation either changes the
/// tokens or is refused with `internal`. A snapshot holds ring and memory; a partial one is whole
/// again only `partial_distance` rows later: a window or a full cut before is refused.
///
/// Engine thread, except the controls, which are set before the engine runs, and `abort`. After
/// construction `submit` and `collect` allocate nothing (scripts and hooks aside).
class ScriptedModel final : public Implements<ScriptedModel, Model>, private ModelStaging {
  public:
    explicit ScriptedModel(const ScriptedOptions& options = {});

    // Controls.
    /// Every reply is these ids, then the end token, whatever the sampling.
    void reply_with(std::vector<int32_t> ids);
    /// The same, chosen by prompt; an empty answer leaves the reply to the hash.
    void reply_by(std::function<std::vector<int32_t>(const std::vector<int32_t>& prompt)> script);
    /// The call for `step` (or the next one, 0) gives this error.
    void inject(FaultAt where, Code code, uint64_t step = 0);
    /// Rows of this request at or after `position` report `status`. One request at a time.
    void fail_rows(uint64_t request, int64_t position, RowStatus status);
    /// Runs in `warm_up`, which it may hold up.
    void on_warm_up(std::function<void()> hook) { warm_hook_ = std::move(hook); }
    /// Sees each plan before it runs.
    void on_submit(std::function<void(const StepPlan&)> hook) { hook_ = std::move(hook); }
    /// Results break the contract: an emitted token too many.
    void break_results(bool on) { break_results_ = on; }

    uint64_t steps() const { return steps_.load(); }
    /// Bits of everything that slot's sequence has computed below `length`, for chunking tests.
    std::vector<uint64_t> cells(uint32_t slot, int64_t length) const;

    // Model.
    const ModelInfo& info() noexcept override { return info_; }
    Status submit(const StepPlan& plan) noexcept override;
    Status set_masks(uint64_t step, const MaskBatch& masks) noexcept override;
    Status collect(uint64_t step, Stage stage, StepResult* out) noexcept override;
    bool ready(uint64_t step, Stage stage) noexcept override;
    Status prefetch(Span<const TokenHint> hints) noexcept override;
    Status warm_up(const WarmUp& options, CostTable* out) noexcept override;
    void abort() noexcept override { aborted_.store(true); }
    TextCodec& text() noexcept override { return codec_; }
    void* query(StrView facet) noexcept override {
        return facet == StrView(ModelStaging::kFacet) && options_.staging
                   ? static_cast<ModelStaging*>(this)
                   : Implements<ScriptedModel, Model>::query(facet);
    }
    void release() noexcept override { Implements<ScriptedModel, Model>::release(); }

  private:
    struct Cell {
        int64_t position = -1;
        int32_t token = 0;
        uint64_t hash = 0;
    };
    struct RingRow {
        int64_t position = -1;
        int32_t token = 0;
    };
    struct Slot {
        bool open = false;
        uint32_t generation = 0;
        uint64_t request = 0;
        int64_t length = 0, first_row = -1;  // first_row: the last prompt token
        int64_t whole_from = 0;              ///< length from which on the state is full
        int32_t next_stage = 0;
        std::vector<int32_t> table;
        std::vector<RingRow> ring;
        std::vector<uint64_t> hashes;  ///< by position: what the cell must hold
        plan::Sampler sampler;
        bool has_sampler = false;
        std::vector<plan::Pair> bias;
        std::vector<int32_t> stops;
        std::vector<uint16_t> seen;  // output counts by id
        std::vector<uint8_t> in_prompt;
        std::vector<int32_t> script;
        bool scripted = false;
    };
    struct Snapshot {
        bool taken = false, first = false;
        plan::CutKind kind = plan::CutKind::full;
        int64_t at = 0;
        int64_t whole_from = 0;
        std::vector<RingRow> ring;
        std::vector<uint64_t> hashes;
    };
    struct Candidate {
        int32_t id = -1;
        double score = 0;
    };
    struct Results {
        std::vector<WindowResult> windows;
        std::vector<DraftResult> drafts;
        std::vector<ChunkResult> chunks;
        std::vector<int32_t> tokens;
        std::vector<TokenLogprob> logprobs;
        std::vector<JobResult> jobs;
    };

    Status run(const StepPlan& plan);
    Status slot_of(uint32_t slot, uint32_t generation, Slot** out);
    Status run_slot_op(const plan::SlotOp& op);
    Status run_page_copy(const plan::PageCopy& copy);
    Status run_snap_in(const plan::SnapOp& op, const StepPlan& plan);
    Status run_piece(const plan::SnapOp& op, const StepPlan& plan, bool out);

    // ModelStaging.
    int32_t areas() noexcept override { return 2; }
    Span<uint8_t> area(int32_t index) noexcept override { return staging_[index]; }
    int64_t snapshot_bytes() noexcept override;
    StrView state_format() noexcept override { return "scripted"; }
    Status save(const plan::SnapOp& op, int64_t computed);
    Status find(const plan::SnapOp& op, Snapshot** out);
    Status run_sampler(const plan::Sampler& sampler, const StepPlan& plan);
    Status run_window(const plan::Window& window, const StepPlan& plan);
    Status run_draft(const plan::Draft& draft);
    Status run_chunk(const plan::Chunk& chunk, const StepPlan& plan);
    Status cell(const Slot& slot, int64_t position, Cell** out);
    Status write(uint32_t index, int64_t position, int32_t token);
    Status run_targets(const plan::Chunk& chunk, const StepPlan& plan);
    /// What the row at `position` draws; `earlier` are drafts that penalties count already.
    Status draw(uint32_t index, int64_t position, Span<const int32_t> earlier, Candidate* best,
                Candidate* all, int32_t* count);
    void start_script(Slot& slot, uint32_t index, int64_t position);
    Status fault(FaultAt where, uint64_t step);
    RowStatus status_of(const Slot& slot, int64_t end) const;

    const ScriptedOptions options_;
    ModelInfo info_;
    ScriptedCodec codec_;
    std::vector<Cell> cells_;
    std::vector<Slot> slots_;
    std::vector<Snapshot> snapshots_;  // by cell
    std::vector<uint8_t> staging_[2];
    Results results_, given_[2];
    std::vector<int64_t> costs_;

    std::function<std::vector<int32_t>(const std::vector<int32_t>&)> script_;
    std::function<void(const StepPlan&)> hook_;
    std::function<void()> warm_hook_;
    std::atomic<uint64_t> steps_{0};
    std::atomic<bool> aborted_{false};
    bool has_fault_ = false, break_results_ = false;
    FaultAt fault_at_ = FaultAt::submit;
    Code fault_code_ = Code::ok;
    uint64_t fault_step_ = 0;
    uint64_t failing_request_ = 0;
    int64_t failing_position_ = 0;
    RowStatus failing_status_ = RowStatus::ok;
    uint64_t step_ = 0;
    int32_t collected_ = 3;  // stages of step_ that were collected
};

}  // namespace tenon::fakes
