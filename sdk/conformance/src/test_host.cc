// SPDX-License-Identifier: MIT
// The recording host of the conformance suites.
#include "tenon/testing/plugin_fixture.h"

#include <chrono>

namespace tenon::testing {

class TestHost::Series final : public Implements<Series, Metric> {
  public:
    explicit Series(MetricKind kind) : kind_(kind) {}
    ~Series() = default;
    void add(double amount) noexcept override {
        const std::lock_guard lock(mutex_);
        value_ += amount;
    }
    void set(double value) noexcept override {
        const std::lock_guard lock(mutex_);
        value_ = value;
    }
    void observe(double) noexcept override { add(1); }
    void release() noexcept override {}  // the host owns its series
    double value() const {
        const std::lock_guard lock(mutex_);
        return value_;
    }
    MetricKind kind() const { return kind_; }

  private:
    const MetricKind kind_;
    mutable std::mutex mutex_;  // guards value_
    double value_ = 0;
};

TestHost::TestHost() = default;
TestHost::~TestHost() = default;

bool TestHost::log_enabled(LogLevel) noexcept {
    return true;
}

void TestHost::log(LogLevel level, StrView component, StrView message) noexcept {
    const std::lock_guard lock(mutex_);
    lines_.push_back({level, component.str(), message.str()});
}

Metric* TestHost::metric(const MetricDesc& desc) noexcept {
    const std::lock_guard lock(mutex_);
    auto& series = series_[desc.name.str() + "{" + desc.labels.str() + "}"];
    if (series == nullptr) {
        series = std::make_unique<Series>(desc.kind);
    }
    return series.get();
}

void TestHost::metrics_text(void (*write)(void* arg, StrView text) noexcept, void* arg) noexcept {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, series] : series_) {
        const std::string line = format("{} {}\n", name, series->value());
        write(arg, line);
    }
}

Object* TestHost::service(StrView facet) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = services_.find(facet.str());
    return found == services_.end() ? nullptr : found->second;
}

int64_t TestHost::now_us() noexcept {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

bool TestHost::stopping() noexcept {
    const std::lock_guard lock(mutex_);
    return stopping_;
}

void TestHost::register_thread(StrView name) noexcept {
    const std::lock_guard lock(mutex_);
    threads_.push_back(name.str());
}

void TestHost::provide(const std::string& facet, Object* object) {
    const std::lock_guard lock(mutex_);
    services_[facet] = object;
}

void TestHost::set_stopping(bool value) {
    const std::lock_guard lock(mutex_);
    stopping_ = value;
}

std::vector<LogLine> TestHost::lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
}

bool TestHost::logged(LogLevel at_least, const std::string& text) const {
    const std::lock_guard lock(mutex_);
    for (const LogLine& line : lines_) {
        if (line.level >= at_least && line.message.find(text) != std::string::npos) {
            return true;
        }
    }
    return false;
}

std::string TestHost::log_text() const {
    const std::lock_guard lock(mutex_);
    std::string out;
    for (const LogLine& line : lines_) {
        out += line.component + ": " + line.message + "\n";
    }
    return out;
}

std::vector<std::string> TestHost::thread_names() const {
    const std::lock_guard lock(mutex_);
    return threads_;
}

double TestHost::metric_value(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    double sum = 0;
    for (const auto& [key, series] : series_) {
        if (key.compare(0, name.size() + 1, name + "{") == 0) {
            sum += series->value();
        }
    }
    return sum;
}

}  // namespace tenon::testing
