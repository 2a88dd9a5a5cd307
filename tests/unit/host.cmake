# SPDX-License-Identifier: MIT
tenon_add_test(test_host
    SOURCES unit/host_profile_test.cc unit/host_checkpoint_test.cc unit/host_registry_test.cc unit/host_units_test.cc
    LINK tenon_host nlohmann_json::nlohmann_json)
get_property(plugin_targets GLOBAL PROPERTY TENON_PLUGIN_TARGETS)
add_dependencies(test_host ${plugin_targets})
target_compile_definitions(test_host PRIVATE TENON_PROFILES="${PROJECT_SOURCE_DIR}/profiles")
