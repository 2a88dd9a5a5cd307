#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Prints how many cores this process may use, by the rule of the CPU plugin's pool (kernels/cpu/pool/pool.h): those of its
# affinity, and no more than the quota of its cgroup or of one above it, rounded up.
#   cmake/cores.sh [CGROUPS MEMBERSHIP]      default /sys/fs/cgroup /proc/self/cgroup
set -euo pipefail
cgroups=${1:-/sys/fs/cgroup}
membership=${2:-/proc/self/cgroup}
cores=$(nproc)
group=$(sed -n '/^0::/ { s/^0:://p; q }' "$membership" 2> /dev/null || true)
while :; do
    if read -r quota period 2> /dev/null < "$cgroups$group/cpu.max" && [[ "$quota $period" =~ ^[1-9][0-9]*\ [1-9][0-9]*$ ]]; then
        least=$(((quota - 1) / period + 1))
        cores=$((least < cores ? least : cores))
    fi
    [ -n "$group" ] || break
    group=${group%/*}
done
echo "$cores"
