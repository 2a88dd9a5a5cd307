#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Compares the rate at which a profile's weights reach the device with what fio reads from the checkpoint's largest file in the
# same way (4 threads, 8 MiB, O_DIRECT), in turns. Nothing is dropped from the page cache; compute plugins on a CPU use the mapping.
#   load_rate.sh TENON PROFILE CHECKPOINT [ROUNDS]
set -euo pipefail

tenon=${1:?path of the program tenon}
profile=${2:?profile}
checkpoint=${3:?folder of the safetensors files that the profile names}
rounds=${4:-3}
seconds=5

for program in fio python3; do
    command -v "$program" > /dev/null || { echo "$program is missing" >&2; exit 1; }
done
file=$(find -L "$checkpoint" -maxdepth 1 -name '*.safetensors' -printf '%s %p\n' | sort -n | tail -1 | cut -d' ' -f2-)
[[ -n $file ]] || { echo "$checkpoint: holds no safetensors file" >&2; exit 1; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

for (( round = 1; round <= rounds; ++round )); do
    fio --name=weights --filename="$file" --readonly --rw=read --bs=8m --direct=1 --ioengine=psync \
        --numjobs=4 --size=25% --offset_increment=25% --group_reporting --time_based \
        --runtime="$seconds" --output-format=json > "$out/fio-$round.json"
    "$tenon" bench "$profile" --prompt-tokens 1 --decode-tokens 1 --decode-prompt 1 --runs 1 \
        > "$out/tenon-$round.log" 2>&1 || { cat "$out/tenon-$round.log" >&2; exit 1; }
done

python3 - "$out" "$rounds" << 'PY'
import json, re, sys

out, rounds = sys.argv[1], int(sys.argv[2])
for r in range(1, rounds + 1):
    with open(f"{out}/fio-{r}.json") as f:
        text = f.read()
    disk = json.loads(text[text.index("{"):])["jobs"][0]["read"]["bw_bytes"] / 1e9
    with open(f"{out}/tenon-{r}.log") as f:
        found = re.search(r"weights loaded bytes=(\d+) ms=(\d+)", f.read())
    if not found:
        sys.exit("the log has no line 'weights loaded'; is log.level above info?")
    size, ms = int(found[1]), max(1, int(found[2]))
    rate = size / ms / 1e6
    print(f"round {r}: fio {disk:6.2f} GB/s   tenon {rate:6.2f} GB/s ({size} bytes in {ms} ms)   ratio {rate / disk:.3f}")
PY
