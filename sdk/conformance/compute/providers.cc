// SPDX-License-Identifier: MIT
// The op suites run on each compute component of the plugin under test; the oracle is the first of
// the plugin named by --oracle.
#include "tenon/testing/op_fixture.h"
#include "tenon/testing/plugin_fixture.h"

namespace tenon::testing {

namespace {

TestHost& op_host() {
    static TestHost host;
    return host;
}

OpProvider provider_of(const Component& component, OptionSet options) {
    OpProvider provider;
    provider.name = test_name(component);
    provider.create = [&component, mine = options](Object** object) mutable -> Status {
        auto created = create_component(component, op_host(), mine);
        if (!created.ok()) {
            return created.take_status();
        }
        *object = (*created).detach();
        return {};
    };
    ProbeResult probe;
    const Status status =
        component.probe(ProbeEnv{sizeof(ProbeEnv), &op_host(), &options.view()}, &probe);
    if (!status.ok() || probe.score <= 0) {
        provider.unusable = status.ok() ? std::string(probe.reason) : status.message().str();
    }
    return provider;
}

}  // namespace

std::vector<OpProvider> op_providers() {
    std::vector<OpProvider> out;
    for (const Component* component : components_under_test(PluginKind::compute)) {
        out.push_back(provider_of(*component, OptionSet(*component)));
    }
    return out;
}

std::optional<OpProvider> op_oracle() {
    const LoadedPlugin* plugin = oracle_plugin();
    const Component* component = plugin == nullptr ? nullptr : plugin->find(PluginKind::compute);
    if (component == nullptr) {
        return std::nullopt;
    }
    OptionSet options(*component);
    for (const OptionSpec& spec : component->options) {
        if (StrView(spec.key) == StrView("simd")) {
            options.set("simd", "reference");  // the CPU's plain loops are the contract
        }
    }
    return provider_of(*component, options);
}

}  // namespace tenon::testing
