// SPDX-License-Identifier: MIT
// The life of one connection: requests one after the other until someone has enough.
#pragma once

#include <Poco/Net/TCPServerConnection.h>
#include <Poco/Net/TCPServerConnectionFactory.h>

#include "exchange.h"
#include "server.h"

namespace tenon::http {

/// Thread: one of the pool's, for the whole life of the connection.
class Connection final : public Poco::Net::TCPServerConnection {
  public:
    Connection(const Poco::Net::StreamSocket& socket, ServerContext& context);
    void run() override;

  private:
    void serve_all(Wire& wire);
    /// False: the connection ends.
    bool serve_next(Wire& wire, bool is_first);
    void answer(Wire& wire, Exchange& exchange, int64_t started_us);
    /// Checks that need no body; the route that is to handle the request.
    Refusal admit(Exchange& exchange, Router::Match& match);
    Refusal take_body(Wire& wire, Exchange& exchange);
    void handle(const Route& route, Exchange& exchange);
    void refuse(Wire& wire, Exchange& exchange, const ApiError& error);

    ServerContext& context_;
    bool is_reserved_ = false;  ///< beyond max_connections
};

class ConnectionFactory final : public Poco::Net::TCPServerConnectionFactory {
  public:
    explicit ConnectionFactory(ServerContext& context) : context_(context) {}
    Poco::Net::TCPServerConnection* createConnection(
        const Poco::Net::StreamSocket& socket) override {
        return new Connection(socket, context_);
    }

  private:
    ServerContext& context_;
};

}  // namespace tenon::http
