// SPDX-License-Identifier: MIT
// Reading, admitting, handling and answering of requests on one connection.
#include "connection.h"

#include <Poco/Exception.h>

#include <algorithm>
#include <exception>

namespace tenon::http {

namespace {

bool has_prefix_ignoring_case(std::string_view text, std::string_view prefix) {
    if (text.size() < prefix.size()) {
        return false;
    }
    for (size_t i = 0; i < prefix.size(); ++i) {
        const char c = text[i];
        if ((c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c) != prefix[i]) {
            return false;
        }
    }
    return true;
}

// The key as "Authorization: Bearer KEY" or "x-api-key: KEY"; empty if none was sent.
std::string_view given_key(const RequestHead& head) {
    std::string_view value = head.field("authorization");
    if (has_prefix_ignoring_case(value, "bearer ")) {
        value.remove_prefix(7);
        value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
        return value;
    }
    return head.field("x-api-key");
}

ApiError missing_key(bool was_given) {
    ApiError e =
        bad_message(was_given ? "the API key is not one of this server's"
                              : "an API key is needed: send 'Authorization: Bearer KEY' or "
                                "'x-api-key: KEY'",
                    401, "invalid_api_key");
    e.type = "authentication_error";
    return e;
}

ApiError unknown_route(const RequestHead& head, const std::string& allow) {
    if (allow.empty()) {
        return bad_message(format("no route {}", head.path.substr(0, 200)), 404, "not_found");
    }
    ApiError e =
        bad_message(format("{} does not take {}; allowed: {}", head.path, head.method, allow), 405,
                    "method_not_allowed");
    e.allow = allow;
    return e;
}

}  // namespace

Connection::Connection(const Poco::Net::StreamSocket& socket, ServerContext& context)
    : TCPServerConnection(socket), context_(context) {}

void Connection::run() {
    static thread_local bool is_registered = false;
    if (!is_registered) {
        is_registered = true;
        context_.host.register_thread("http");
    }
    Deadline deadline(socket().impl()->sockfd());
    const int64_t live = context_.watch.add(&deadline);
    context_.metrics.connection_opened();
    is_reserved_ = live > context_.settings.max_connections && !context_.watch.evict_idle();
    try {
        socket().setSendBufferSize(kSendBufferBytes);
        Wire wire(socket(), deadline, context_.host, context_.settings.timing.write_stall_us);
        serve_all(wire);
    } catch (const std::exception& e) {
        context_.host.log(LogLevel::warn, "http", format("connection ended: {}", e.what()));
    }
    context_.metrics.connection_closed();
    context_.watch.remove(&deadline);
}

void Connection::serve_all(Wire& wire) {
    bool is_first = true;
    while (serve_next(wire, is_first)) {
        is_first = false;
    }
}

bool Connection::serve_next(Wire& wire, bool is_first) {
    const Timing& timing = context_.settings.timing;
    const int64_t head_us = is_reserved_ ? timing.reserved_head_us : timing.head_us;
    const int64_t wait_us = is_first ? head_us : context_.settings.keepalive_us;
    const int64_t waiting_since_us = context_.host.now_us();
    // Before its first byte a request may be evicted. `is_draining` is read after the mark is set,
    // so that a drain either sees the mark or is seen here.
    wire.deadline().set_idle(waiting_since_us);
    const bool waits =
        !context_.is_draining.load() && wire.deadline().arm(waiting_since_us + wait_us);
    const ReadEnd waited = waits ? wire.wait_for_bytes() : ReadEnd::closed;
    if (!wire.deadline().leave_idle() || waited != ReadEnd::ok) {
        return false;
    }
    const int64_t started_us = context_.host.now_us();
    if (!wire.deadline().arm(started_us + head_us)) {
        return false;
    }
    RequestHead head;
    const HeadResult result = read_head(wire, &head);
    if (result.end == ReadEnd::closed) {
        return false;
    }
    const bool is_late = result.end == ReadEnd::expired || !wire.deadline().disarm();
    Exchange exchange(wire, head, context_.settings, context_.bodies);
    if (is_late) {
        refuse(wire, exchange,
               bad_message("the request's header came too slowly", 408, "request_timeout"));
    } else if (result.refusal) {
        refuse(wire, exchange, *result.refusal);
    } else {
        answer(wire, exchange, started_us);
    }
    return exchange.keeps_alive();
}

Refusal Connection::admit(Exchange& exchange, Router::Match& match) {
    const RequestHead& head = exchange.head();
    match = context_.router.find(head.method, head.path);
    const bool is_known = match.route != nullptr;
    const std::string_view key = given_key(head);
    exchange.set_trusted(!context_.keys.asks_for_key() ||
                         (!key.empty() && context_.keys.accepts(key)));
    if (context_.keys.asks_for_key() && exchange.is_trusted()) {
        exchange.set_caller_key(key);
    }
    exchange.set_rest(match.rest);
    if (!is_known) {
        return unknown_route(head, match.allow);
    }
    const Access access = match.route->access;
    const bool is_open =
        access == Access::open || (access == Access::metrics && context_.settings.metrics_open);
    if (!is_open && !exchange.is_trusted()) {
        return missing_key(!key.empty());
    }
    if (is_reserved_ && !match.route->under_overload) {
        return unavailable("overloaded",
                           format("more than {} connections are open (max_connections)",
                                  context_.settings.max_connections),
                           1);
    }
    if (context_.is_draining.load() && !match.route->under_overload) {
        return unavailable("draining", "the server is shutting down", 5);
    }
    return {};
}

Refusal Connection::take_body(Wire& wire, Exchange& exchange) {
    const RequestHead& head = exchange.head();
    if (head.content_length > context_.settings.max_body) {
        return bad_message(format("the body of {} bytes is larger than {} (max_body)",
                                  head.content_length, context_.settings.max_body),
                           413, "body_too_large");
    }
    if (head.expects_continue && head.has_body() && !wire.write("HTTP/1.1 100 Continue\r\n\r\n")) {
        return bad_message("the client is gone");
    }
    return exchange.take_body();
}

void Connection::handle(const Route& route, Exchange& exchange) {
    std::string what;
    try {
        route.handle(exchange);
        return;
    } catch (const Poco::Exception& e) {
        what = e.displayText();
    } catch (const std::exception& e) {
        what = e.what();
    }
    context_.host.log(LogLevel::error, "http", format("route={} failed: {}", route.name, what));
    exchange.close_after();
    if (exchange.status() == 0) {
        ApiError e;
        e.code = "internal";
        e.message = "the server failed on this request; its log says why";
        exchange.fail(e);
    }
}

void Connection::refuse(Wire& wire, Exchange& exchange, const ApiError& error) {
    // The body may be unread, so the next request has no certain start.
    exchange.close_after();
    wire.deadline().restart();
    exchange.fail(error);
    // A reserved thread is needed for the next health check.
    wire.linger(context_.settings.timing.linger_us / (is_reserved_ ? 10 : 1));
}

void Connection::answer(Wire& wire, Exchange& exchange, int64_t started_us) {
    const RequestHead& head = exchange.head();
    Router::Match match;
    const bool is_crowded = context_.watch.live() * 4 > context_.settings.max_connections * 3 + 3;
    if (is_reserved_ || is_crowded || context_.is_draining.load()) {
        exchange.close_after();
    }
    if (head.method == "OPTIONS" && !head.has_body()) {
        match = context_.router.find(head.method, head.path);
        if (match.allow.empty() && head.path != "*") {
            refuse(wire, exchange, unknown_route(head, match.allow));
        } else {
            exchange.reply_options(match.allow.empty() ? "GET, HEAD, POST, OPTIONS" : match.allow);
        }
    } else {
        Refusal refusal = admit(exchange, match);
        if (!refusal) {
            refusal = take_body(wire, exchange);
        }
        if (refusal && (head.has_body() || exchange.head().expects_continue)) {
            refuse(wire, exchange, *refusal);
        } else if (refusal) {
            exchange.fail(*refusal);
        } else {
            handle(*match.route, exchange);
        }
    }
    const double seconds = static_cast<double>(context_.host.now_us() - started_us) * 1e-6;
    const std::string_view name =
        match.route == nullptr ? std::string_view("none") : std::string_view(match.route->name);
    context_.metrics.answered(name, exchange.status(), seconds);
    if (context_.host.log_enabled(LogLevel::debug)) {
        context_.host.log(LogLevel::debug, "http",
                          format("{} {} status={} ms={} id={}", head.method, head.path,
                                 exchange.status(), seconds * 1e3, exchange.request_id()));
    }
}

}  // namespace tenon::http
