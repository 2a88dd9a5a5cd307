// SPDX-License-Identifier: MIT
// A loaded dsv41 model with the real plugins around it, and a small driver in place of the engine.
// The environment variable TENON_TEST_COMPUTE names another compute plugin than `cpu`
// (tests/tools/gpu_model.sh).
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "model/capture_device.h"
#include "model/checkpoint_folder.h"
#include "model/counting_device.h"
#include "model/dense_format.h"
#include "model/fake_store.h"
#include "model/plan_builder.h"
#include "tenon/model.h"
#include "tenon/testing/plugin_fixture.h"

namespace tenon::testing {

/// Passes requests on; experts that it loads keep their down products in f32.
class UnroundedExperts final : public QuantFormat {
  public:
    explicit UnroundedExperts(QuantFormat& inner) : inner_(inner) {}
    void* query(StrView facet) noexcept override {
        return facet == StrView(QuantFormat::kFacet) ? static_cast<QuantFormat*>(this) : nullptr;
    }
    void release() noexcept override {}
    Status inspect(WeightSource& source, StrView base, QuantInfo* out) noexcept override {
        return inner_.inspect(source, base, out);
    }
    Status load(const WeightRequest& request, QuantWeight** out) noexcept override {
        return inner_.load(request, out);
    }
    Status load_group(Span<const WeightRequest> requests, QuantGroup** out) noexcept override {
        return inner_.load_group(requests, out);
    }
    Status load_experts(const ExpertsRequest& request, QuantExperts** out) noexcept override {
        TENON_TRY(inner_.load_experts(request, out));
        (*out)->keep_f32(true);
        return {};
    }
    Status plan_bytes(const WeightRequest& request, int64_t* out) noexcept override {
        return inner_.plan_bytes(request, out);
    }

  private:
    QuantFormat& inner_;
};

/// Fixed answers about op tables: what a test puts between the model and its ops.
using TableDecorator = std::function<OpTable*(OpTable*)>;

struct RigOptions {
    std::filesystem::path checkpoint;
    std::filesystem::path tables;  ///< empty: the checkpoint itself
    std::vector<std::filesystem::path> extra;
    int32_t slots = 1;
    int64_t context = 512;
    int32_t window_rows = 16, step_rows = 16, chunk_rows = 512;
    bool packed_state = true;
    bool drafts = true;
    int32_t snapshot_cells = 0;
    bool spill = false;
    bool replay_exact = true;
    int32_t rank = 0, world = 1;
    Communicator* communicator = nullptr;
    TableDecorator decorate;                               ///< the result must outlive the rig
    RowStore* store = nullptr;                             ///< null: the plugin named below
    std::string store_plugin = "fake";                     ///< or a storage plugin
    std::vector<std::string> formats = {"exl3", "plain"};  ///< plugins, or "dense"
    std::string layout = "auto";
    int32_t threads = 2;
    bool experts_in_f32 = false;  ///< keeps down products unrounded, as more than one rank must
    bool reference_ops = false;   ///< no SIMD
    /// Whether the device captures graphs: the CPU by CaptureDevice. Unset: as the plugin does.
    std::optional<bool> graphs;
    bool activation_quant = false;  ///< of format plain
    std::vector<std::string> fusions_off;
    std::function<void(CheckpointFolder&)> edit;  ///< before load
};

/// Everything of one window's outcome, copied out of the model's memory.
struct WindowOutcome {
    std::vector<int32_t> tokens;
    int32_t accepted = 0;
    WindowFinish finish = WindowFinish::none;
    RowStatus status = RowStatus::ok;
    std::vector<TokenLogprob> logprobs;
};

struct StepOutcome {
    std::vector<WindowOutcome> windows;
    std::vector<DraftResult> drafts;
    std::vector<RowStatus> chunks;
    uint64_t probe = 0;
};

/// Thread: one. Errors are thrown as std::runtime_error with the status' text.
class ModelRig {
  public:
    /// errors  whatever the plugins or `load` report
    static Result<std::unique_ptr<ModelRig>> make(const RigOptions& options);
    ~ModelRig();

    Model& model() { return *model_; }
    Device& device() { return *device_; }
    /// With RigOptions::graphs on a CPU; another device does not count what it captures.
    bool counts_graphs() const { return capture_ != nullptr; }
    CaptureDevice& capture() { return *capture_; }
    TappedOps& tapped_ops() { return *tapped_ops_; }
    /// Bytes that the model allocated, by tag.
    const std::map<std::string, int64_t>& allocated() const { return counting_->bytes(); }
    /// Window rings, draft rings and raw pairs of all slots become NaN.
    void poison_rings() { counting_->poison("state.windows"); }
    /// The memory plan for what the rig was loaded with.
    Status plan(MemoryPlan* out);
    CheckpointFolder& checkpoint() { return *checkpoint_; }
    TestHost& host() { return host_; }
    ModelFamily& family() { return *family_; }
    FakeStore& fake_store() { return fake_store_; }

    // A slot's life. Pages are mapped as needed, from a pool that hands out scattered ids.
    void open(uint32_t slot);
    void close(uint32_t slot);
    /// For tests that submit themselves.
    void advance(uint32_t slot, int64_t rows) { slots_[slot].length += rows; }
    /// The slot continues at a restored cut, on these pages.
    void adopt(uint32_t slot, uint32_t generation, int64_t length, std::vector<int32_t> pages) {
        slots_[slot] = {generation, length, std::move(pages)};
    }
    uint32_t new_generation() { return ++next_generation_; }
    int64_t length(uint32_t slot) const { return slots_[slot].length; }
    uint32_t generation(uint32_t slot) const { return slots_[slot].generation; }

    const std::vector<int32_t>& pages(uint32_t slot) const { return slots_[slot].pages; }
    /// A page that no slot uses.
    int32_t take_page() {
        const int32_t page = free_pages_.back();
        free_pages_.pop_back();
        return page;
    }

    PlanBuilder next() { return PlanBuilder(++step_); }
    /// Maps what the plan's rows need, submits, collects all stages, keeps lengths.
    StepOutcome run(PlanBuilder& plan);
    Status try_submit(PlanBuilder& plan) { return model_->submit(plan.view()); }
    /// Adds page maps for positions up to `end`.
    void reserve(PlanBuilder& plan, uint32_t slot, int64_t end);

    /// Runs ids as one chunk after another; returns logits of all rows if `logits`.
    std::vector<float> prefill(uint32_t slot, const std::vector<int32_t>& ids,
                               std::vector<int64_t> chunks = {}, bool logits = false);
    /// One window of the given tokens (pending first) from the slot's length on.
    WindowOutcome window(uint32_t slot, const std::vector<int32_t>& tokens, int32_t accept_max = 16,
                         int32_t forced = 0);
    /// Logits of the last step's windows, [rows, vocab].
    std::vector<float> logits();
    void want_logits(bool on);
    void want_trace(bool on);
    /// A traced value; throws if it is not there.
    TensorView trace(const std::string& name, uint32_t slot = 0);
    /// Greedy continuation by single rows: the first id comes from the pending token.
    std::vector<int32_t> greedy(uint32_t slot, int32_t pending, int64_t count);

  private:
    struct SlotState {
        uint32_t generation = 0;
        int64_t length = 0;
        std::vector<int32_t> pages;
    };
    explicit ModelRig(const RigOptions& options) : options_(options) {}
    ModelRequest request() const;
    Status load();
    Status load_compute();
    Status load_formats();
    Status load_store();

    RigOptions options_;
    TestHost host_;
    std::vector<LoadedPlugin> plugins_;
    Ref<Object> compute_, store_object_, family_object_;
    std::vector<Ref<Object>> format_objects_;
    Device* device_ = nullptr;
    std::unique_ptr<CaptureDevice> capture_;
    std::unique_ptr<TappedOps> tapped_ops_;
    std::vector<std::unique_ptr<TappedFormat>> tapped_formats_;
    std::unique_ptr<CountingDevice> counting_;
    std::vector<StrView> fusions_off_;
    std::vector<std::unique_ptr<UnroundedExperts>> wrapped_;
    OpTable* ops_ = nullptr;
    std::vector<QuantFormat*> formats_;
    FakeStore fake_store_;
    DenseFormat dense_;
    RowStore* store_ = nullptr;
    ModelFamily* family_ = nullptr;
    Ref<CheckpointFolder> checkpoint_, tables_;
    Ref<Model> model_;
    uint64_t step_ = 0;
    uint32_t next_generation_ = 0;
    std::vector<SlotState> slots_;
    std::vector<int32_t> free_pages_;
};

/// Throws what a Status says.
void check(Status status);

}  // namespace tenon::testing
