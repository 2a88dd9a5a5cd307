// SPDX-License-Identifier: MIT
// A Host for tests: clock by hand or real, log lines and metric values kept, services by name.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tenon/host.h"

namespace tenon::fakes {

/// Any thread. With `manual_clock` time moves only by `advance`.
class FakeHost final : public Host {
  public:
    explicit FakeHost(bool manual_clock = false) : manual_(manual_clock) {}

    void advance(int64_t us) { clock_us_.fetch_add(us); }
    void publish(std::string facet, Object* object) { services_[std::move(facet)] = object; }
    /// Called at the start of each thread that registers.
    void on_thread(void (*hook)(StrView name)) { hook_ = hook; }
    void stop() { stopping_ = true; }
    /// Lines below it are not asked for.
    void log_from(LogLevel level) { level_ = level; }

    std::vector<std::string> lines() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return lines_;
    }
    int64_t count_lines(std::string_view part) {
        int64_t n = 0;
        for (const std::string& line : lines()) {
            n += line.find(part) != std::string::npos ? 1 : 0;
        }
        return n;
    }
    /// Value of a counter or gauge, number of observations of a histogram; 0 if it was never asked
    /// for.
    double value(const std::string& name, const std::string& labels = {}) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = metrics_.find(name + "{" + labels + "}");
        return found == metrics_.end() ? 0 : found->second->value.load();
    }

    bool log_enabled(LogLevel level) noexcept override { return level >= level_; }
    void log(LogLevel level, StrView component, StrView message) noexcept override {
        const std::lock_guard<std::mutex> lock(mutex_);
        lines_.push_back(format("{} {}: {}", level, component, message));
    }
    Metric* metric(const MetricDesc& desc) noexcept override {
        const std::lock_guard<std::mutex> lock(mutex_);
        auto& found = metrics_[desc.name.str() + "{" + desc.labels.str() + "}"];
        if (!found) {
            found = std::make_unique<FakeMetric>();
        }
        return found.get();
    }
    void metrics_text(void (*write)(void*, StrView) noexcept, void* arg) noexcept override {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const auto& [name, metric] : metrics_) {
            write(arg, format("{} {}\n", name, metric->value.load()));
        }
    }
    Object* service(StrView facet) noexcept override {
        const auto found = services_.find(facet.str());
        return found == services_.end() ? nullptr : found->second;
    }
    int64_t now_us() noexcept override {
        if (manual_) {
            return clock_us_.load();
        }
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        return std::chrono::duration_cast<std::chrono::microseconds>(now).count() +
               clock_us_.load();
    }
    bool stopping() noexcept override { return stopping_; }
    void register_thread(StrView name) noexcept override {
        if (hook_ != nullptr) {
            hook_(name);
        }
    }

  private:
    struct FakeMetric final : Implements<FakeMetric, Metric> {
        std::atomic<double> value{0};
        void add(double amount) noexcept override {
            double now = value.load();
            while (!value.compare_exchange_weak(now, now + amount)) {
            }
        }
        void set(double v) noexcept override { value.store(v); }
        void observe(double) noexcept override { add(1); }
        void release() noexcept override {}
    };

    const bool manual_;
    std::atomic<int64_t> clock_us_{1'000'000};
    std::atomic<bool> stopping_{false};
    LogLevel level_ = LogLevel::debug;
    void (*hook_)(StrView) = nullptr;
    std::mutex mutex_;  // guards lines_, metrics_
    std::vector<std::string> lines_;
    std::map<std::string, std::unique_ptr<FakeMetric>> metrics_;
    std::map<std::string, Object*> services_;
};

}  // namespace tenon::fakes
