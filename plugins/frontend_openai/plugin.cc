// SPDX-License-Identifier: MIT
// Descriptor of the front end `openai`.
#include "tenon/plugin.h"

#include "auth.h"
#include "frontend.h"

namespace tenon::http {

namespace {

Status probe(const ProbeEnv& env, ProbeResult* out) noexcept {
    return guard([&]() -> Status {
        // Read again at the start; a mistake in it is told before the model is loaded.
        TENON_ASSIGN(const Settings settings, read_settings(*env.options));
        TENON_TRY(KeyStore(*env.host, settings.api_key_file).load());
        out->score = 100;
        set_text(out->reason, "OpenAI API over HTTP/1.1");
        return {};
    });
}

Status create(Host& host, const Options& options, Object** out) noexcept {
    return guard([&]() -> Status {
        TENON_ASSIGN(Settings settings, read_settings(options));
        auto* engine = facet_of<Engine>(host.service(Engine::kFacet));
        if (engine == nullptr) {
            return error(Code::unavailable, "{}: the host offers no '{}'", options.section,
                         Engine::kFacet);
        }
        TENON_ASSIGN(Ref<Frontend> frontend, make_frontend(host, *engine, std::move(settings)));
        *out = frontend.detach();
        return {};
    });
}

const Need kNeeds[] = {{Engine::kFacet}};

Span<const Component> components() {
    static const Component kComponents[] = {{sizeof(Component), PluginKind::frontend, "openai",
                                             "OpenAI API: models, chat and text completions",
                                             option_specs(), kNeeds, &probe, &create}};
    return kComponents;
}

}  // namespace

}  // namespace tenon::http

TENON_PLUGIN("openai", "0.1.0", "OpenAI-compatible HTTP front end", "MIT", stable,
             tenon::http::components())
