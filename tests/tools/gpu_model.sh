#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Model tests, goldens and a chat on a machine with a GPU that has none of Tenon's third-party libraries.
#   tests/tools/gpu_model.sh pack ARCHIVE.tar.xz [BUILD]   here: host, plugins, model tests, their libraries, fixtures and the small model
#   tests/tools/gpu_model.sh run [BUILD]                    there, after `tar -C / -xJf ARCHIVE.tar.xz`: the same paths as here
# BUILD (build/release) is a release build with CUDA; it is named as here in both commands.
set -euo pipefail
cd "$(dirname "$0")/../.."
tree=$PWD
tests="golden pack mini batch chunk engram tail snapshot poison graph"
engine_tests="engine_mini_test engine_prefix_test"
# The suites of a file of tests, as a filter: files share programs (tenon_add_tests in tests/CMakeLists.txt).
suites() { sed -nE 's~^(TYPED_)?TEST(_F|_P)?\(([A-Za-z0-9_]+),.*~\3.*:*/\3.*:\3/*~p' "tests/model/$1.cc" | sort -u | paste -sd:; }

pack() {
    local archive=$1 build stage file
    build=$(cd "${2:-build/release}" && pwd)
    stage=$(mktemp -d)
    trap "rm -rf '$stage'" EXIT  # now: the name is gone when the trap runs
    local files=("$build/bin/tenon" "$build"/plugins/*.so)
    files+=("$build/tests/dsv41_tests" "$build/tests/engine_model_tests")
    mkdir -p "$stage$build/lib"
    for file in "${files[@]}"; do
        install -D -s "$file" "$stage$file"
    done
    # What the machine has itself stays here: the C and C++ runtimes.
    ldd "${files[@]}" | awk '/=>/ {print $3}' | sort -u | grep -vE '/lib(c|m|gcc_s|stdc\+\+|pthread|dl|rt)\.so' |
        xargs -I{} cp -L {} "$stage$build/lib/"
    mkdir -p "$stage$tree/tests/fixtures/golden"
    cp -r profiles models docs "$stage$tree/"
    cp -r tests/tools tests/model "$stage$tree/tests/"
    cp -r tests/fixtures/golden/dsv41 "$stage$tree/tests/fixtures/golden/"
    tar -C "$stage" -cJf "$archive" .
    ls -l "$archive"
}

run() {
    local build rc=0 t program
    build=$(cd "${1:-build/release}" && pwd)
    export LD_LIBRARY_PATH=$build/lib TENON_PLUGIN_PATH=$build/plugins
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
    # All at once: most of their time is the host's.
    local logs pids=() names=()
    logs=$(mktemp -d)
    trap "rm -rf '$logs'" EXIT
    for t in $(printf 'dsv41_%s_test ' $tests) $engine_tests; do
        program=dsv41_tests
        case $t in engine_*) program=engine_model_tests ;; esac
        TENON_TEST_COMPUTE=cuda timeout 300 "$build/tests/$program" --gtest_filter="$(suites "$t")" --gtest_brief=1 \
            > "$logs/$t" 2>&1 &
        pids+=($!)
        names+=("$t")
    done
    for t in "${!pids[@]}"; do
        wait "${pids[t]}" || rc=1
        echo "### ${names[t]}"
        cat "$logs/${names[t]}"
    done
    echo "### the small model on CPU and GPU"
    python3 tests/tools/compare_profiles.py profiles/mini.toml profiles/mini-cuda.toml --tenon "$build/bin/tenon" || rc=1
    return $rc
}

case ${1:-} in
pack) [ $# -ge 2 ] || { echo "$0 pack ARCHIVE.tar.xz [BUILD]" >&2; exit 2; }; pack "${@:2}" ;;
run) run "${@:2}" ;;
*) echo "$0: pack or run" >&2; exit 2 ;;
esac
