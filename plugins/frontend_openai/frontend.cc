// SPDX-License-Identifier: MIT
// Joins the listener and the API.
#include "frontend.h"

#include "api.h"
#include "server.h"

namespace tenon::http {

namespace {

class OpenAiFrontend final : public Implements<OpenAiFrontend, Frontend> {
  public:
    OpenAiFrontend(Host& host, Engine& engine, Settings settings)
        : server_(host, std::move(settings)), api_{server_.context(), engine} {
        Router& router = server_.context().router;
        add_generate_routes(router, api_);
        add_text_routes(router, api_);
        add_info_routes(router, api_);
    }
    ~OpenAiFrontend() = default;

    Status start() noexcept override {
        return guard([this] { return server_.start(); });
    }
    StrView url() noexcept override { return server_.url(); }
    Status drain(int64_t deadline_us) noexcept override {
        return guard([this, deadline_us] { server_.drain(deadline_us); });
    }

  private:
    Server server_;
    Api api_;
};

}  // namespace

Result<Ref<Frontend>> make_frontend(Host& host, Engine& engine, Settings settings) {
    return Ref<Frontend>(new OpenAiFrontend(host, engine, std::move(settings)));
}

}  // namespace tenon::http
