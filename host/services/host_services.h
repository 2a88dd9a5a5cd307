// SPDX-License-Identifier: MIT
// The Host that plugins see: log, metrics, clock, services by facet name, shutdown flag.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "host/metrics/metrics.h"

namespace tenon {

/// Outlives every plugin object. Thread: any; `publish` on the main thread.
class HostServices final : public Host {
  public:
    HostServices() = default;

    /// Makes `object` findable under a facet name; null withdraws it.
    void publish(const char* facet, Object* object);
    void begin_stopping() noexcept { stopping_.store(true, std::memory_order_release); }
    MetricRegistry& metrics() { return metrics_; }

    bool log_enabled(LogLevel level) noexcept override;
    void log(LogLevel level, StrView component, StrView message) noexcept override;
    Metric* metric(const MetricDesc& desc) noexcept override { return metrics_.get(desc); }
    void metrics_text(void (*write)(void*, StrView) noexcept, void* arg) noexcept override;
    Object* service(StrView facet) noexcept override;
    int64_t now_us() noexcept override;
    bool stopping() noexcept override { return stopping_.load(std::memory_order_acquire); }
    void register_thread(StrView name) noexcept override;

  private:
    MetricRegistry metrics_;
    std::mutex mutex_;  // guards services_
    std::map<std::string, Object*, std::less<>> services_;
    std::atomic<bool> stopping_{false};
};

}  // namespace tenon
