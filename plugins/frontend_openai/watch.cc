// SPDX-License-Identifier: MIT
// The thread that shuts down sockets whose time is over.
#include "watch.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>

namespace tenon::http {

namespace {
constexpr auto kTick = std::chrono::milliseconds(50);
}  // namespace

bool Deadline::arm(int64_t at_us, Closes closes) noexcept {
    closes_.store(closes);
    int64_t seen = deadline_us_.load();
    while (seen != kFired) {
        if (deadline_us_.compare_exchange_weak(seen, at_us)) {
            return true;
        }
    }
    return false;
}

ConnectionWatch::ConnectionWatch(Host& host) : host_(host) {}

ConnectionWatch::~ConnectionWatch() {
    stop();
}

void ConnectionWatch::start() {
    thread_ = std::thread([this] { run(); });
}

void ConnectionWatch::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) {
        thread_.join();
    }
}

int64_t ConnectionWatch::add(Deadline* entry) {
    const std::lock_guard lock(mutex_);
    entries_.push_back(entry);
    live_.store(static_cast<int64_t>(entries_.size()));
    return live_.load();
}

void ConnectionWatch::remove(Deadline* entry) {
    {
        const std::lock_guard lock(mutex_);
        entries_.erase(std::find(entries_.begin(), entries_.end(), entry));
        live_.store(static_cast<int64_t>(entries_.size()));
    }
    changed_.notify_all();
}

bool ConnectionWatch::evict_idle() {
    const std::lock_guard lock(mutex_);
    Deadline* oldest = nullptr;
    int64_t since = 0;
    for (Deadline* entry : entries_) {
        const int64_t idle = entry->idle_since_us_.load();
        if (idle > 0 && (oldest == nullptr || idle < since)) {
            oldest = entry;
            since = idle;
        }
    }
    if (oldest == nullptr ||
        !oldest->idle_since_us_.compare_exchange_strong(since, Deadline::kFired)) {
        return false;
    }
    ::shutdown(oldest->socket_, SHUT_RD);
    return true;
}

void ConnectionWatch::close_all_idle() {
    while (evict_idle()) {
    }
}

void ConnectionWatch::close_all() {
    const std::lock_guard lock(mutex_);
    for (Deadline* entry : entries_) {
        ::shutdown(entry->socket_, SHUT_RDWR);
    }
}

bool ConnectionWatch::wait_until_empty(int64_t deadline_us) {
    std::unique_lock lock(mutex_);
    while (!entries_.empty()) {
        const int64_t left = deadline_us - host_.now_us();
        if (left <= 0) {
            return false;
        }
        changed_.wait_for(lock, std::chrono::microseconds(std::min<int64_t>(left, 100'000)));
    }
    return true;
}

void ConnectionWatch::fire(Deadline& entry, int64_t now_us) {
    int64_t at = entry.deadline_us_.load();
    if (at <= 0 || at > now_us) {
        return;
    }
    const Deadline::Closes closes = entry.closes_.load();
    if (entry.deadline_us_.compare_exchange_strong(at, Deadline::kFired)) {
        ::shutdown(entry.socket_, closes == Deadline::Closes::both ? SHUT_RDWR : SHUT_RD);
    }
}

void ConnectionWatch::run() {
    host_.register_thread("http watch");
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        const int64_t now = host_.now_us();
        for (Deadline* entry : entries_) {
            fire(*entry, now);
        }
        changed_.wait_for(lock, kTick);
    }
}

}  // namespace tenon::http
