// SPDX-License-Identifier: MIT
// Counters, gauges and histograms of the process, exported as Prometheus text.
#pragma once

#include <memory>
#include <string>

#include "tenon/host.h"

namespace tenon {

/// Thread-safe. Names get the prefix "tenon_".
class MetricRegistry {
  public:
    MetricRegistry();
    ~MetricRegistry();
    /// The series with that name and labels, made on first use; owned by the registry. A malformed
    /// name or a kind that differs from the first use gives a series that counts nowhere.
    Metric* get(const MetricDesc& desc) noexcept;
    std::string text() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace tenon
