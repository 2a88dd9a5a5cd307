// SPDX-License-Identifier: MIT
// Poco's TCP server with our own framing in front of the routes.
#include "server.h"

#include <Poco/Net/Context.h>
#include <Poco/Net/NetException.h>
#include <Poco/Net/SecureServerSocket.h>
#include <Poco/Net/ServerSocket.h>
#include <Poco/Net/TCPServer.h>
#include <Poco/Net/TCPServerConnection.h>
#include <Poco/Net/TCPServerConnectionFactory.h>
#include <Poco/ThreadPool.h>

#include <atomic>
#include <memory>

#include "routes.h"
#include "watch.h"

namespace tenon::http {
namespace {

class Server;

class Connection final : public Poco::Net::TCPServerConnection {
  public:
    Connection(const Poco::Net::StreamSocket& socket, Server& server)
        : TCPServerConnection(socket), server_(server) {}
    void run() override;

  private:
    void serve(Wire& wire, bool reserved);

    Server& server_;
};

class Factory final : public Poco::Net::TCPServerConnectionFactory {
  public:
    explicit Factory(Server& server) : server_(server) {}
    Poco::Net::TCPServerConnection* createConnection(
        const Poco::Net::StreamSocket& socket) override {
        return new Connection(socket, server_);
    }

  private:
    Server& server_;
};

class Server final : public Implements<Server, Frontend> {
  public:
    Server(Host& host, Engine& engine, Settings settings)
        : settings_(std::move(settings)),
          keys_(settings_.api_key_file),
          watch_(host),
          service_{host, engine, settings_, keys_} {}
    ~Server() { stop(); }

    Status start() noexcept override {
        return guard([&]() -> Status {
            TENON_TRY(keys_.load());
            const size_t colon = settings_.bind.rfind(':');
            Poco::Net::SocketAddress address;
            try {
                address = Poco::Net::SocketAddress(settings_.bind.substr(0, colon),
                                                   settings_.bind.substr(colon + 1));
            } catch (const Poco::Exception& e) {
                return error(Code::invalid_argument, "bind = \"{}\": {}", settings_.bind,
                             e.displayText());
            }
            try {
                listen(address);
            } catch (const Poco::Exception& e) {
                return error(Code::invalid_argument,
                             "bind = \"{}\": {}; is another server running there?", settings_.bind,
                             e.displayText());
            }
            const auto threads = static_cast<int>(settings_.max_connections + kReservedThreads);
            auto* params = new Poco::Net::TCPServerParams;
            params->setMaxThreads(threads);
            params->setMaxQueued(
                threads);  // Poco refuses by queue length, so the queue must hold them all
            params->setThreadIdleTime(Poco::Timespan(30, 0));
            pool_ = std::make_unique<Poco::ThreadPool>(2, threads, 30, kStackBytes);
            tcp_ = std::make_unique<Poco::Net::TCPServer>(new Factory(*this), *pool_, *socket_,
                                                          params);
            watch_.start();
            tcp_->start();
            const bool tls = !settings_.tls_cert.empty();
            url_ = format("{}://{}:{}", tls ? "https" : "http", settings_.bind.substr(0, colon),
                          socket_->address().port());
            return {};
        });
    }
    StrView url() noexcept override { return url_; }

    Status drain(int64_t deadline_us) noexcept override {
        return guard([&] {
            draining_.store(true);
            if (tcp_) {
                tcp_->stop();
            }
            watch_.close_all_idle();
            if (!watch_.wait_until_empty(deadline_us)) {
                watch_.close_all();
            }
        });
    }

    Service& service() { return service_; }
    ConnectionWatch& watch() { return watch_; }
    const Settings& settings() const { return settings_; }
    bool draining() const { return draining_.load(); }

  private:
    void listen(const Poco::Net::SocketAddress& address) {
        if (settings_.tls_cert.empty()) {
            socket_ = std::make_unique<Poco::Net::ServerSocket>();
        } else {
            Poco::Net::Context::Ptr context =
                new Poco::Net::Context(Poco::Net::Context::TLS_SERVER_USE, settings_.tls_key,
                                       settings_.tls_cert, "", Poco::Net::Context::VERIFY_NONE);
            context->disableProtocols(Poco::Net::Context::PROTO_TLSV1 |
                                      Poco::Net::Context::PROTO_TLSV1_1);
            socket_ = std::make_unique<Poco::Net::SecureServerSocket>(context);
        }
        socket_->bind(address, true, false);
        socket_->listen(kBacklog);
    }

    void stop() {
        draining_.store(true);
        if (tcp_) {
            tcp_->stop();
        }
        watch_.close_all();
        static_cast<void>(watch_.wait_until_empty(service_.host.now_us() + 5'000'000));
        tcp_.reset();
        if (pool_) {
            pool_->joinAll();
        }
        watch_.stop();
    }

    Settings settings_;
    Keys keys_;
    ConnectionWatch watch_;
    Service service_;
    std::unique_ptr<Poco::Net::ServerSocket> socket_;
    std::unique_ptr<Poco::ThreadPool> pool_;
    std::unique_ptr<Poco::Net::TCPServer> tcp_;
    std::string url_;
    std::atomic<bool> draining_{false};
};

void Connection::run() {
    Poco::Net::StreamSocket& s = socket();
    Deadline deadline(static_cast<int>(s.impl()->sockfd()));
    const int64_t live = server_.watch().add(&deadline);
    const Status status = guard([&] {
        s.setNoDelay(true);
        s.setSendBufferSize(kSendBufferBytes);
        Wire wire(s, deadline, server_.service().host, server_.settings().timing.write_stall_us);
        serve(wire, live > server_.settings().max_connections);
    });
    if (!status.ok()) {
        server_.service().host.log(LogLevel::debug, "openai", status.message());
    }
    server_.watch().remove(&deadline);
}

void Connection::serve(Wire& wire, bool reserved) {
    const Settings& settings = server_.settings();
    Host& host = server_.service().host;
    for (bool first = true; !server_.draining(); first = false) {
        if (!first && !wire.has_buffered()) {
            // Between requests: an idle connection may be closed at any time.
            wire.deadline().arm(host.now_us() + settings.keepalive_us);
            wire.deadline().set_idle(host.now_us());
            const ReadEnd end = wire.wait_for_bytes();
            if (!wire.deadline().leave_idle() || !wire.deadline().disarm() || end != ReadEnd::ok) {
                return;
            }
        }
        Request request;
        Answer answer(wire, request, settings);
        ApiError why;
        ReadState state = read_head(wire, settings, reserved, &request, &why);
        if (state == ReadState::request && reserved && !is_vital(request.path)) {
            state = ReadState::refused;
            why = unavailable("too_many_connections", "too many connections", 1);
        }
        if (state == ReadState::request) {
            state = read_body(wire, settings, &request, &why);
        }
        if (state == ReadState::ended) {
            return;
        }
        if (state == ReadState::refused) {
            answer.close_after();
            answer.error(why);
            wire.linger(settings.timing.linger_us);
            return;
        }
        if (reserved) {
            answer.close_after();
        }
        route(server_.service(), request, answer);
        if (!answer.keeps_alive()) {
            wire.linger(settings.timing.linger_us);
            return;
        }
    }
}

}  // namespace

Status make_frontend(Host& host, Engine& engine, Settings settings, Frontend** out) {
    *out = new Server(host, engine, std::move(settings));
    return {};
}

}  // namespace tenon::http
