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
