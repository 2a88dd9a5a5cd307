// SPDX-License-Identifier: MIT
// What a plugin may ask of the host: logging, metrics, clock, services, cancellation, thread
// registration.
#pragma once

#include "tenon/object.h"

namespace tenon {

enum class LogLevel : uint8_t { debug, info, warn, error };

enum class MetricKind : uint8_t { counter, gauge, histogram };

struct MetricDesc {
    uint32_t struct_size = sizeof(MetricDesc);
    MetricKind kind = MetricKind::counter;
    StrView name;  ///< without prefix, with unit: "engram_read_bytes_total"
    StrView help;
    StrView labels;              ///< "outcome=ok,kind=chat" or empty
    Span<const double> buckets;  ///< histograms only, ascending
};

/// One time series. Thread: any; calls never block.
class Metric : public Object {
  public:
    static constexpr const char* kFacet = "host.metric/1";
    virtual void add(double amount) noexcept = 0;     ///< counter, gauge
    virtual void set(double value) noexcept = 0;      ///< gauge
    virtual void observe(double value) noexcept = 0;  ///< histogram
};

/// Lives from before `create` until after the last `release`. Thread: any, unless said.
class Host {
  public:
    virtual bool log_enabled(LogLevel level) noexcept = 0;
    /// One line of facts, "opened rows=12012 row_bytes=32". Never per token, no prompt text.
    virtual void log(LogLevel level, StrView component, StrView message) noexcept = 0;
    /// The series with that name and labels; the host owns it. Never null (a refused one counts
    /// nowhere).
    virtual Metric* metric(const MetricDesc& desc) noexcept = 0;
    /// All series as Prometheus text, appended through `write`.
    virtual void metrics_text(void (*write)(void* arg, StrView text) noexcept,
                              void* arg) noexcept = 0;
    /// A service of the host or of a created plugin by facet name, or null (e.g.
    /// "engine.engine/1").
    virtual Object* service(StrView facet) noexcept = 0;
    /// Monotonic clock.
    virtual int64_t now_us() noexcept = 0;
    /// True once shutdown began; long waits end early.
    virtual bool stopping() noexcept = 0;
    /// Names the calling thread in logs, debuggers and the stall report.
    virtual void register_thread(StrView name) noexcept = 0;

  protected:
    ~Host() = default;
};

}  // namespace tenon
