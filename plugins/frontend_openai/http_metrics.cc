// SPDX-License-Identifier: MIT
// Names, help and buckets of the front end's series.
#include "http_metrics.h"

#include <string>

namespace tenon::http {

namespace {

constexpr double kSeconds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                               2.5,   5,    10,    30,   60,  120,  300, 600};

MetricDesc describe(MetricKind kind, StrView name, StrView help) {
    MetricDesc desc;
    desc.kind = kind;
    desc.name = name;
    desc.help = help;
    if (kind == MetricKind::histogram) {
        desc.buckets = kSeconds;
    }
    return desc;
}

}  // namespace

HttpMetrics::HttpMetrics(Host& host)
    : host_(host),
      connections_(host.metric(
          describe(MetricKind::gauge, "http_connections", "Open connections of the front end"))) {}

void HttpMetrics::answered(std::string_view route, int status, double seconds) {
    const std::string labels = format("route={},status={}", route, status);
    MetricDesc count =
        describe(MetricKind::counter, "http_requests_total", "Answered HTTP requests");
    count.labels = labels;
    host_.metric(count)->add(1);
    const std::string route_label = format("route={}", route);
    MetricDesc time = describe(MetricKind::histogram, "http_request_seconds",
                               "From a request's first byte to the end of its answer");
    time.labels = route_label;
    host_.metric(time)->observe(seconds);
}

}  // namespace tenon::http
