// SPDX-License-Identifier: MIT
// POST /v1/chat/completions and /v1/completions: from the request to the last byte of its reply.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "api.h"
#include "exchange.h"
#include "generate_request.h"
#include "reply_collector.h"
#include "stream_writer.h"

namespace tenon::http {

namespace {

constexpr size_t kSendAtBytes = 16 * 1024;

ApiError error_of(const SinkEvent& event, int32_t retry_after_s) {
    const Code code = event.code == Code::ok ? Code::internal : event.code;
    ApiError e = from_status(Status(code, event.text.view()), retry_after_s);
    if (!event.id.empty()) {
        e.code = event.id.str();  // the engine's own name of the cause: "memory", "peer_lost"
    }
    return e;
}

ApiError shutting_down() {
    return unavailable("shutdown", "the server is shutting down; the reply is cut", 5);
}

/// Waits for events of one reply and meanwhile watches its client and the server's end.
class ReplyPump {
  public:
    enum class Got { event, nothing, client_gone, shutdown };

    ReplyPump(Api& api, Exchange& exchange, ReplySink& sink)
        : api_(api), exchange_(exchange), sink_(sink) {
        last_poll_us_ = exchange.host().now_us();
    }

    /// Waits at most until the next look at the socket.
    Got next(SinkEvent* event) {
        const int64_t poll_us = api_.http.settings.timing.poll_us;
        const int64_t now = exchange_.host().now_us();
        if (now - last_poll_us_ >= poll_us) {
            last_poll_us_ = now;
            if (exchange_.client_gone()) {
                sink_.cancel(CancelReason::client_gone);
                exchange_.abandon();
                return Got::client_gone;
            }
            if (is_over(now)) {
                return Got::shutdown;
            }
        }
        if (!sink_.next(std::max<int64_t>(poll_us - (now - last_poll_us_), 1), event)) {
            return Got::nothing;
        }
        return Got::event;
    }

    /// An event that is there already.
    bool next_ready(SinkEvent* event) { return sink_.next(0, event); }

    /// After a piece that could not be sent.
    void drop_client() {
        sink_.cancel(exchange_.client_stalls() ? CancelReason::slow_client
                                               : CancelReason::client_gone);
        exchange_.abandon();
    }

  private:
    // At the drain's deadline the engine is asked to end the reply; its error event normally comes
    // within a step. If it does not, the reply ends here.
    bool is_over(int64_t now) {
        if (!api_.http.is_aborting.load()) {
            return false;
        }
        if (cancelled_us_ == 0) {
            cancelled_us_ = now;
            sink_.cancel(CancelReason::shutdown);
        }
        return now - cancelled_us_ > api_.http.settings.timing.shutdown_grace_us / 2;
    }

    Api& api_;
    Exchange& exchange_;
    ReplySink& sink_;
    int64_t last_poll_us_ = 0, cancelled_us_ = 0;
};

class StreamReply {
  public:
    StreamReply(Api& api, Exchange& exchange, const GenerateRequest& request, ReplySink& sink)
        : api_(api),
          exchange_(exchange),
          sink_(sink),
          pump_(api, exchange, sink),
          writer_(request, api.engine.text()) {}

    void run() {
        if (!exchange_.begin_stream("text/event-stream; charset=utf-8")) {
            return pump_.drop_client();
        }
        last_sent_us_ = exchange_.host().now_us();
        while (!is_done_ && !sink_.finished()) {
            if (!step()) {
                return;
            }
        }
        if (!is_done_) {
            writer_.add_end();
        }
        if (!send() || !exchange_.end_stream()) {
            exchange_.abandon();
        }
    }

  private:
    // False: nobody is left to write to.
    bool step() {
        SinkEvent event;
        switch (pump_.next(&event)) {
            case ReplyPump::Got::client_gone:
                return false;
            case ReplyPump::Got::shutdown:
                end_with(shutting_down());
                return true;
            case ReplyPump::Got::nothing:
                return keep_alive();
            case ReplyPump::Got::event:
                break;
        }
        take(event);
        // What a step of the engine produced goes out in one write.
        while (!is_done_ && writer_.held_bytes() < kSendAtBytes && pump_.next_ready(&event)) {
            take(event);
        }
        if (!is_done_) {
            writer_.flush();
        }
        if (!send()) {
            pump_.drop_client();
            return false;
        }
        return true;
    }

    void take(const SinkEvent& event) {
        if (event.kind == SinkEventKind::error) {
            end_with(error_of(event, api_.retry_after_s()));
        } else {
            writer_.take(event);
        }
    }

    void end_with(const ApiError& error) {
        writer_.add_error(error);
        is_done_ = true;
    }

    bool keep_alive() {
        if (exchange_.host().now_us() - last_sent_us_ < api_.http.settings.keepalive_us) {
            return true;
        }
        writer_.out() += ": keepalive\n\n";
        if (!send()) {
            pump_.drop_client();
            return false;
        }
        return true;
    }

    bool send() {
        if (writer_.out().empty()) {
            return true;
        }
        const bool ok = exchange_.send(writer_.out());
        writer_.out().clear();
        last_sent_us_ = exchange_.host().now_us();
        return ok;
    }

    Api& api_;
    Exchange& exchange_;
    ReplySink& sink_;
    ReplyPump pump_;
    StreamWriter writer_;
    int64_t last_sent_us_ = 0;
    bool is_done_ = false;
};

void reply_whole(Api& api, Exchange& exchange, const GenerateRequest& request, ReplySink& sink) {
    ReplyPump pump(api, exchange, sink);
    ReplyCollector collector(request, api.engine);
    while (!sink.finished()) {
        SinkEvent event;
        switch (pump.next(&event)) {
            case ReplyPump::Got::client_gone:
                return;
            case ReplyPump::Got::shutdown:
                return exchange.fail(shutting_down());
            case ReplyPump::Got::nothing:
                continue;
            case ReplyPump::Got::event:
                break;
        }
        if (event.kind == SinkEventKind::error) {
            return exchange.fail(error_of(event, api.retry_after_s()));
        }
        collector.take(event);
    }
    exchange.reply_json(collector.json());
}

enum class Kind { chat, text };

Refusal read_request(const Api& api, const Exchange& exchange, Kind kind, GenerateRequest* out) {
    if (Refusal refusal = check_ready(api)) {
        return refusal;
    }
    Json body;
    if (Refusal refusal = parse_object(exchange.body(), &body)) {
        return refusal;
    }
    return kind == Kind::chat ? read_chat_request(api, body, exchange.body(), out)
                              : read_completion_request(api, body, out);
}

void generate(Api& api, Exchange& exchange, Kind kind) {
    GenerateRequest request;
    request.caller_key = exchange.caller_key();
    if (Refusal refusal = read_request(api, exchange, kind, &request)) {
        return exchange.fail(*refusal);
    }
    exchange.release_body();
    Ref<ReplySink> sink;
    const Status status = api.engine.submit(request.desc, sink.out());
    if (!status.ok()) {
        return exchange.fail(from_status(status, api.retry_after_s()));
    }
    if (request.streams) {
        StreamReply(api, exchange, request, *sink).run();
    } else {
        reply_whole(api, exchange, request, *sink);
    }
}

}  // namespace

void add_generate_routes(Router& router, Api& api) {
    router.add({"POST", "/v1/chat/completions", "chat", Access::key, false,
                [&api](Exchange& x) { generate(api, x, Kind::chat); }});
    router.add({"POST", "/v1/completions", "completions", Access::key, false,
                [&api](Exchange& x) { generate(api, x, Kind::text); }});
}

}  // namespace tenon::http
