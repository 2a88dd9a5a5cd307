#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares two deployments of one model, say on CPU and on a GPU: logits of prompts, and greedy replies.

  tests/tools/compare_profiles.py profiles/mini.toml profiles/mini-cuda.toml [--tenon build/release/bin/tenon]
      [--count 2] [--ask 6] [--least 0.95]

Prompts are items of models/tenon-mini/training. For each deployment it runs `tenon score` and `tenon chat --once`, then prints
for the logits: relative RMS of the difference, and the share of positions whose largest logit agrees; for the replies: how many
are equal, and the first difference. Exit code 1 if less than --least of the positions agree. Needs PyPI `numpy`.
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAINING = ROOT / "models" / "tenon-mini" / "training"
sys.path.insert(0, str(TRAINING))
import numpy as np  # noqa: E402
import data  # noqa: E402

QUESTIONS = ["What is 17 plus 25?", "What is 9 times 8?", "Spell the word garden.", "Sort these numbers: 7 3 9 1",
             "Which is larger, 45 or 54?", "Tell me a short story about a fox.", "How many days has April?",
             "Reverse the word stone."]


def read_logits(path):
    """The f32 tensors logits.0, logits.1, … of a safetensors file, in that order."""
    blob = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8:8 + size])
    out = []
    while f"logits.{len(out)}" in header:
        entry = header[f"logits.{len(out)}"]
        begin, end = entry["data_offsets"]
        out.append(np.frombuffer(blob[8 + size + begin:8 + size + end], "<f4").reshape(entry["shape"]))
    return out


def run(command, text=None):
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, input=text)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout.strip(), time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", nargs=2)
    parser.add_argument("--tenon", default=str(ROOT / "build" / "release" / "bin" / "tenon"))
    parser.add_argument("--count", type=int, default=2, help="items a skill")
    parser.add_argument("--ask", type=int, default=6, help="questions to answer")
    parser.add_argument("--least", type=float, default=0.95)
    args = parser.parse_args()
    texts = [item[0] for n, skill in enumerate(data.MIX) for item in data.test_items(skill, args.count, 990001 + n)]
    lines = run([args.tenon, "tokenize", "--parse-specials", "--checkpoint", str(TRAINING.parent)],
                "".join(json.dumps({"text": text}) + "\n" for text in texts))[0]
    prompts = [ids for ids in (json.loads(line)["ids_with_specials_parsed"] for line in lines.splitlines()) if 2 <= len(ids) <= 1500]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "ids.jsonl"
        file.write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in prompts))
        logits = []
        for i, profile in enumerate(args.profiles):
            out = f"{folder}/{i}.safetensors"
            text, seconds = run([args.tenon, "score", profile, "--ids", str(file), "--logits", out])
            print(f"{profile}: {text} in {seconds:.1f} s with loading")
            logits.append(read_logits(out))
    a = np.concatenate([x.reshape(-1, x.shape[-1]) for x in logits[0]])
    b = np.concatenate([x.reshape(-1, x.shape[-1]) for x in logits[1]])
    finite = np.isfinite(a).all(axis=1) & np.isfinite(b).all(axis=1)
    a, b = a[finite].astype(np.float64), b[finite].astype(np.float64)
    rms = np.sqrt(((a - b) ** 2).mean() / (a ** 2).mean())
    agree = float((a.argmax(axis=1) == b.argmax(axis=1)).mean())
    print(f"logits: {len(prompts)} prompts, {len(a)} positions ({int((~finite).sum())} not finite), "
          f"relative RMS of the difference {rms:.2e}, largest logit agrees at {agree:.4f}")
    same = 0
    for question in QUESTIONS[:args.ask]:
        replies = [run([args.tenon, "chat", profile, "--once", question])[0] for profile in args.profiles]
        same += replies[0] == replies[1]
        if replies[0] != replies[1]:
            print(f"{question!r}:\n  {replies[0]!r}\n  {replies[1]!r}")
    if args.ask:
        print(f"replies: {same} of {min(args.ask, len(QUESTIONS))} equal")
    return 0 if agree >= args.least and finite.all() else 1


if __name__ == "__main__":
    sys.exit(main())
