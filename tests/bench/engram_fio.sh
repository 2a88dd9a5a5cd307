#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Compares a fetch of 65,536 random rows of a packed table with what fio reaches on the same file, depth and flags, in turns.
#   engram_fio.sh BENCH_STORAGE [DIRECTORY] [GIB] [ROUNDS]
# The table (4 GiB unless said) is written into DIRECTORY, which must be on the disk to measure, and removed afterwards.
set -euo pipefail

bench=${1:?path of the program bench_storage}
directory=${2:-.}
gib=${3:-4}
rounds=${4:-3}
seconds=5
depth=64  # the plugin's default queue_depth

command -v fio > /dev/null || { echo "fio is missing: apt-get install fio" >&2; exit 1; }
command -v python3 > /dev/null || { echo "python3 is missing" >&2; exit 1; }
free_kib=$(df --output=avail -k "$directory" | tail -1)
if (( free_kib < (gib + 1) * 1024 * 1024 )); then
    echo "$directory: $((free_kib / 1024)) MiB free, the table needs $gib GiB and some room" >&2
    exit 1
fi

table=$(mktemp "$directory/engram-bench-XXXXXX")
out=$(mktemp -d)
trap 'rm -rf "$table" "$out"' EXIT
echo "== writing $gib GiB to $table"
"$bench" --make-table "$table" --gib "$gib"

for (( round = 1; round <= rounds; ++round )); do
    echo "== round $round of $rounds"
    fio --name=engram --filename="$table" --readonly --rw=randread --bs=4k --direct=1 \
        --ioengine=io_uring --iodepth="$depth" --registerfiles --fixedbufs --norandommap \
        --randrepeat=0 --time_based --runtime="$seconds" --output-format=json \
        > "$out/fio-$round.json"
    "$bench" --table "$table" --benchmark_filter='fetch_random_rows/io_uring/65536' \
        --benchmark_min_time="$seconds" --benchmark_out="$out/tenon-$round.json" \
        --benchmark_out_format=json > /dev/null
done

python3 - "$out" "$rounds" << 'PY'
import json, sys

out, rounds = sys.argv[1], int(sys.argv[2])
ratios = []
for r in range(1, rounds + 1):
    with open(f"{out}/fio-{r}.json") as f:
        text = f.read()
    fio = json.loads(text[text.index("{"):])["jobs"][0]["read"]["iops"]  # notes may come before
    with open(f"{out}/tenon-{r}.json") as f:
        mine = json.load(f)["benchmarks"][0]
    ratios.append(mine["reads/s"] / fio)
    print(f"round {r}: fio {fio:9.0f} reads/s   tenon {mine['reads/s']:9.0f} reads/s"
          f" ({mine['blocks/s']:.0f} blocks/s, {mine['rows/s']:.0f} rows/s, {mine['label']})"
          f"   ratio {ratios[-1]:.3f}")
ratios.sort()
print(f"median ratio {ratios[len(ratios) // 2]:.3f} (goal: 0.90)")
PY
