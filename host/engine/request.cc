// SPDX-License-Identifier: MIT
// Reference counting, cancellation and the front end's view of a request.
#include "host/engine/request.h"

namespace tenon::engine {

Request::Request(uint64_t id, int32_t replies, std::shared_ptr<WakeEvent> wake)
    : id_(id),
      wake_(std::move(wake)),
      replies_(static_cast<size_t>(replies)),
      references_(1 + replies) {
    for (int32_t i = 0; i < replies; ++i) {
        Reply& r = replies_[static_cast<size_t>(i)];
        r.owner = this;
        r.request = id;
        r.reply = i;
    }
    live_replies = replies;
}

bool Request::next(int64_t timeout_us, SinkEvent* out) noexcept {
    bool freed = false;
    const bool found = ring_.next(timeout_us, out, &freed);
    if (freed) {
        wake_->signal();
    }
    if (found && (out->kind == SinkEventKind::finish || out->kind == SinkEventKind::error)) {
        ++terminals_taken_;
    }
    return found;
}

bool Request::finished() noexcept {
    return terminals_taken_ == static_cast<int32_t>(replies_.size());
}

void Request::cancel(CancelReason reason) noexcept {
    CancelReason expected = CancelReason::none;
    if (reason != CancelReason::none &&
        cancelled_.compare_exchange_strong(expected, reason, std::memory_order_acq_rel)) {
        wake_->signal();
    }
}

void* Request::query(StrView facet) noexcept {
    return facet == StrView(ReplySink::kFacet) ? static_cast<ReplySink*>(this) : nullptr;
}

void Request::release() noexcept {
    if (!finished()) {
        cancel(CancelReason::client_gone);
    }
    ring_.abandon();
    unref();
}

void Request::unref() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        delete this;
    }
}

}  // namespace tenon::engine
