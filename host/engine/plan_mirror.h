// SPDX-License-Identifier: MIT
// The host's own copy of what plans did to the model: refuses a plan that contradicts it
// (engine.md 2.2).
#pragma once

#include <vector>

#include "tenon/model.h"

namespace tenon::engine {

struct MirrorConfig {
    ModelInfo info;
    int32_t slots = 4;
    int64_t context_tokens = 0;
    int64_t pool_pages = 0;
    int32_t step_rows = 16, window_rows = 16, chunk_rows = 2048;
    int32_t snapshot_cells = 0;
    int32_t staging_areas = 0;  ///< 0 = nothing is imported or exported
    int32_t staging_pages = 0;  ///< most pages of a piece without snapshot
    uint64_t group_epoch = 0;
};

/// Every rank runs the same code over the same plans and results. Engine thread; allocates only for
/// errors.
///
/// A refusal means that planner and model no longer agree: nothing may be submitted after it.
class PlanMirror {
  public:
    explicit PlanMirror(const MirrorConfig& config);

    /// Checks a decoded plan against the state and advances it. Call directly before Model::submit.
    /// errors  internal: names step, record, found and expected
    Status apply(const StepPlan& plan);
    /// The same for the plan's result, before the next plan: lengths follow what was emitted.
    Status apply(const StepResult& result);

    bool is_open(uint32_t slot) const { return slots_[slot].open; }
    int64_t length(uint32_t slot) const { return slots_[slot].length; }
    /// Pages that open slots refer to, each counted once.
    int64_t pages_in_use() const { return pages_in_use_; }
    /// Cells that hold snapshots.
    int64_t cells_in_use() const { return cells_in_use_; }

  private:
    struct Slot {
        bool open = false;
        bool has_sampler = false;
        bool torn = false;  // a chunk was abandoned, or a row failed: only close is legal
        uint32_t generation = 0;
        int64_t length = 0;
        int64_t rewind_floor = 0;
        int64_t chunk_end = 0;    // of the open chunk
        int32_t next_stage = 0;   // of the open chunk; 0 = none is open
        int32_t window_rows = 0;  // of the step in flight; 0 = no window
        int32_t accept_max = 0;
        bool in_step = false;  // has a window or a chunk in this plan
        bool drafted = false;
        int64_t mapped = 0;  // leading table entries that are set
        std::vector<int32_t> pages;
    };

    /// What a cell group holds. The pages are those of the saved slot's table, whose rows below
    /// `at` must not change as long as the snapshot lives.
    struct Snapshot {
        bool taken = false;  // this cell belongs to a snapshot
        bool first = false;  // and is its first one
        plan::CutKind kind = plan::CutKind::full;
        int64_t at = 0;
        std::vector<int32_t> pages;
    };

    Status slot_of(const char* record, uint32_t slot, uint32_t generation, Slot** out);
    Status apply_slot_op(const plan::SlotOp& op);
    Status apply_page_map(const plan::PageMap& map, const StepPlan& plan);
    Status apply_page_copy(const plan::PageCopy& copy);
    Status apply_snap_in(const plan::SnapOp& op, const StepPlan& plan);
    Status apply_snap_out(const plan::SnapOp& op, const StepPlan& plan);
    Status check_piece(const char* record, const plan::SnapOp& op, const StepPlan& plan,
                       Span<const int32_t>* pages);
    Status import_piece(const plan::SnapOp& op, const StepPlan& plan);
    Status export_piece(const plan::SnapOp& op, const StepPlan& plan);
    Status take_cells(const char* record, const plan::SnapOp& op, Span<const int32_t> pages);
    Status restore(const plan::SnapOp& op, const StepPlan& plan);
    Status save(const plan::SnapOp& op, const Slot& slot);
    Status find_snapshot(const char* record, const plan::SnapOp& op, Snapshot** out);
    void drop(uint32_t snapshot);
    void hold(int32_t page, int64_t rows);
    Status apply_sampler(const plan::Sampler& sampler, const StepPlan& plan);
    Status apply_window(const plan::Window& window, const StepPlan& plan);
    Status apply_draft(const plan::Draft& draft);
    Status apply_chunk(const plan::Chunk& chunk, const StepPlan& plan);
    Status write_pages(uint32_t slot, const char* record, int64_t begin, int64_t end);
    Status check_ids(const char* record, uint32_t slot, Span<const int32_t> ids) const;
    void close(uint32_t index);
    Status refuse(std::string_view what) const;
    void reference(int32_t page, int32_t delta);

    MirrorConfig config_;
    std::vector<Slot> slots_;
    std::vector<int32_t> references_;  // by page: slots whose table names it
    std::vector<int32_t> writer_;      // by page: the one slot that wrote it, -1 = none
    std::vector<int32_t> holders_;     // by page: snapshots that hold it
    std::vector<int32_t> floor_;       // by page: rows that snapshots hold, from its start
    std::vector<Snapshot> snapshots_;  // by cell
    std::vector<uint8_t> imported_;    // by page: an import filled it, and nobody has it yet
    std::vector<uint64_t> jobs_;       // of the step in flight
    int64_t pages_in_use_ = 0, cells_in_use_ = 0;
    uint64_t step_ = 0;
    int32_t open_chunks_ = 0;
    bool has_result_ = true;
};

}  // namespace tenon::engine
