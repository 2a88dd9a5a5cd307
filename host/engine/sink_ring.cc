// SPDX-License-Identifier: MIT
// Event ring with inline payloads, overflow list and blocked flag.
#include "host/engine/sink_ring.h"

#include <chrono>

namespace tenon::engine {
namespace {

bool is_terminal(const SinkEvent& event) {
    return event.kind == SinkEventKind::finish || event.kind == SinkEventKind::error;
}

int64_t aligned(int64_t bytes) {
    return (bytes + 7) / 8 * 8;
}

}  // namespace

SinkRing::SinkRing()
    : events_(static_cast<size_t>(kEvents)),
      // Left uninitialised: a short reply touches only the first pages of it.
      bytes_(new uint8_t[static_cast<size_t>(kBytes)]) {}

int64_t SinkRing::payload_bytes(const SinkEvent& e) {
    return aligned(static_cast<int64_t>(e.ids.size * sizeof(int32_t) +
                                        e.logprobs.size * sizeof(SinkLogprob) + e.text.size +
                                        e.id.size));
}

void SinkRing::write_payload(const SinkEvent& e, uint8_t* to) {
    const auto put = [&to](const void* data, uint64_t bytes) {
        if (bytes > 0) {
            std::memcpy(to, data, bytes);
            to += bytes;
        }
    };
    put(e.logprobs.data, e.logprobs.size * sizeof(SinkLogprob));
    put(e.ids.data, e.ids.size * sizeof(int32_t));
    put(e.text.data, e.text.size);
    put(e.id.data, e.id.size);
}

SinkEvent SinkRing::read_payload(const SinkEvent& event, const uint8_t* from) {
    SinkEvent e = event;
    e.logprobs.data = reinterpret_cast<const SinkLogprob*>(from);
    from += e.logprobs.size * sizeof(SinkLogprob);
    e.ids.data = reinterpret_cast<const int32_t*>(from);
    from += e.ids.size * sizeof(int32_t);
    e.text.data = reinterpret_cast<const char*>(from);
    from += e.text.size;
    e.id.data = reinterpret_cast<const char*>(from);
    return e;
}

bool SinkRing::place(int64_t bytes, int64_t* at) {
    if (!overflow_.empty() || head_ - tail_ == kEvents) {
        return false;
    }
    int64_t start = byte_head_;
    if (start % kBytes + bytes > kBytes) {
        start += kBytes - start % kBytes;  // payloads do not wrap
    }
    if (start + bytes - byte_tail_ > kBytes) {
        return false;
    }
    *at = start;
    byte_head_ = start + bytes;
    return true;
}

void SinkRing::update_blocked(bool* freed) {
    const int64_t events = head_ - tail_;
    const int64_t bytes = byte_head_ - byte_tail_;
    const bool was = blocked_.load(std::memory_order_relaxed);
    bool now = was;
    if (abandoned_) {
        now = false;
    } else if (!overflow_.empty() || events >= kEvents * 3 / 4 || bytes >= kBytes * 3 / 4) {
        now = true;
    } else if (events <= kEvents / 2 && bytes <= kBytes / 2) {
        now = false;  // a gap between on and off, so that one event more or less does not flap
    }
    if (now != was) {
        blocked_.store(now, std::memory_order_release);
        if (!now && freed != nullptr) {
            *freed = true;
        }
    }
}

bool SinkRing::push(const SinkEvent& event) {
    const int64_t bytes = payload_bytes(event);
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (abandoned_) {
            return true;
        }
        Stored stored{event, 0, bytes};
        if (place(bytes, &stored.at)) {
            write_payload(event, bytes_.get() + stored.at % kBytes);
            events_[static_cast<size_t>(head_ % kEvents)] = stored;
            ++head_;
        } else {
            if (overflow_bytes_ + bytes > kOverflowBytes && !is_terminal(event)) {
                return false;
            }
            Overflow more{stored,
                          std::unique_ptr<uint8_t[]>(new uint8_t[static_cast<size_t>(bytes) + 8])};
            write_payload(event, more.payload.get());
            overflow_bytes_ += bytes + static_cast<int64_t>(sizeof(Overflow));
            overflow_.push_back(std::move(more));
        }
        update_blocked(nullptr);
    }
    ready_.notify_one();
    return true;
}

bool SinkRing::next(int64_t timeout_us, SinkEvent* out, bool* freed) {
    std::unique_lock<std::mutex> lock(mutex_);
    *freed = false;
    if (taken_) {
        taken_ = false;
        ++tail_;
        byte_tail_ = tail_ == head_ ? byte_head_ : events_[static_cast<size_t>(tail_ % kEvents)].at;
    }
    held_ = Overflow{};
    update_blocked(freed);
    const auto has_event = [this] { return head_ != tail_ || !overflow_.empty(); };
    if (timeout_us > 0) {
        ready_.wait_for(lock, std::chrono::microseconds(timeout_us), has_event);
    }
    if (!has_event()) {
        return false;
    }
    if (head_ != tail_) {
        const Stored& stored = events_[static_cast<size_t>(tail_ % kEvents)];
        *out = read_payload(stored.event, bytes_.get() + stored.at % kBytes);
        taken_ = true;
        return true;
    }
    held_ = std::move(overflow_.front());
    overflow_.pop_front();
    overflow_bytes_ -= held_.stored.bytes + static_cast<int64_t>(sizeof(Overflow));
    *out = read_payload(held_.stored.event, held_.payload.get());
    update_blocked(freed);
    return true;
}

void SinkRing::abandon() {
    const std::lock_guard<std::mutex> lock(mutex_);
    abandoned_ = true;
    update_blocked(nullptr);
}

}  // namespace tenon::engine
