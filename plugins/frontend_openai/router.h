// SPDX-License-Identifier: MIT
// Which handler answers a method and path. Knows no API: each front end adds its own routes.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tenon::http {

class Exchange;

/// What a route asks of a client before its handler runs.
enum class Access {
    open,
    key,      ///< an API key, if keys are set
    metrics,  ///< as `key`, unless metrics_open
};

struct Route {
    std::string method;  ///< GET also answers HEAD
    std::string path;    ///< "/v1/models", or "/v1/models/*": the rest is Exchange::rest()
    std::string name;    ///< label of metrics: "chat"
    Access access = Access::key;
    bool under_overload = false;  ///< answered on a reserved thread beyond max_connections
    std::function<void(Exchange&)> handle;
};

/// Filled before the listener starts, constant afterwards.
class Router {
  public:
    void add(Route route) { routes_.push_back(std::move(route)); }

    struct Match {
        const Route* route = nullptr;  ///< null: see `allow`
        std::string_view rest;         ///< what "*" stands for
        std::string allow;             ///< methods of that path; empty: no such path
    };
    /// Views live as long as `path`.
    Match find(std::string_view method, std::string_view path) const;

  private:
    std::vector<Route> routes_;
};

}  // namespace tenon::http
