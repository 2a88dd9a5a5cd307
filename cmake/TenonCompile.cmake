# SPDX-License-Identifier: MIT
# Compile settings of every target: language level, floating point, warnings, sanitizers.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# Usage: target_link_libraries(x PRIVATE tenon_compile). Goldens need equal bits on every machine, so
# no compiler may fuse a*b+c by itself; code that means a fused operation says fma.
add_library(tenon_compile INTERFACE)
target_compile_options(tenon_compile INTERFACE
    -ffp-contract=off -Wall -Wextra -Wpedantic -Wshadow -Wconversion
    # Both report std::string and std::variant internals of GCC 12 wrongly once functions are inlined.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-maybe-uninitialized>
    $<$<BOOL:${TENON_WERROR}>:-Werror>)
target_include_directories(tenon_compile INTERFACE ${PROJECT_SOURCE_DIR})

if(TENON_SANITIZE)
  add_compile_options(-fsanitize=${TENON_SANITIZE} -fno-omit-frame-pointer -g1)  # lines are enough for reports
  add_link_options(-fsanitize=${TENON_SANITIZE})
  if(TENON_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=all)
  endif()
endif()
