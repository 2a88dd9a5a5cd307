#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what tests need, builds, and runs every test that this machine can run.
#   ./test.sh [ctest arguments]      e.g. ./test.sh -L unit
# TENON_SOAK_CONVERSATIONS=200 in the environment makes the soak of the engine (engine_soak_test) longer; 24 otherwise.
# TENON_ALL_SPLITS=1 cuts the prompt of dsv41_chunk_test at every length.
# TENON_CUDA=OFF in the environment leaves the CUDA plugin out, which takes longer to compile than all the rest.
set -euo pipefail
cd "$(dirname "$0")"
step() { echo "== $*"; }

step "packages"
packaging/packages.sh test
step "configure (build/release)"
mkdir -p build
cmake --preset release -DTENON_TESTS=ON ${TENON_CUDA:+-DTENON_CUDA=$TENON_CUDA} ${CI:+-DTENON_WERROR=ON} -DCMAKE_CXX_COMPILER_LAUNCHER=ccache
step "build"
cmake --build --preset release
step "test"
ctest --preset release --no-tests=error -j "$(cmake/cores.sh)" "$@"
