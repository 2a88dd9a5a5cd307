// SPDX-License-Identifier: MIT
// From a profile to a loaded model: find, check, probe, create, plan, load (architecture.md 6).
// Each verb goes as far as it needs; whatever exists is released in reverse order.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/engine/engine_settings.h"
#include "host/lifecycle/exit_code.h"
#include "host/profile/profile.h"
#include "host/services/host_services.h"
#include "tenon/constraint.h"
#include "tenon/tap.h"

namespace tenon {

/// One line of the memory table; strings are owned.
struct PlannedMemory {
    std::string tag, note;
    PlanPlace place = PlanPlace::host;
    int64_t bytes = 0;
    int64_t count = 1;
};

struct MemoryReport {
    std::vector<PlannedMemory> entries;
    int64_t reserve = 0;      ///< of the host's memory
    int64_t available = 0;    ///< MemAvailable when the plan was made
    int64_t token_bytes = 0;  ///< weights that one decode row reads; 0 = the model does not say
    /// The device has memory of its own: its entries count against `device_free` and the rest
    /// against `available`. Else (CPUs, unified memory) all is one pool.
    bool own_memory = false;
    int64_t device_free = 0;     ///< of such a device, when the plan was made
    int64_t device_reserve = 0;  ///< of such a device's memory
    /// Bytes of all entries that take memory.
    int64_t total() const { return device_total() + host_total(); }
    int64_t device_total() const;
    int64_t host_total() const;
    bool fits() const;
    /// What is needed and what is there, for a message.
    std::string needs() const;
    /// The table as text, largest first.
    std::string table() const;
};

/// Thread: main. A failed step leaves `exit_code` with the code of that step.
class Deployment {
  public:
    explicit Deployment(HostServices& host) : host_(host) {}
    ~Deployment();
    Deployment(const Deployment&) = delete;
    Deployment& operator=(const Deployment&) = delete;

    /// The log shows warnings and errors only (verbs whose output is their answer).
    void quiet() { quiet_ = true; }
    /// Weights are described, not stored (`bench --synthetic`); before `plan`.
    void synthetic() { synthetic_ = true; }
    /// Ops and products of the model pass `tap`, which outlives this object; before `load`.
    void set_tap(CallTap* tap) { tap_ = tap; }
    /// Reads and validates the profile, loads plugins, sets the log up.
    Status open(const std::string& profile, const std::vector<std::string>& overrides);
    /// errors  unavailable: plugins or features that the profile names and this installation lacks
    Status require_plugins();
    /// Probes and creates compute, transport, storage, formats, overlays and the model family.
    Status create();
    /// Opens checkpoint and tables, asks the family for facts and the memory plan.
    Status plan();
    /// errors  does_not_fit: the largest context that would fit, and the table
    Status check_fit();
    /// Start guard, communicator, load. The model is not warmed up.
    Status load();

    int exit_code() const { return exit_code_; }
    const Profile& profile() const { return profile_; }
    const PluginRegistry& registry() const { return registry_; }
    const ModelInfo& info() const { return info_; }
    const ModelRequest& request() const { return request_; }
    const MemoryReport& memory() const { return memory_; }
    const std::vector<std::string>& chosen() const { return chosen_; }
    HostServices& host() { return host_; }
    Model* model() { return model_.get(); }
    ModelFamily* family() { return family_; }
    Checkpoint* checkpoint() { return checkpoint_.get(); }
    Checkpoint* tables() { return tables_ ? tables_.get() : checkpoint_.get(); }
    WeightSource* weights() { return weights_; }
    Device* device() { return device_; }
    const std::vector<QuantFormat*>& formats() const { return formats_; }
    const std::vector<ScheduleOverlay*>& schedule_overlays() const { return schedule_overlays_; }
    /// For the model as it was loaded, or, before that, for `request`.
    EngineSettings engine_settings() const { return engine_settings(request_); }
    EngineSettings engine_settings(const ModelRequest& request) const;
    /// Asks the front ends whether they could start, before minutes of loading.
    Status probe_frontends();
    /// Creates one component; the object is released with the deployment.
    Status create_component(const ProfileSection& section, Object** out);
    /// Releases the `count` components that were created last (front ends end before the engine).
    void release_last(size_t count);

  private:
    template <class T>
    Status create_as(const ProfileSection& section, T** out);
    /// Keeps the exit code of an error and says which section it is about.
    Status in_section(const ProfileSection& section, const Status& status);
    Status probe(const ProfileSection& section, ProbeResult* out);
    Status create_all();
    Status create_overlay(const ProfileSection& section);
    Status configure_log();
    Status make_plan();
    Status make_request();
    /// Largest value in [1, most] whose plan fits, or 0.
    Result<int64_t> largest(int64_t most, const std::function<ModelRequest(int64_t)>& request);
    Status plan_cells();
    void put_tap();
    /// Text that differs wherever the bits of state may differ: weights, overlays, kernels.
    std::string spill_identity() const;
    ModelRequest request_with(int64_t context_tokens, int32_t slots) const;
    Status plan_for(const ModelRequest& request, MemoryReport* out);

    HostServices& host_;
    PluginRegistry registry_;
    Profile profile_;
    int exit_code_ = kExitUsage;
    bool quiet_ = false;
    bool synthetic_ = false;
    std::vector<std::string> chosen_;
    std::vector<Object*> created_;  // in order of creation
    Device* device_ = nullptr;
    std::vector<OpTable*> op_tables_;
    Transport* transport_ = nullptr;
    RowStore* store_ = nullptr;
    std::vector<QuantFormat*> formats_;
    std::vector<WeightOverlay*> weight_overlays_;
    std::vector<ScheduleOverlay*> schedule_overlays_;
    MediaCache* media_ = nullptr;
    ConstraintCompiler* constraint_ = nullptr;
    ModelFamily* family_ = nullptr;
    Ref<Checkpoint> checkpoint_, tables_;
    WeightSource* weights_ = nullptr;
    ModelInfo info_;
    ModelRequest request_;
    std::vector<std::string> fusions_off_;
    std::vector<StrView> fusions_views_;
    std::string engram_dir_, engram_layout_;
    MemoryReport memory_;
    int64_t program_bytes_ = 0;
    Ref<Communicator> communicator_;
    CallTap* tap_ = nullptr;
    std::vector<std::unique_ptr<TappedOps>> tapped_ops_;
    std::vector<std::unique_ptr<TappedFormat>> tapped_formats_;
    Ref<Model> model_;
};

/// MemAvailable of the machine, bytes; 0 if unknown.
int64_t memory_available();
/// Resident bytes of this process.
int64_t memory_resident();

}  // namespace tenon
