// SPDX-License-Identifier: MIT
// Sizes of everything that the model allocates, from configuration and request alone
// (engine.md 1.7).
#pragma once

#include "activations.h"
#include "engram_reader.h"
#include "state.h"

namespace tenon::dsv41 {

constexpr int64_t kMaxLogprobs = 20;
constexpr int64_t kMaxPageCopies = 1024;

struct BlockSizes {
    int64_t window = 0, chunk = 0;  ///< pinned and again on the device
    int64_t output = 0;             ///< on the device and again pinned
    int64_t work = 0;
};

ActivationShape activation_shape(const ModelConfig& config, const ModelRequest& request,
                                 const StateShape& state, bool with_drafts);
BlockSizes block_sizes(const ModelConfig& config, const ModelRequest& request,
                       const StateShape& state);
EngramOptions engram_options(const ModelConfig& config, const ModelRequest& request,
                             const StateShape& state, EngramLayout layout);
/// Layers above the last kv source own no state but window rows, so that a prompt needs them for
/// its tail only (dsv41.md 3.11).
bool has_tail(const ModelConfig& config);
/// From a partial cut to the first full target that it can reach; 0 = the model has no tail.
int64_t tail_distance(const ModelConfig& config, bool exact);
ModelInfo model_info(const ModelConfig& config, const ModelRequest& request,
                     const StateShape& state);

/// Entries with their texts, valid until the next call of `build`.
class PlanTable {
  public:
    Status build(const ModelConfig& config, const ModelRequest& request, WeightSource& weights,
                 Span<QuantFormat* const> formats, MemoryPlan* out);

  private:
    void add(std::string tag, PlanPlace place, int64_t bytes, int64_t count, std::string note);

    std::vector<std::string> texts_;
    std::vector<MemoryEntry> entries_;
};

}  // namespace tenon::dsv41
