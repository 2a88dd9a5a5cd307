#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What the scripts that build and test say and decide: cmake/cores.sh, cmake/cuda_toolkit.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
expect() {  # what it is about, found, expected (a pattern)
    # shellcheck disable=SC2053
    [[ $2 == $3 ]] && return
    echo "$1: found '$2', expected '$3'" >&2
    failed=1
}

# The cases of CpuPool.Takes_no_more_cores_than_the_quota_of_its_cgroup_or_of_one_above_it.
all=$(nproc)
cores() { cmake/cores.sh "$dir" "$dir/self"; }
expect "no cgroup" "$(cmake/cores.sh "$dir/none" "$dir/none")" "$all"
mkdir -p "$dir/a/b"
printf '1:name=systemd:/x\n0::/a/b\n' > "$dir/self"
expect "no quota file" "$(cores)" "$all"
echo "max 100000" > "$dir/a/b/cpu.max"
expect "no quota" "$(cores)" "$all"
echo "1 100000" > "$dir/a/b/cpu.max"
expect "a small quota" "$(cores)" 1
echo "100001 100000" > "$dir/a/b/cpu.max"
expect "rounded up" "$(cores)" "$((all < 2 ? all : 2))"
echo "50000 100000" > "$dir/a/cpu.max"
expect "of the group above" "$(cores)" 1
echo "0 100000" > "$dir/a/cpu.max"
echo "nonsense" > "$dir/a/b/cpu.max"
expect "no numbers" "$(cores)" "$all"
echo "100000 100000" > "$dir/cpu.max"
expect "a container's own" "$(cmake/cores.sh "$dir" "$dir/none")" 1

# Wheels that leave no compiler: a Python whose virtual environments have a pip that does nothing.
mkdir "$dir/bin"
cat > "$dir/bin/python3" << 'END'
#!/bin/sh
mkdir -p "$3/bin"
printf '#!/bin/sh\n' > "$3/bin/pip"
chmod +x "$3/bin/pip"
END
chmod +x "$dir/bin/python3"
rc=0
said=$(PATH="$dir/bin:$PATH" cmake/cuda_toolkit.sh "$dir/cuda" 2>&1) || rc=$?
expect "cuda_toolkit.sh without nvcc, status" "$rc" 1
expect "cuda_toolkit.sh without nvcc" "$said" "*the wheels nvidia-cuda-nvcc==* left no nvcc in $dir/cuda"
exit "$failed"
