// SPDX-License-Identifier: MIT
// Matching of methods and paths.
#include "router.h"

namespace tenon::http {

namespace {

bool matches(std::string_view pattern, std::string_view path, std::string_view* rest) {
    if (pattern.size() < 2 || pattern.substr(pattern.size() - 2) != "/*") {
        return pattern == path;
    }
    const std::string_view stem = pattern.substr(0, pattern.size() - 1);
    if (path.size() <= stem.size() || path.substr(0, stem.size()) != stem) {
        return false;
    }
    *rest = path.substr(stem.size());
    return true;
}

}  // namespace

Router::Match Router::find(std::string_view method, std::string_view path) const {
    if (path.size() > 1 && path.back() == '/') {
        path.remove_suffix(1);
    }
    Match match;
    for (const Route& route : routes_) {
        std::string_view rest;
        if (!matches(route.path, path, &rest)) {
            continue;
        }
        if (route.method == method || (method == "HEAD" && route.method == "GET")) {
            match.route = &route;
            match.rest = rest;
            return match;
        }
        match.allow += match.allow.empty() ? "" : ", ";
        match.allow += route.method == "GET" ? "GET, HEAD" : route.method;
    }
    if (!match.allow.empty()) {
        match.allow += ", OPTIONS";
    }
    return match;
}

}  // namespace tenon::http
