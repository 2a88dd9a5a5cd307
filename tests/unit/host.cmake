# SPDX-License-Identifier: MIT
# Host: registry, profile, checkpoint, log, metrics, lifecycle pieces; real small plugins as fakes.

# tenon_add_fake(name SOURCE file DEFINES …): a plugin in tests/fakes of the build tree, not installed.
function(tenon_add_fake name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_MAP" "SOURCE" "DEFINES")
  add_library(${name} MODULE ${arg_SOURCE})
  target_link_libraries(${name} PRIVATE tenon_compile tenon::sdk)
  target_compile_definitions(${name} PRIVATE ${arg_DEFINES})
  set_target_properties(${name} PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden
      VISIBILITY_INLINES_HIDDEN ON LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/fakes/${name})
  if(NOT arg_NO_MAP)
    target_link_options(${name} PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/plugin.map)
  endif()
endfunction()

set(fake_source ${CMAKE_CURRENT_SOURCE_DIR}/fakes/fake_plugin.cc)
tenon_add_fake(fake SOURCE ${fake_source})
tenon_add_fake(fake_trial SOURCE ${fake_source} DEFINES FAKE_PREFIX="trial" FAKE_MATURITY=experimental)
tenon_add_fake(fake_two SOURCE ${fake_source} DEFINES FAKE_PREFIX="two" FAKE_SECOND_EXPORT NO_MAP)
tenon_add_fake(fake_model SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/fakes/fake_model.cc)
tenon_add_fake(fake_none SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/fakes/no_entry.cc)
set(fakes fake fake_model fake_trial fake_two fake_none)

# The other compiler's plugin must load too (architecture.md 2.1). Sanitizers of two compilers do not mix.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  find_program(TENON_OTHER_CXX NAMES clang++-14 clang++ DOC "Second compiler, for the plugin ABI test")
else()
  find_program(TENON_OTHER_CXX NAMES g++-12 g++ DOC "Second compiler, for the plugin ABI test")
endif()
set(other_library ${CMAKE_BINARY_DIR}/tests/fakes/fake_other/fake_other.so)
if(TENON_OTHER_CXX AND NOT TENON_SANITIZE)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/tests/fakes/fake_other)
  add_custom_command(OUTPUT ${other_library}
      COMMAND ${TENON_OTHER_CXX} -std=c++20 -O1 -fPIC -shared -fvisibility=hidden -ffp-contract=off
              -I${PROJECT_SOURCE_DIR}/sdk/include -I${CMAKE_BINARY_DIR}/sdk/include
              -DFAKE_PREFIX="other" ${fake_source} -o ${other_library}
              -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/plugin.map -Wl,-z,now -Wl,-z,nodelete
      DEPENDS ${fake_source} ${PROJECT_SOURCE_DIR}/cmake/plugin.map
              ${CMAKE_BINARY_DIR}/sdk/include/tenon/fingerprint.h
      VERBATIM)
  add_custom_target(fake_other DEPENDS ${other_library})
  list(APPEND fakes fake_other)
  set(other_built ON)
endif()

get_property(plugin_targets GLOBAL PROPERTY TENON_PLUGIN_TARGETS)
tenon_add_test(test_host PLAIN
    SOURCES unit/host_checkpoint_test.cc unit/host_http_client_test.cc unit/host_lifecycle_test.cc
            unit/host_log_test.cc unit/host_memory_test.cc unit/host_metrics_test.cc unit/host_profile_test.cc
            unit/host_registry_test.cc unit/host_synthetic_test.cc unit/host_units_test.cc
            ${PROJECT_SOURCE_DIR}/host/cli/http_client.cc
    LINK tenon_host tenon::testing nlohmann_json::nlohmann_json)
add_dependencies(test_host ${fakes} ${plugin_targets})
target_compile_definitions(test_host PRIVATE
    TENON_PROFILES="${PROJECT_SOURCE_DIR}/profiles"
    TENON_FAKES="${CMAKE_BINARY_DIR}/tests/fakes"
    $<$<BOOL:${other_built}>:TENON_OTHER_CXX="${TENON_OTHER_CXX}">)
