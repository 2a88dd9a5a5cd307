// SPDX-License-Identifier: MIT
// prometheus-cpp core behind metrics.h; the only file that includes it.
#include "host/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <list>
#include <map>
#include <mutex>
#include <sstream>

namespace tenon {
namespace {

class Series final : public Implements<Series, Metric> {
  public:
    prometheus::Counter* counter = nullptr;
    prometheus::Gauge* gauge = nullptr;
    prometheus::Histogram* histogram = nullptr;
    MetricKind kind = MetricKind::counter;

    void add(double amount) noexcept override {
        if (counter != nullptr && amount >= 0) {
            counter->Increment(amount);
        } else if (gauge != nullptr) {
            gauge->Increment(amount);
        }
    }
    void set(double value) noexcept override {
        if (gauge != nullptr) {
            gauge->Set(value);
        }
    }
    void observe(double value) noexcept override {
        if (histogram != nullptr) {
            histogram->Observe(value);
        }
    }
    void release() noexcept override {}  // owned by the registry
};

bool valid_name(std::string_view name) {
    if (name.empty() || (name[0] >= '0' && name[0] <= '9')) {
        return false;
    }
    for (const char c : name) {
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) {
            return false;
        }
    }
    return true;
}

prometheus::Labels parse_labels(std::string_view text) {
    prometheus::Labels labels;
    while (!text.empty()) {
        const size_t comma = text.find(',');
        const std::string_view pair = text.substr(0, comma);
        const size_t equals = pair.find('=');
        if (equals != std::string_view::npos && valid_name(pair.substr(0, equals))) {
            labels[std::string(pair.substr(0, equals))] = std::string(pair.substr(equals + 1));
        }
        text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    }
    return labels;
}

}  // namespace

struct MetricRegistry::Impl {
    mutable std::mutex mutex;  // guards everything below
    prometheus::Registry registry;
    std::map<std::string, MetricKind> kinds;
    std::map<std::pair<std::string, std::string>, Series> series;
    Series nowhere;
};

MetricRegistry::MetricRegistry() : impl_(std::make_unique<Impl>()) {}
MetricRegistry::~MetricRegistry() = default;

Metric* MetricRegistry::get(const MetricDesc& desc) noexcept {
    try {
        if (!valid_name(desc.name)) {
            return &impl_->nowhere;
        }
        const std::lock_guard lock(impl_->mutex);
        const std::string name = "tenon_" + desc.name.str();
        const auto [kind, fresh] = impl_->kinds.try_emplace(name, desc.kind);
        if (kind->second != desc.kind) {
            return &impl_->nowhere;
        }
        const auto [it, made] = impl_->series.try_emplace({name, desc.labels.str()});
        Series& s = it->second;
        if (made) {
            const prometheus::Labels labels = parse_labels(desc.labels);
            s.kind = desc.kind;
            switch (desc.kind) {
                case MetricKind::counter:
                    s.counter = &prometheus::BuildCounter()
                                     .Name(name)
                                     .Help(desc.help.str())
                                     .Register(impl_->registry)
                                     .Add(labels);
                    break;
                case MetricKind::gauge:
                    s.gauge = &prometheus::BuildGauge()
                                   .Name(name)
                                   .Help(desc.help.str())
                                   .Register(impl_->registry)
                                   .Add(labels);
                    break;
                case MetricKind::histogram:
                    s.histogram = &prometheus::BuildHistogram()
                                       .Name(name)
                                       .Help(desc.help.str())
                                       .Register(impl_->registry)
                                       .Add(labels, prometheus::Histogram::BucketBoundaries(
                                                        desc.buckets.begin(), desc.buckets.end()));
                    break;
            }
        }
        return &s;
    } catch (...) {
        return &impl_->nowhere;
    }
}

std::string MetricRegistry::text() const {
    const std::lock_guard lock(impl_->mutex);
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, impl_->registry.Collect());
    return out.str();
}

}  // namespace tenon
