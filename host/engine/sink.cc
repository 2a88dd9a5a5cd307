// SPDX-License-Identifier: MIT
// Ring operations; blocked is decided under the mutex and read without it.
#include "host/engine/sink.h"

#include <chrono>

namespace tenon {
namespace {

size_t bytes_of(const OwnedEvent& e) {
    return sizeof e + e.text.size() + e.id.size() + e.ids.size() * 4 +
           e.logprobs.size() * sizeof(SinkLogprob);
}

bool is_text(const OwnedEvent& e) {
    return e.kind == SinkEventKind::content || e.kind == SinkEventKind::reasoning ||
           e.kind == SinkEventKind::arguments;
}

}  // namespace

void SinkState::push(OwnedEvent event) {
    const std::lock_guard lock(mutex_);
    if (event.terminal) {
        --open_replies_;
    }
    if (!events_.empty() && is_text(event)) {
        OwnedEvent& last = events_.back();
        if (last.kind == event.kind && last.reply == event.reply && last.index == event.index &&
            last.text.size() < 4096) {
            last.text += event.text;
            bytes_ += event.text.size();
            blocked_.store(events_.size() >= kMaxEvents * 3 / 4 || bytes_ >= kMaxBytes * 3 / 4,
                           std::memory_order_release);
            ready_.notify_one();
            return;
        }
    }
    bytes_ += bytes_of(event);
    events_.push_back(std::move(event));
    blocked_.store(events_.size() >= kMaxEvents * 3 / 4 || bytes_ >= kMaxBytes * 3 / 4,
                   std::memory_order_release);
    ready_.notify_one();
}

bool SinkState::next(int64_t timeout_us, OwnedEvent* out) {
    std::unique_lock lock(mutex_);
    if (!ready_.wait_for(lock, std::chrono::microseconds(timeout_us),
                         [&] { return !events_.empty(); })) {
        return false;
    }
    *out = std::move(events_.front());
    events_.pop_front();
    bytes_ = 0;
    for (const OwnedEvent& e : events_) {
        bytes_ += bytes_of(e);
    }
    blocked_.store(events_.size() >= kMaxEvents * 3 / 4 || bytes_ >= kMaxBytes * 3 / 4,
                   std::memory_order_release);
    return true;
}

bool SinkState::finished() {
    const std::lock_guard lock(mutex_);
    return open_replies_ <= 0 && events_.empty();
}

bool SinkHandle::next(int64_t timeout_us, SinkEvent* out) noexcept {
    if (!state_->next(timeout_us, &current_)) {
        return false;
    }
    SinkEvent e;
    e.kind = current_.kind;
    e.reply = current_.reply;
    e.index = current_.index;
    e.code = current_.code;
    e.text = current_.text;
    e.id = current_.id;
    e.ids = current_.ids;
    e.logprobs = current_.logprobs;
    e.top = current_.top;
    e.timings = current_.terminal ? &current_.timings : nullptr;
    *out = e;
    wake_(wake_arg_);  // a paused request may go on
    return true;
}

}  // namespace tenon
