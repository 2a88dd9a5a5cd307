// SPDX-License-Identifier: MIT
// A TextCodec without weights, from a checkpoint folder or from a profile.
#pragma once

#include <memory>
#include <string>

#include "host/cli/verbs.h"
#include "host/lifecycle/deployment.h"

namespace tenon::cli {

/// Owns everything behind the codec.
class TextSource {
  public:
    /// Exit code of the failure is in `exit_code`.
    Status open(const TextArgs& args);
    TextCodec& codec() { return *codec_; }
    int exit_code() const { return exit_code_; }
    ~TextSource();

  private:
    Status open_folder(const std::string& folder);

    HostServices host_;
    PluginRegistry registry_;
    std::unique_ptr<Deployment> deployment_;
    OptionBag options_;
    Object* family_object_ = nullptr;
    Ref<Checkpoint> checkpoint_;
    TextCodec* codec_ = nullptr;  // lives as long as the family
    int exit_code_ = kExitUsage;
};

}  // namespace tenon::cli
