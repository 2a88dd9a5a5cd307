# SPDX-License-Identifier: MIT
# Functions for plugin authors, in this tree and from the installed TenonSdk package.
#
#   tenon_add_plugin(rowcache KIND storage SOURCES rowcache.cc [LINK lib…])
#       A plugin `rowcache.so` with hidden symbols, one export, immediate binding, never unloaded.
#   tenon_test_plugin(rowcache [OPTIONS key=value…])
#       Registers the conformance suites of the plugin's kinds as a CTest test (label conformance).

set(TENON_PLUGIN_CMAKE_DIR ${CMAKE_CURRENT_LIST_DIR})

function(tenon_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "KIND" "SOURCES;LINK")
  if(NOT arg_KIND OR NOT arg_SOURCES)
    message(FATAL_ERROR "tenon_add_plugin(${name}): KIND and SOURCES are required")
  endif()
  if(DEFINED TENON_PLUGINS AND NOT TENON_PLUGINS STREQUAL "auto" AND NOT name IN_LIST TENON_PLUGINS)
    return()
  endif()
  if(TENON_STATIC_PLUGINS)
    add_library(${name} OBJECT ${arg_SOURCES})
    target_compile_definitions(${name} PRIVATE TENON_STATIC_PLUGIN=${name})
    set_property(GLOBAL APPEND PROPERTY TENON_STATIC_PLUGIN_NAMES ${name})
  else()
    add_library(${name} MODULE ${arg_SOURCES})
    set_target_properties(${name} PROPERTIES
        PREFIX ""
        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/plugins
        LINK_DEPENDS ${TENON_PLUGIN_CMAKE_DIR}/plugin.map)
    target_link_options(${name} PRIVATE
        -Wl,--version-script=${TENON_PLUGIN_CMAKE_DIR}/plugin.map
        -Wl,-z,now -Wl,-z,relro -Wl,-z,nodelete)
    # Clang keeps its sanitizer runtime in the executable, so plugins have undefined symbols then.
    if(NOT (TENON_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang"))
      target_link_options(${name} PRIVATE -Wl,--no-undefined)
    endif()
    include(GNUInstallDirs)
    install(TARGETS ${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/tenon/plugins COMPONENT ${name})
  endif()
  set_target_properties(${name} PROPERTIES
      POSITION_INDEPENDENT_CODE ON
      CXX_VISIBILITY_PRESET hidden
      VISIBILITY_INLINES_HIDDEN ON
      TENON_KIND ${arg_KIND})
  target_link_libraries(${name} PRIVATE tenon::sdk ${arg_LINK})
  if(TARGET tenon_compile)
    target_link_libraries(${name} PRIVATE tenon_compile)
  else()
    target_compile_options(${name} PRIVATE -ffp-contract=off)
  endif()
  set_property(GLOBAL APPEND PROPERTY TENON_PLUGIN_TARGETS ${name})
endfunction()

function(tenon_test_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "OPTIONS")
  if(NOT TARGET tenon::conformance AND NOT DEFINED TENON_TESTS)
    message(STATUS "no tests for ${name}: this SDK was installed without tenon-conformance (build Tenon with TENON_TESTS=ON)")
  endif()
  if(TENON_STATIC_PLUGINS OR NOT TARGET ${name} OR NOT TARGET tenon::conformance)
    return()
  endif()
  set(options)
  foreach(option IN LISTS arg_OPTIONS)
    list(APPEND options --set ${option})
  endforeach()
  add_test(NAME conformance.${name}
      COMMAND tenon::conformance --plugin $<TARGET_FILE:${name}> ${options})
  set_tests_properties(conformance.${name} PROPERTIES LABELS conformance TIMEOUT 900)
endfunction()
