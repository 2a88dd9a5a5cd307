// SPDX-License-Identifier: MIT
// Metric registration and the Prometheus text.
#include <gtest/gtest.h>

#include "host/services/host_services.h"

namespace tenon {
namespace {

MetricDesc desc(MetricKind kind, const char* name, const char* labels = "") {
    MetricDesc d;
    d.kind = kind;
    d.name = name;
    d.help = "what it counts";
    d.labels = labels;
    return d;
}

std::string text_of(HostServices& host) {
    std::string text;
    host.metrics_text(
        [](void* arg, StrView piece) noexcept {
            static_cast<std::string*>(arg)->append(piece.view());
        },
        &text);
    return text;
}

TEST(Metrics, Series_are_told_apart_by_labels_and_shared_by_name) {
    HostServices host;
    host.metric(desc(MetricKind::counter, "requests_total", "outcome=ok"))->add(2);
    host.metric(desc(MetricKind::counter, "requests_total", "outcome=failed"))->add(1);
    host.metric(desc(MetricKind::counter, "requests_total", "outcome=ok"))->add(3);

    const std::string text = text_of(host);
    EXPECT_NE(text.find("# HELP tenon_requests_total what it counts"), std::string::npos) << text;
    EXPECT_NE(text.find("tenon_requests_total{outcome=\"ok\"} 5"), std::string::npos) << text;
    EXPECT_NE(text.find("tenon_requests_total{outcome=\"failed\"} 1"), std::string::npos);
}

TEST(Metrics, Gauges_and_histograms_are_exported) {
    HostServices host;
    Metric* gauge = host.metric(desc(MetricKind::gauge, "slots_running"));
    gauge->set(4);
    gauge->add(-1);
    MetricDesc h = desc(MetricKind::histogram, "step_seconds");
    const double buckets[] = {0.1, 1.0};
    h.buckets = Span<const double>(buckets);
    Metric* histogram = host.metric(h);
    histogram->observe(0.05);
    histogram->observe(5);

    const std::string text = text_of(host);
    EXPECT_NE(text.find("tenon_slots_running 3"), std::string::npos) << text;
    EXPECT_NE(text.find("tenon_step_seconds_bucket{le=\"0.1\"} 1"), std::string::npos) << text;
    EXPECT_NE(text.find("tenon_step_seconds_count 2"), std::string::npos);
}

TEST(Metrics, Mistakes_count_nowhere_and_never_crash) {
    HostServices host;
    host.metric(desc(MetricKind::counter, "x_total"))->add(-5);  // a counter cannot fall
    EXPECT_NE(text_of(host).find("tenon_x_total 0"), std::string::npos) << text_of(host);

    host.metric(desc(MetricKind::gauge, "x_total"))->set(7);  // another kind of the same name
    host.metric(desc(MetricKind::counter, "Bad Name"))->add(1);
    host.metric(desc(MetricKind::counter, ""))->add(1);
    host.metric(desc(MetricKind::counter, "y_total", "1bad=x,=,no_value,good=1"))->add(1);

    const std::string text = text_of(host);
    EXPECT_EQ(text.find("Bad"), std::string::npos);
    EXPECT_EQ(text.find("tenon_x_total 7"), std::string::npos);
    EXPECT_NE(text.find("tenon_y_total{good=\"1\"} 1"), std::string::npos) << text;
}

TEST(HostServices, Services_are_found_until_they_are_withdrawn) {
    class Thing final : public Implements<Thing, Metric> {
      public:
        void add(double) noexcept override {}
        void set(double) noexcept override {}
        void observe(double) noexcept override {}
        void release() noexcept override {}
    };
    HostServices host;
    Thing thing;
    EXPECT_EQ(host.service("thing/1"), nullptr);
    host.publish("thing/1", &thing);
    EXPECT_EQ(host.service("thing/1"), &thing);
    host.publish("thing/1", nullptr);
    EXPECT_EQ(host.service("thing/1"), nullptr);
    EXPECT_FALSE(host.stopping());
    host.begin_stopping();
    EXPECT_TRUE(host.stopping());
    const int64_t before = host.now_us();
    EXPECT_GE(host.now_us(), before);
}

}  // namespace
}  // namespace tenon
