// SPDX-License-Identifier: MIT
// The delivery thread: parser events and raw text into sinks.
#include "host/engine/delivery.h"

#include <openssl/evp.h>

namespace tenon {
namespace {

/// Parser events of one stream into its sink.
class SinkEvents final : public ReplyEvents {
  public:
    explicit SinkEvents(ReplyStream& stream) : stream_(stream) {}
    void on_event(const ReplyEvent& e) noexcept override {
        const Status ignored = guard([&] {
            OwnedEvent out;
            out.reply = stream_.reply;
            out.index = e.index;
            out.text = e.text.str();
            out.id = e.id.str();
            switch (e.kind) {
                case ReplyEventKind::reasoning:
                    out.kind = SinkEventKind::reasoning;
                    break;
                case ReplyEventKind::content:
                    out.kind = SinkEventKind::content;
                    break;
                case ReplyEventKind::call:
                    out.kind = SinkEventKind::call;
                    break;
                case ReplyEventKind::arguments:
                    out.kind = SinkEventKind::arguments;
                    break;
                case ReplyEventKind::finish:
                    finish = out.text;
                    return;
            }
            stream_.request->sink->push(std::move(out));
        });
    }
    std::string finish;

  private:
    ReplyStream& stream_;
};

// Where the text must be held because a stop string may begin there; npos = nowhere.
size_t held_from(const std::string& text, const std::vector<std::string>& stops) {
    size_t from = std::string::npos;
    for (const std::string& stop : stops) {
        const size_t longest = std::min(stop.size() - 1, text.size());
        for (size_t n = longest; n > 0; --n) {
            if (text.compare(text.size() - n, n, stop, 0, n) == 0) {
                from = std::min(from, text.size() - n);
                break;
            }
        }
    }
    return from;
}

}  // namespace

Delivery::Delivery(Host& host) : host_(host), ring_(kCapacity) {}

Delivery::~Delivery() {
    stop();
}

void Delivery::start() {
    ending_ = false;
    thread_ = std::thread([this] {
        host_.register_thread("delivery");
        run();
    });
}

void Delivery::stop() {
    if (!thread_.joinable()) {
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    filled_.notify_one();
    thread_.join();
}

bool Delivery::room(int64_t items) {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(kCapacity - count_) >= items;
}

void Delivery::push(DeliveryItem item) {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [&] { return count_ < kCapacity; });
    ring_[(first_ + count_) % kCapacity] = std::move(item);
    ++count_;
    filled_.notify_one();
}

void Delivery::run() {
    while (true) {
        DeliveryItem item;
        {
            std::unique_lock lock(mutex_);
            filled_.wait(lock, [&] { return count_ > 0 || ending_; });
            if (count_ == 0) {
                return;
            }
            item = std::move(ring_[first_]);
            ring_[first_] = DeliveryItem();
            first_ = (first_ + 1) % kCapacity;
            --count_;
        }
        freed_.notify_one();
        const Status status = guard([&] { deliver(item); });
        if (!status.ok()) {
            host_.log(LogLevel::error, "delivery", status.message());
        }
    }
}

void Delivery::raw_text(ReplyStream& s, std::string_view text) {
    ReplyStream::Delivery& d = s.delivery;
    if (d.stopped) {
        return;
    }
    d.held += text;
    size_t hit = std::string::npos;
    for (const std::string& stop : d.stops) {
        hit = std::min(hit, d.held.find(stop));
    }
    OwnedEvent out;
    out.reply = s.reply;
    if (hit != std::string::npos) {
        d.stopped = true;
        out.text = d.held.substr(0, hit);
        d.held.clear();
    } else {
        const size_t from = held_from(d.held, d.stops);
        out.text = d.held.substr(0, from);
        d.held = from == std::string::npos ? "" : d.held.substr(from);
    }
    if (!out.text.empty()) {
        s.request->sink->push(std::move(out));
    }
}

void Delivery::deliver(DeliveryItem& item) {
    ReplyStream& s = *item.stream;
    ReplyStream::Delivery& d = s.delivery;
    SinkEvents events(s);
    OwnedEvent out;
    out.reply = s.reply;
    switch (item.kind) {
        case DeliveryItem::Kind::started:
            out.kind = SinkEventKind::started;
            s.request->sink->push(std::move(out));
            return;
        case DeliveryItem::Kind::tokens: {
            d.ids.insert(d.ids.end(), item.ids, item.ids + item.count);
            if ((s.request->flags & kReturnIds) != 0 || item.logprob_count > 0) {
                out.kind = SinkEventKind::tokens;
                out.ids.assign(item.ids, item.ids + item.count);
                out.logprobs.assign(item.logprobs, item.logprobs + item.logprob_count);
                out.top = item.top;
                s.request->sink->push(std::move(out));
            }
            const Span<const int32_t> ids(item.ids, static_cast<uint64_t>(item.count));
            if (d.parser) {
                const Status status = d.parser->feed(ids, events);
                if (!status.ok()) {
                    host_.log(LogLevel::error, "delivery", status.message());
                }
            } else if (d.raw) {
                raw_text(s, d.raw->feed(ids));
            }
            return;
        }
        case DeliveryItem::Kind::finish: {
            if (d.parser) {
                item.timings.reasoning_tokens = d.parser->reasoning_tokens();
                const Status status = d.parser->finish(
                    d.parser->stopped() ? ReplyEnd::stop_string : item.end, events);
                if (!status.ok()) {
                    host_.log(LogLevel::error, "delivery", status.message());
                }
                out.text = events.finish;
            } else {
                if (d.raw && item.end != ReplyEnd::stop_string) {
                    raw_text(s, d.raw->flush());
                    if (!d.stopped && !d.held.empty()) {
                        OwnedEvent rest;
                        rest.reply = s.reply;
                        rest.text = std::move(d.held);
                        s.request->sink->push(std::move(rest));
                    }
                }
                out.text = item.end == ReplyEnd::length && !d.stopped ? "length" : "stop";
            }
            out.kind = SinkEventKind::finish;
            break;
        }
        case DeliveryItem::Kind::error:
            out.kind = SinkEventKind::error;
            out.code = item.code;
            out.text = item.message;
            break;
    }
    EVP_Digest(d.ids.data(), d.ids.size() * sizeof(int32_t), item.timings.token_sha, nullptr,
               EVP_sha256(), nullptr);
    out.timings = item.timings;
    out.terminal = true;
    s.request->sink->push(std::move(out));
}

}  // namespace tenon
