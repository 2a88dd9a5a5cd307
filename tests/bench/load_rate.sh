#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Compares the rate at which a profile's weights reach the device with what plain reads of the checkpoint's largest file give
# (dd: 4 at once, 8 MiB, O_DIRECT where the file system has it), in turns. The file's pages are dropped from the cache before
# each. With nvcc it also prints the rate of copies from pinned memory to the device. Needs coreutils and nothing else.
#   load_rate.sh TENON PROFILE CHECKPOINT [ROUNDS]
# A checkpoint of the released geometry: models/synthetic/make.py --values. On tmpfs the "disk" is memory.
set -euo pipefail

tenon=${1:?path of the program tenon}
profile=${2:?profile}
checkpoint=${3:?folder of the safetensors files that the profile names}
rounds=${4:-3}

here=$(cd "$(dirname "$0")" && pwd)
file=$(find -L "$checkpoint" -maxdepth 1 -name '*.safetensors' -printf '%s %p\n' | sort -n | tail -1 | cut -d' ' -f2-)
[[ -n $file ]] || { echo "$checkpoint: holds no safetensors file" >&2; exit 1; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

direct=iflag=direct
dd if="$file" of=/dev/null bs=4096 count=1 "$direct" status=none 2> /dev/null || direct=iflag=fullblock
blocks=$(( $(stat -Lc %s "$file") / (8 << 20) / 4 ))  # of each reader
(( blocks > 0 )) || { echo "$file: too short to say anything" >&2; exit 1; }
gb_per_s() { awk -v bytes="$1" -v ms="$2" 'BEGIN { printf "%.2f", bytes / (ms > 0 ? ms : 1) / 1e6 }'; }
drop() { dd of="$file" oflag=nocache conv=notrunc,fdatasync count=0 status=none 2> /dev/null || true; }

if command -v nvcc > /dev/null && nvcc -O2 -o "$out/copy" "$here/pinned_copy.cu" 2> "$out/nvcc.log"; then
    "$out/copy" || true
fi
for (( round = 1; round <= rounds; ++round )); do
    drop
    begin=$(date +%s%N)
    readers=()
    for i in 0 1 2 3; do
        dd if="$file" of=/dev/null bs=8M skip=$(( i * blocks )) count="$blocks" "$direct" status=none &
        readers+=($!)
    done
    wait "${readers[@]}"
    disk=$(gb_per_s $(( 4 * blocks * (8 << 20) )) $(( ($(date +%s%N) - begin) / 1000000 )))
    drop
    "$tenon" bench "$profile" --set log.level=debug --prompt-tokens 2 --decode-tokens 2 --decode-prompt 2 --runs 1 \
        > "$out/tenon.log" 2>&1 || { cat "$out/tenon.log" >&2; exit 1; }
    read -r bytes ms < <(sed -nE 's/.*weights loaded bytes=([0-9]+) ms=([0-9]+).*/\1 \2/p' "$out/tenon.log") ||
        { echo "the log has no line 'weights loaded'; does the profile send its log to a file?" >&2; exit 1; }
    rate=$(gb_per_s "$bytes" "$ms")
    echo "round $round: reads $disk GB/s ($direct)   tenon $rate GB/s ($bytes bytes in $ms ms)   ratio $(awk -v a="$rate" -v b="$disk" 'BEGIN { printf "%.3f", a / b }')"
done
