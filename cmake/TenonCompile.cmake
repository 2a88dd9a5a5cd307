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

# Code in which no time is spent: two thirds of the compile time of -O2.
set(TENON_LIGHT $<$<CONFIG:Release>:-O1>)

# Usage: tenon_unity(target [BATCH n]). Compiles the sources of a target n at a time, as one file that includes them: headers are
# read, and templates of them compiled, once for all. For tests and for code around the engine; sources with options of
# their own (SIMD kernels) stay alone. TENON_UNITY=OFF (all presets with checks) compiles each source by itself.
function(tenon_unity target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "BATCH" "")
  if(TENON_UNITY)
    if(NOT arg_BATCH)
      set(arg_BATCH 5)
    endif()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${arg_BATCH})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # what a file keeps to itself is "included" then
      target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
    endif()
  endif()
endfunction()
