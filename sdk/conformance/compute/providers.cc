// SPDX-License-Identifier: MIT
// The op suites run on each compute component of the plugin under test.
#include "tenon/testing/op_fixture.h"
#include "tenon/testing/plugin_fixture.h"

namespace tenon::testing {

std::vector<OpProvider> op_providers() {
    static TestHost host;
    std::vector<OpProvider> out;
    for (const Component* component : components_under_test(PluginKind::compute)) {
        out.push_back({component->name, [component](Object** object) -> Status {
                           OptionSet options(*component);
                           auto created = create_component(*component, host, options);
                           if (!created.ok()) {
                               return created.take_status();
                           }
                           *object = (*created).detach();
                           return {};
                       }});
    }
    return out;
}

}  // namespace tenon::testing
