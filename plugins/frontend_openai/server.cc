// SPDX-License-Identifier: MIT
// Poco's acceptor and thread pool around our connections.
#include "server.h"

#include <Poco/Exception.h>
#include <Poco/Net/ServerSocket.h>
#include <Poco/Net/SocketAddress.h>
#include <Poco/Net/TCPServer.h>
#include <Poco/Net/TCPServerParams.h>
#include <Poco/ThreadPool.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#if TENON_HTTP_TLS
#include <Poco/Net/Context.h>
#include <Poco/Net/NetSSL.h>
#include <Poco/Net/SecureServerSocket.h>
#endif

#include "connection.h"

namespace tenon::http {

namespace {

constexpr int64_t kOtherDescriptors = 128;  // model files, rings, logs of the rest of the process

// An accept that finds no free descriptor would spin, so the limit is raised before it can happen.
void raise_descriptor_limit(Host& host, int64_t connections) {
    rlimit limit = {};
    const auto needed = static_cast<rlim_t>(connections + kReservedThreads + kOtherDescriptors);
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) {
        return;
    }
    const rlim_t had = limit.rlim_cur;
    limit.rlim_cur = std::min(needed, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < needed) {
        host.log(LogLevel::warn, "http",
                 format("open files are limited to {} but max_connections needs "
                        "{}; raise ulimit -n",
                        limit.rlim_max, needed));
        return;
    }
    host.log(LogLevel::debug, "http", format("open files limit raised from {} to {}", had, needed));
}

/// Why an address could not be had, without the class names that Poco's texts begin with.
std::string bind_refusal(const Poco::Exception& e) {
    switch (e.code()) {
        case EADDRINUSE:
            return "address already in use; is another server running there? choose another port "
                   "or stop it";
        case EADDRNOTAVAIL:
            return "no interface of this machine has that address";
        case EACCES:
            return "permission denied; ports below 1024 need a privilege, choose another";
        default:
            return e.code() > 0 ? std::generic_category().message(e.code()) : e.displayText();
    }
}

bool is_loopback(const Poco::Net::SocketAddress& address) {
    return address.host().isLoopback();
}

}  // namespace

struct Server::Listener {
    Listener(int threads, Poco::Net::ServerSocket accepting)
        : pool(2, threads, 30, kStackBytes), socket(std::move(accepting)) {}

    Poco::ThreadPool pool;
    Poco::Net::ServerSocket socket;
    std::unique_ptr<Poco::Net::TCPServer> tcp;
};

Server::Server(Host& host, Settings settings)
    : context_(std::make_unique<ServerContext>(host, std::move(settings))) {}

Server::~Server() {
    drain(0);
}

Status Server::start() {
    TENON_TRY(context_->keys.load());
    try {
        return listen();
    } catch (const Poco::Exception& e) {
        return error(Code::invalid_argument, "[[frontend]] bind = '{}': {}",
                     context_->settings.bind, bind_refusal(e));
    } catch (const std::system_error& e) {
        return error(Code::io,
                     "[[frontend]] bind = '{}': a thread could not be started: {}; raise the "
                     "limits on processes and memory (ulimit -u, -v)",
                     context_->settings.bind, e.code().message());
    }
}

Status Server::listen() {
    namespace net = Poco::Net;
    const Settings& settings = context_->settings;
    const net::SocketAddress address(settings.bind);
    net::ServerSocket socket;
    const bool is_tls = !settings.tls_cert.empty();
    if (is_tls) {
#if TENON_HTTP_TLS
        try {
            net::initializeSSL();
            net::Context::Ptr tls(new net::Context(net::Context::TLS_SERVER_USE, settings.tls_key,
                                                   settings.tls_cert, "",
                                                   net::Context::VERIFY_NONE));
            tls->disableProtocols(net::Context::PROTO_SSLV3 | net::Context::PROTO_TLSV1 |
                                  net::Context::PROTO_TLSV1_1);
            socket = net::SecureServerSocket(tls);
        } catch (const Poco::Exception& e) {
            return error(Code::invalid_argument, "[[frontend]] tls_cert = '{}', tls_key = '{}': {}",
                         settings.tls_cert, settings.tls_key, e.message());
        }
#else
        return error(Code::unsupported,
                     "[[frontend]] tls_cert: this build has no "
                     "TLS (Poco's NetSSL was missing)");
#endif
    }
    // Without SO_REUSEPORT: two servers on one port would share the clients at random.
    socket.bind(address, true, false);
    socket.listen(kBacklog);
    raise_descriptor_limit(context_->host, settings.max_connections);
    const int threads = static_cast<int>(settings.max_connections + kReservedThreads);
    listener_ = std::make_unique<Listener>(threads, socket);
    net::TCPServerParams::Ptr params(new net::TCPServerParams);
    params->setMaxThreads(threads);
    // Poco refuses by queue length, not by threads: a burst must find room in the queue.
    params->setMaxQueued(threads);
    // How long an idle dispatcher thread takes to see the end.
    params->setThreadIdleTime(Poco::Timespan(0, 250'000));
    context_->watch.start();
    listener_->tcp = std::make_unique<net::TCPServer>(new ConnectionFactory(*context_),
                                                      listener_->pool, listener_->socket, params);
    listener_->tcp->start();
    const net::SocketAddress bound = listener_->socket.address();
    url_ = format("{}://{}", is_tls ? "https" : "http", bound.toString());
    context_->host.log(
        LogLevel::info, "http",
        format("listening url={} max_connections={} keys={}", url_, settings.max_connections,
               settings.api_key_file.empty() ? "none" : "file"));
    if (settings.api_key_file.empty() && !is_loopback(bound)) {
        context_->host.log(LogLevel::warn, "http",
                           format("{} is reachable from other machines without a key; set "
                                  "api_key_file",
                                  settings.bind));
    }
    return {};
}

void Server::drain(int64_t deadline_us) {
    if (listener_ == nullptr) {
        return;
    }
    ServerContext& c = *context_;
    c.is_draining.store(true);
    // Wakes the acceptor, which would else sleep out its 250 ms.
    ::shutdown(listener_->socket.impl()->sockfd(), SHUT_RDWR);
    listener_->tcp->stop();
    listener_->socket.close();
    c.watch.close_all_idle();
    if (!c.watch.wait_until_empty(deadline_us)) {
        c.is_aborting.store(true);
        if (!c.watch.wait_until_empty(c.host.now_us() + c.settings.timing.shutdown_grace_us)) {
            c.watch.close_all();
            c.watch.wait_until_empty(c.host.now_us() + 5'000'000);
        }
    }
    // Poco counts a reference for each thread that it asks of the pool, given back when that thread
    // has run: a pool that ends before would leave the dispatcher behind.
    for (int i = 0; i < 400 && listener_->tcp->currentThreads() > 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    listener_.reset();  // joins the pool's threads
    c.watch.stop();
}

}  // namespace tenon::http
