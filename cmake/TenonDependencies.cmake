# SPDX-License-Identifier: MIT
# Finds what the host and the plugins need. A missing optional one drops exactly its plugin, with a line that says so.

find_package(PkgConfig QUIET)
find_package(Threads REQUIRED)

# tenon_optional_dependency(FOUND_VARIABLE "what is dropped without it")
function(tenon_report_missing what plugin)
  if(NOT TENON_PLUGINS STREQUAL "auto" AND plugin IN_LIST TENON_PLUGINS)
    message(FATAL_ERROR "plugin '${plugin}' was asked for, but ${what} is missing")
  endif()
  message(STATUS "plugin '${plugin}' is not built: ${what} is missing")
endfunction()

# Host.
if(TENON_HOST)
  if(NOT PkgConfig_FOUND)
    message(FATAL_ERROR "pkg-config is missing")
  endif()
  find_package(Boost 1.74 REQUIRED)
  find_package(tomlplusplus 3.3 REQUIRED)
  find_package(spdlog 1.10 REQUIRED)
  find_package(nlohmann_json 3.11 REQUIRED)
  find_package(CLI11 2.1 REQUIRED)
  find_package(prometheus-cpp CONFIG REQUIRED)  # its package has no version file
  find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto SSL)
  pkg_check_modules(XXH REQUIRED IMPORTED_TARGET libxxhash)

  # Plugins.
  find_package(Poco 1.11 QUIET COMPONENTS Foundation Net NetSSL Crypto)
  pkg_check_modules(PCRE2 QUIET IMPORTED_TARGET libpcre2-8)
  find_package(ICU 70 QUIET COMPONENTS uc)
  pkg_check_modules(URING QUIET IMPORTED_TARGET liburing>=2.3)
endif()
if(PkgConfig_FOUND)
  pkg_check_modules(HWY QUIET IMPORTED_TARGET libhwy)
endif()

# Tests.
if(TENON_GTEST_SOURCE)
  set(INSTALL_GTEST OFF CACHE INTERNAL "")
  set(BUILD_GMOCK OFF CACHE INTERNAL "")
  add_subdirectory(${TENON_GTEST_SOURCE} ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
  if(NOT TARGET GTest::gtest)
    add_library(GTest::gtest ALIAS gtest)
  endif()
elseif(TENON_TESTS OR TENON_FUZZ)
  find_package(GTest REQUIRED)
endif()
if(TENON_BENCH)
  find_package(benchmark 1.7 REQUIRED)
endif()
