// SPDX-License-Identifier: MIT
// A loaded dsv41 model: executes step plans on one stream (engine.md 2).
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "decode_graphs.h"
#include "engram_reader.h"
#include "forward.h"
#include "load_device.h"
#include "slots.h"
#include "snapshots.h"
#include "staging.h"
#include "trace.h"

namespace tenon::dsv41 {

/// What `load` has prepared; everything owned here ends with the model.
struct ModelParts {
    ModelConfig config;
    RankShape ranks;
    ModelRequest request;
    ModelInfo info;
    StateShape shape;
    bool with_drafts = false;
    EngramLayout engram_layout = EngramLayout::automatic;
    std::vector<std::string> fusions_off;
    TextCodec* text = nullptr;           ///< borrowed from the family
    std::vector<int32_t> token_classes;  ///< class of each token id; empty without Engram
};

/// Thread: the engine thread, except `abort` and `text`.
class Dsv41Model final : public Model, private EngramFeed {
  public:
    static Status load(const ModelServices& services, ModelParts parts, Model** out);

    void* query(StrView facet) noexcept override;
    void release() noexcept override { delete this; }

    const ModelInfo& info() noexcept override { return parts_.info; }
    Status submit(const StepPlan& plan) noexcept override;
    Status set_masks(uint64_t step, const MaskBatch& masks) noexcept override;
    Status collect(uint64_t step, Stage stage, StepResult* out) noexcept override;
    bool ready(uint64_t step, Stage stage) noexcept override;
    Status prefetch(Span<const TokenHint> hints) noexcept override;
    Status warm_up(const WarmUp& options, CostTable* out) noexcept override;
    void abort() noexcept override;
    TextCodec& text() noexcept override { return *parts_.text; }

  private:
    static constexpr int64_t kProbeStride = 2;  ///< words between the probes of windows and chunks
    static constexpr int32_t kWindowRegion = 0;
    static constexpr int32_t kChunkRegions = 2;  ///< regions 1 and 2, in turn

    /// Device outputs of a step and their pinned copies.
    struct Output {
        TensorView device, host;
        template <class E>
        E* as() const {
            return host.as<E>();
        }
    };
    /// The step between submit and its last collect.
    struct Step {
        uint64_t number = 0;
        bool open = false;
        bool needs_masks = false;
        bool graphs = false;          ///< the backbone of the windows ran from graphs
        bool sampling_graph = false;  ///< so does the rest up to the taps
        bool sampled = false;         ///< windows, drafts and chunks are enqueued
        bool tokens_done = false, drafts_done = false, done = false;
        int64_t windows = 0, drafts = 0, chunks = 0;
        int64_t logit_rows = 0;
        int32_t top = 0;  ///< largest number of logprobs wanted
        bool wants_logprobs = false;
        bool any_forced_logprobs = false;
    };
    /// A pinned array of the window group's inputs and its device twin, of full capacity.
    template <class E>
    struct Input {
        E* host = nullptr;
        TensorView device;
    };
    struct WindowInputs {
        Input<int32_t> ids, logit_index, given, draft_slots;
        Input<RowInfo> row;
        Input<SegInfo> seg;
        Input<SampleParams> params, draft_params;
        Input<VerifyLimits> limits;
    };
    /// What collect needs to know about one window.
    struct WindowState {
        plan::Window window;
        int32_t segment_row = 0;  ///< first row in the group
        int32_t first_logit = 0;
        int32_t draft = -1;  ///< index into the draft results
    };

    Dsv41Model(const ModelServices& services, ModelParts parts);
    ~Dsv41Model();
    Status init(const ModelServices& services);
    Status init_scratch();
    Status init_blocks();
    Status init_staging();
    Status init_engram(const ModelServices& services);
    Status init_forbidden();
    Status bind_ops(const ModelServices& services);

    // Plan sections, in execution order.
    Status check_slot(uint32_t slot, uint32_t generation, const char* section);
    Status apply_slot_ops(const StepPlan& plan);
    Status apply_pages(const StepPlan& plan);
    Status apply_samplers(const StepPlan& plan);
    Status apply_snap_in(const StepPlan& plan);
    Status apply_snap_out(const StepPlan& plan);
    Status restore(const plan::SnapOp& op);
    Status save(const plan::SnapOp& op, int64_t computed);
    Status import_piece(const plan::SnapOp& op, const StepPlan& plan);
    Status export_piece(const plan::SnapOp& op, const StepPlan& plan);
    Status check_piece(const plan::SnapOp& op, const StepPlan& plan, Span<const int32_t>* pages);
    Status capture_targets(const StepPlan& plan, const plan::Chunk& chunk);
    Status check_snap_slot(const plan::SnapOp& op, const char* section);
    void classes_before(uint32_t slot, int64_t at, int32_t (&out)[SnapshotArena::kClasses]) const;
    Status commit_counts();
    Status build_windows(const StepPlan& plan);
    void take_inputs();
    Status fill_window(const StepPlan& plan, int64_t index, int64_t* row, int64_t* logit);
    Status build_sampling(const StepPlan& plan);
    Status run_windows(const StepPlan& plan);
    Status sample_windows(const StepPlan& plan);
    Status run_drafts(const StepPlan& plan);
    Status draft_pass(const Rows& window, const TensorView& params);

    // Decode work from graphs (model_graphs.cc).
    void init_graphs();
    Status capture_graphs();
    Status capture(size_t number, const std::function<Status()>& enqueue);
    RowGroup padded_windows(int64_t rows) const;
    Status enqueue_sampling(const RowGroup& group);
    Status replay_backbone();
    Status replay_sampling();
    Status replay_drafts();
    Status run_chunks(const StepPlan& plan);
    Status build_chunk(const StepPlan& plan, const plan::Chunk& chunk, int64_t index);
    void build_tail(const StepPlan& plan, const plan::Chunk& chunk);
    Status check_targets(const StepPlan& plan, const plan::Chunk& chunk);
    Status chunk_outputs(const StepPlan& plan, const plan::Chunk& chunk, int64_t index);
    Status start_engram(const StepPlan& plan);
    Status start_chunk_engram(const StepPlan& plan, int64_t index);
    Status prefetch_chunk(const StepPlan& plan);
    /// Staging of a step's chunk; the one behind its last is that of the next step's first.
    int32_t chunk_region(int64_t index) const {
        return 1 + static_cast<int32_t>((chunk_turn_ + index) % kChunkRegions);
    }
    Status finish_submit(const StepPlan& plan);
    Status collect_tokens();
    Status collect_drafts();
    Status collect_done();
    Status finish_open_step();
    Status wait_event(Event& event);
    Status read_ahead(uint32_t slot, Slot& slot_state, Span<const int32_t> tokens);
    Status token_class(int32_t token, int32_t* out) const;
    RowStatus engram_status(int64_t first_row, int64_t rows,
                            const std::vector<uint8_t>& failed) const;

    // EngramFeed: rows of the group that runs.
    Status rows_of(int32_t table, TensorView* values, TensorView* scales) override;

    void warm_ids(int64_t count, std::vector<int32_t>* out);
    Status warm_step(const StepPlan& plan, StepTiming* timing);
    Status warm_open(int64_t rows);
    Status warm_windows(int64_t length, int64_t rows, int64_t streams, bool drafts,
                        StepTiming* timing);
    Status warm_rounds(int64_t length, int64_t most, bool measure);
    Status warm_chunk(int64_t rows, int64_t* us);

    ModelParts parts_;
    Host* host_ = nullptr;
    Device* device_ = nullptr;
    Communicator* communicator_ = nullptr;
    Ref<Stream> stream_;
    Ref<Event> tokens_event_, drafts_event_, done_event_;
    std::unique_ptr<LoadDevice> load_device_;  // before what was allocated through it
    ModelWeights weights_;
    std::vector<Ref<Buffer>> plain_buffers_;
    DeviceState state_;
    SnapshotArena snapshots_;
    StagingFacet staging_;
    OpSet ops_[2];
    Activations act_;
    Forward forward_;
    EngramReader engram_;
    LogitsFacet logits_;
    TraceFacet trace_;

    StepBlock window_block_, chunk_block_;
    WindowInputs inputs_;
    DecodeGraphs graphs_;
    bool capturing_ = false;
    Ref<Buffer> output_buffer_, output_host_buffer_;
    Output decision_, probe_, lp_ids_, lp_values_, lp_drawn_, lp_given_, draft_tokens_,
        draft_confidence_, drawn_;
    Output chunk_lp_;
    Ref<Buffer> work_buffer_;
    TensorView draft_ids_, draft_rows_, draft_segs_, draft_best_, draft_best_own_, top_ids_,
        top_values_;
    TensorView forbid_, forbid_local_;
    Ref<Buffer> forbid_buffer_;

    std::vector<Slot> slots_;
    Step step_;
    StepPlan plan_;  ///< of the step that waits for masks; its spans outlive the step
    bool waits_for_masks_ = false;
    RowGroup window_group_, chunk_group_;
    std::vector<TailLayer> tail_layers_;  ///< of the chunk that runs
    TensorView logit_index_, sample_params_, bias_begin_, bias_ids_, bias_add_, mask_, limits_,
        given_tokens_;
    TensorView draft_params_, count_tokens_, count_slots_;
    bool any_bias_ = false, any_penalties_ = false, any_masks_ = false;
    int64_t mask_words_ = 0;

    // Sized at load; submit and collect only fill them.
    std::vector<WindowState> windows_;
    std::vector<int32_t> run_classes_;
    std::vector<EngramReader::Run> runs_;
    int32_t active_region_ = 0;
    int64_t chunk_turn_ = 0;  ///< chunks of all steps so far
    std::vector<uint8_t> window_failed_, chunk_failed_, active_failed_;
    std::vector<WindowResult> window_results_;
    std::vector<DraftResult> draft_results_;
    std::vector<ChunkResult> chunk_results_;
    std::vector<JobResult> job_results_;
    std::vector<int32_t> result_tokens_;
    std::vector<TokenLogprob> result_logprobs_, chunk_logprobs_;
    StepTiming timing_;
    uint64_t probe_value_ = 0;
    uint64_t chunk_probe_ = 0;  ///< of all chunks but the last
    std::vector<int64_t> cost_windows_, cost_drafts_, cost_stages_;
    uint32_t warm_state_ = 12345;
    uint64_t fault_base_ = 0;
    std::atomic<bool> aborted_{false};
};

}  // namespace tenon::dsv41
