#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds SDK, conformance suites and compute plugins on a machine with a GPU and runs the whole suite of the plugin `cuda`,
# with the CPU plugin as oracle; then, with --sanitize, the op suites under compute-sanitizer.
#   tests/tools/gpu_suite.sh [--build FOLDER] [--gtest-source FOLDER] [--filter GTEST_FILTER] [--sanitize] [--no-build]
# It needs CUDA, CMake, ninja, a C++20 compiler and GoogleTest: a package, or sources named by --gtest-source.
set -uo pipefail
cd "$(dirname "$0")/../.."
build=build/cuda-90a gtest= filter='*' sanitize= no_build=
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2; shift ;;
    --gtest-source) gtest=$2; shift ;;
    --filter) filter=$2; shift ;;
    --sanitize) sanitize=1 ;;
    --no-build) no_build=1 ;;
    *) echo "$0: unknown argument $1" >&2; exit 2 ;;
    esac
    shift
done
echo "### machine"
nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,compute_cap --format=csv,noheader || exit 1
nvidia-smi | grep -o 'CUDA Version: [0-9.]*'
nvcc --version | tail -n 2
if [ -z "$no_build" ]; then
    echo "### build"
    began=$SECONDS
    cmake --preset cuda-90a -B "$build" -DTENON_PLUGINS="cpu;cuda;exl3" ${gtest:+-DTENON_GTEST_SOURCE="$gtest"} > "$build.log" 2>&1 ||
        { cat "$build.log"; exit 1; }
    cmake --build "$build" --target cpu cuda exl3 tenon_conformance -j "$(cmake/cores.sh)" -- -k 0 > "$build.log" 2>&1 ||
        { grep -A 6 -m 40 'error\|FAILED' "$build.log"; exit 1; }
    echo "built in $((SECONDS - began)) s"
fi
program=("$build/sdk/conformance/tenon-conformance" --plugin "$build/plugins/cuda.so" --oracle "$build/plugins/cpu.so")
echo "### suite"
"${program[@]}" --gtest_filter="$filter" --gtest_brief=1
rc=$?
if [ "$filter" = '*' ]; then
    echo "### with clusters of eight, as on a GPU or a slice of one with room for no more"
    "${program[@]}" --set clusters=8 --gtest_filter='*Attention*:*Sampl*:*nvariance*' --gtest_brief=1 || rc=1
fi
if [ -n "$sanitize" ]; then
    for tool in memcheck racecheck synccheck; do
        echo "### compute-sanitizer $tool"
        # The invariance suites repeat the same kernels hundreds of times; once each is enough here.
        timeout 240 compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 5 "${program[@]}" --gtest_brief=1 \
            --gtest_filter='*Ops*:*ComputeDevice*-*nvariance*:*ll_bf16_inputs*:*Group_maxima*:*fit*' 2>&1 | tail -n 25
        [ "${PIPESTATUS[0]}" -eq 0 ] || { rc=1; echo "$tool failed"; }
    done
fi
exit "$rc"
