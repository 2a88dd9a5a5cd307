// SPDX-License-Identifier: MIT
// The model family `dsv41`: claims checkpoints, opens the text side, plans memory, loads, packs
// tables.
#pragma once

#include <memory>

#include "memory_plan.h"
#include "text/codec.h"

namespace tenon::dsv41 {

/// Options of the component, as the profile gives them (architecture.md 7.1).
struct FamilyOptions {
    CodecOptions text;
    int32_t stages = 0;
    bool packed_state = true;
};

/// Thread: main, before ready; the codec may be used from any thread afterwards.
class Family final : public Implements<Family, ModelFamily, RowPacker> {
  public:
    explicit Family(Host& host, FamilyOptions options)
        : host_(host), options_(std::move(options)) {}

    Status inspect(Checkpoint& checkpoint, ModelInfo* out) noexcept override;
    Status open_text(Checkpoint& checkpoint, TextCodec** out) noexcept override;
    Status plan(Checkpoint& checkpoint, WeightSource& weights, Span<QuantFormat* const> formats,
                const ModelRequest& request, MemoryPlan* out) noexcept override;
    Status load(const ModelServices& services, const ModelRequest& request,
                Model** out) noexcept override;
    Status pack(Checkpoint& checkpoint, const PackRequest& request) noexcept override;

  private:
    Status open_codec(Checkpoint& checkpoint, TextCodec** out);
    ModelRequest effective(const ModelRequest& asked) const;
    Status check_options(const ModelConfig& config, const ModelRequest& request) const;

    Host& host_;
    FamilyOptions options_;
    std::vector<std::pair<std::string, Ref<TextCodec>>> codecs_;  ///< by checkpoint directory
    PlanTable plan_;
};

/// Classes of all token ids for the Engram hash, from the tokenizer; a shipped map must agree.
/// errors  invalid_argument: class count differs from the configuration; io: the shipped map
/// disagrees
Result<std::vector<int32_t>> token_classes(const ModelConfig& config, Checkpoint& checkpoint);

}  // namespace tenon::dsv41
