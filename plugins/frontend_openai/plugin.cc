// SPDX-License-Identifier: MIT
// Descriptor of the front end `openai`.
#include "tenon/plugin.h"
#include "server.h"

namespace tenon::http {
namespace {

Status probe(const ProbeEnv&, ProbeResult* out) noexcept {
    out->score = 100;
    set_text(out->reason, "OpenAI API over HTTP/1.1");
    return {};
}

Status create(Host& host, const Options& options, Object** out) noexcept {
    return guard([&]() -> Status {
        TENON_ASSIGN(Settings settings, read_settings(options));
        auto* engine = static_cast<Engine*>(nullptr);
        if (Object* service = host.service(Engine::kFacet)) {
            engine = facet_of<Engine>(service);
        }
        if (engine == nullptr) {
            return error(Code::unavailable, "{}: the host offers no engine", options.section);
        }
        Frontend* frontend = nullptr;
        TENON_TRY(make_frontend(host, *engine, std::move(settings), &frontend));
        *out = frontend;
        return {};
    });
}

const Need kNeeds[] = {{"engine.engine/1"}};

const Component* components() {
    static const Component kComponents[] = {{sizeof(Component), PluginKind::frontend, "openai",
                                             "OpenAI API: models, chat and text completions",
                                             option_specs(), kNeeds, &probe, &create}};
    return kComponents;
}

}  // namespace
}  // namespace tenon::http

TENON_PLUGIN("openai", "0.1.0", "OpenAI-compatible HTTP front end", "MIT", stable,
             tenon::Span<const tenon::Component>(tenon::http::components(), 1))
