# SPDX-License-Identifier: MIT
# Enables CUDA where a toolkit is installed; include() it, since enable_language needs file scope.
#   TENON_CUDA_FOUND    the compiler and the runtime are there
#   TENON_CUDA_MISSING  else: what is missing, for the line that reports a dropped plugin
include(CheckLanguage)
set(TENON_CUDA_FOUND FALSE)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "90a;121")  # before enable_language
endif()
if(NOT TENON_CUDA)
  set(TENON_CUDA_MISSING "TENON_CUDA=ON (it is off)")
  return()
endif()
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  set(TENON_CUDA_MISSING "nvcc")
  return()
endif()
if(CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)90(-|;|$)")
  # Launchers take code of 9.0 for code with wgmma.
  message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES=${CMAKE_CUDA_ARCHITECTURES}: write 90a for Hopper, not 90")
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  set(TENON_CUDA_MISSING "CUDA 13.0 (${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION})")
  return()
endif()
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know C++20 for nvcc
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
find_package(CUDAToolkit 13.0 QUIET)
if(NOT TARGET CUDA::cudart_static)
  set(TENON_CUDA_MISSING "the static CUDA runtime of ${CMAKE_CUDA_COMPILER}")
  return()
endif()
set(TENON_CUDA_FOUND TRUE)

# nvcc's 2810 sees a discarded value in every assignment to a [[nodiscard]] type.
# Usage: target_link_libraries(x PRIVATE tenon_cuda_compile). IEEE arithmetic: no contraction, no flush to zero, true
# division and square root, so that class X ops have the bits of the CPU; code that means a fused operation says fma.
add_library(tenon_cuda_compile INTERFACE)
target_compile_options(tenon_cuda_compile INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false --ftz=false --prec-div=true --prec-sqrt=true
      --expt-relaxed-constexpr --extended-lambda -diag-suppress=2810
      -Xcompiler=-ffp-contract=off,-Wall,-Wextra
      $<$<BOOL:${TENON_WERROR}>:-Werror=all-warnings>>)
