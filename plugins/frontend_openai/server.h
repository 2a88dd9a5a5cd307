// SPDX-License-Identifier: MIT
// The listener: address, TLS, threads, limits, and the orderly end.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "auth.h"
#include "framing.h"
#include "http_metrics.h"
#include "router.h"
#include "settings.h"
#include "watch.h"

namespace tenon::http {

/// What every connection works with. Constant while the listener runs, or thread-safe.
struct ServerContext {
    ServerContext(Host& h, Settings s)
        : host(h),
          settings(std::move(s)),
          keys(h, settings.api_key_file),
          watch(h),
          bodies(kBodiesInMemory * settings.max_body),
          metrics(h) {}

    Host& host;
    const Settings settings;
    Router router;
    KeyStore keys;
    ConnectionWatch watch;
    BodyBudget bodies;
    HttpMetrics metrics;
    std::atomic<bool> is_draining{
        false};  ///< no new requests; connections close after their answer
    std::atomic<bool> is_aborting{false};  ///< replies end now, with an error event
};

/// One thread per connection out of a pool of max_connections + kReservedThreads. The reserved ones
/// serve what comes beyond max_connections: /health and /metrics are answered, the rest gets 503.
/// An idle connection gives way before that happens.
///
/// Thread: main, except where a member says otherwise.
class Server {
  public:
    Server(Host& host, Settings settings);
    ~Server();

    ServerContext& context() { return *context_; }
    /// Reads keys and certificate, binds and listens.
    /// errors  invalid_argument: address in use or not usable; key file or TLS files not usable
    Status start();
    /// "http://127.0.0.1:8888" after `start`.
    const std::string& url() const { return url_; }
    /// Closes the listener, waits for running answers until `deadline_us` of the host's clock, ends
    /// the rest with an error event, closes everything. Harmless when repeated.
    void drain(int64_t deadline_us);

  private:
    struct Listener;
    Status listen();

    std::unique_ptr<ServerContext> context_;
    std::unique_ptr<Listener> listener_;
    std::string url_;
};

}  // namespace tenon::http
