// SPDX-License-Identifier: MIT
// A checkpoint directory for tests: safetensors files mapped whole, found through the index or
// model.safetensors.
#pragma once

#include <filesystem>
#include <map>
#include <memory>

#include "tenon/weights.h"

namespace tenon::testing {

/// Throws std::runtime_error on anything unexpected: test data are ours.
class CheckpointFolder final : public Implements<CheckpointFolder, Checkpoint> {
  public:
    explicit CheckpointFolder(const std::filesystem::path& dir);
    ~CheckpointFolder();

    /// Adds the tensors of one more file (bias_vl of a pack).
    void add_file(const std::filesystem::path& file);
    /// Hides a tensor, as if the checkpoint lacked it.
    void remove(const std::string& name);
    void set_config(std::string json) { config_ = std::move(json); }
    std::string config() const { return config_; }

    StrView dir() noexcept override { return dir_; }
    StrView config_json() noexcept override { return config_; }
    WeightSource* weights() noexcept override;
    Status file(StrView name, StrView* out) noexcept override;

  private:
    class Source;
    std::string dir_, config_;
    std::unique_ptr<Source> source_;
    std::map<std::string, std::string> files_;
};

}  // namespace tenon::testing
