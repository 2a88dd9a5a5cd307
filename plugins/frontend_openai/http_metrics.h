// SPDX-License-Identifier: MIT
// Series of the HTTP layer; the engine counts tokens, latencies and vanished clients.
#pragma once

#include <string_view>

#include "tenon/host.h"

namespace tenon::http {

/// Thread: any.
class HttpMetrics {
  public:
    explicit HttpMetrics(Host& host);

    void answered(std::string_view route, int status, double seconds);
    void connection_opened() { connections_->add(1); }
    void connection_closed() { connections_->add(-1); }

  private:
    Host& host_;
    Metric* connections_;
};

}  // namespace tenon::http
