// SPDX-License-Identifier: MIT
// Drives a model directly, one sequence in slot 0, without an engine: for `score` and measurements.
#pragma once

#include <functional>
#include <vector>

#include "tenon/model.h"

namespace tenon {

/// Thread: the thread that loaded the model; no engine may run.
class StepDriver {
  public:
    StepDriver(Model& model, const ModelRequest& request);

    /// Opens slot 0 with an empty sequence (closes the old one).
    Status open();
    /// Receives f32 [rows, vocab] of consecutive prompt rows; borrowed for the call.
    using Rows = std::function<Status(const TensorView&)>;
    /// Runs prompt rows as chunks. With `logits` every row's logits are handed out; the model must
    /// offer ModelLogits.
    Status prefill(Span<const int32_t> ids, const Rows& logits);
    /// A window over slot 0: the pending token and drafts behind it.
    struct Round {
        std::vector<int32_t> emitted;  ///< accepted drafts and the drawn token
        std::vector<int32_t> drafts;   ///< what the drafter offers next; empty without a draft pass
        StepTiming timing;             ///< the model's own times of the step
    };
    /// Rows of `tokens` (1 to max_window_rows), then a draft pass if wanted. The length grows by
    /// what was emitted.
    Status round(Span<const int32_t> tokens, bool draft, Round* out);
    /// Lets the model read table rows of the next round's tokens, as an engine does with drafts.
    Status announce(Span<const int32_t> tokens);
    /// One decode row; the next token is the greedy one.
    Status decode(int32_t pending, int32_t* next);
    /// As decode, then a draft pass: the drafts after `next`.
    Status decode_and_draft(int32_t pending, int32_t* next, std::vector<int32_t>* drafts);
    Status close();
    int64_t length() const { return length_; }

  private:
    Status run(StepPlan* plan, StepResult* result);
    Status ensure_pages(int64_t length, std::vector<plan::PageMap>* maps,
                        std::vector<int32_t>* pages);

    Model& model_;
    ModelRequest request_;
    uint64_t step_ = 0;
    uint32_t generation_ = 0;
    bool open_ = false;
    int64_t length_ = 0;
    int64_t mapped_ = 0;
};

}  // namespace tenon
