// SPDX-License-Identifier: MIT
// What one load of matrices onto a device holds while it runs.
#pragma once

#include <memory>

#include "tenon/plugin.h"
#include "weight_pipe.h"

namespace tenon::quant {

/// Memory for weights, staging memory, and a pipe on a stream of its own. Thread: the one that
/// loads.
class Upload {
  public:
    /// Allocates. `name` is for messages; staging_bytes may be 0. errors  does_not_fit, device
    Status open(Device& device, const std::string& name, int64_t bytes, int64_t staging_bytes) {
        name_ = name;
        TENON_TRY(device.create_stream({.name = "weight load"}, stream_.out()));
        TENON_TRY_CTX(device.allocate({.bytes = bytes, .tag = "weights"}, weights_.out()), "{}",
                      name);
        if (staging_bytes > 0) {
            TENON_TRY_CTX(
                device.allocate({.bytes = staging_bytes, .tag = "weight staging"}, staging_.out()),
                "{}", name);
        }
        pipe_ = std::make_unique<WeightPipe>(device, *stream_);
        return {};
    }

    uint8_t* weights() { return static_cast<uint8_t*>(weights_->data()); }
    void* staging() { return staging_ ? staging_->data() : nullptr; }
    Stream& stream() { return *stream_; }
    WeightPipe& pipe() { return *pipe_; }

    /// Waits for the device and hands over the weights; after an error (`status`) they go. What a
    /// device that does not answer may still use is never freed: that would wait for it too.
    Status close(Status status, Ref<Buffer>* weights) {
        Status waited = pipe_->drain();
        const bool hung = pipe_->hung();
        pipe_.reset();
        if (hung) {
            static_cast<void>(weights_.detach());
            static_cast<void>(staging_.detach());
            static_cast<void>(stream_.detach());
        }
        staging_.reset();
        Ref<Buffer> mine = std::move(weights_);
        TENON_TRY_CTX(std::move(status), "{}", name_);
        TENON_TRY_CTX(std::move(waited), "{}", name_);
        *weights = std::move(mine);
        return {};
    }

  private:
    std::string name_;
    Ref<Stream> stream_;
    Ref<Buffer> weights_, staging_;
    std::unique_ptr<WeightPipe> pipe_;  // goes first
};

}  // namespace tenon::quant
