#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench --synthetic: describes the small model's tensors instead of storing them, and measures it.

    tests/e2e/synthetic.py TENON PROFILE MODEL_FOLDER

Also: the folder is refused by everything that wants values, wrong descriptions are named, and
models/synthetic/make.py describes exactly the tensors of the released geometry that the memory plan
asks for. Ends with 0, or 1 and the reason."""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

TENON, PROFILE, MODEL = sys.argv[1:4]
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(*words, code=0):
    done = subprocess.run([TENON, *words], capture_output=True, text=True, timeout=300)
    if done.returncode != code:
        sys.exit(f"{' '.join(words)}: exit {done.returncode}, expected {code}\n{done.stdout}{done.stderr}")
    return done.stdout, done.stderr


def expect(condition, message):
    if not condition:
        sys.exit(f"synthetic: {message}")


def describe(folder):
    with open(os.path.join(MODEL, "model.safetensors"), "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    entries = []
    for name, t in header.items():
        if name == "__metadata__":
            continue
        fill = {"I16": "bits", "I32": "value -2082680531"}.get(t["dtype"], "normal 0.05")
        if name.endswith((".suh", "norm.weight")):
            fill = "value 1" if "norm" in name else "signs 1"
        entries.append({"name": name, "dtype": t["dtype"], "shape": t["shape"], "fill": fill})
    windows = {str(n): 1_000_000 * n for n in (1, 2, 4, 6, 8, 12, 16)}
    full = {"layers": 12, "window": {n: 3 * b for n, b in windows.items()}, "draft": 500_000}
    write(folder, {"bytes": {"window": windows, "draft": 500_000, "layers": 6, "full": full}, "tensors": entries})
    for name in ("config.json", "tokenizer.json", "engram"):
        os.symlink(os.path.join(os.path.abspath(MODEL), name), os.path.join(folder, name))
    return entries


def write(folder, json_):
    with open(os.path.join(folder, "synthetic.json"), "w", encoding="utf-8") as f:
        json.dump(json_, f)


def main():
    with tempfile.TemporaryDirectory() as folder:
        entries = describe(folder)
        out, _ = run("bench", PROFILE, "--synthetic", folder, "--runs", "2", "--json")
        report = json.loads(out)
        expect(report["copy_bytes_per_s"] > 0, "no bandwidth")
        expect(report["chunk"]["us"] > 0 and report["chunk"]["rows"] == 256, f"chunk {report['chunk']}")
        expect([r["rows"] for r in report["rounds"]] == [1, 2, 4, 6, 8, 12, 16], f"rounds {report['rounds']}")
        for r in report["rounds"]:
            w, both = r["window"], r["window_and_draft"]
            expect(w["bytes"] == 1e6 * r["rows"] and both["bytes"] == w["bytes"] + 5e5, f"bytes {r}")
            for t in (w, both):
                expect(abs(t["share"] - t["bytes"] / report["copy_bytes_per_s"] * 1e6 / t["us"]) < 1e-9, f"share {t}")
        expect([(k["step"], k["rows"]) for k in report["kinds"]] == [("window", 1), ("window", 6), ("window and draft", 6), ("chunk", 256)],
               f"kinds {[(k['step'], k['rows']) for k in report['kinds']]}")
        rounds = {r["rows"]: r for r in report["rounds"]}
        expect([s["rows"] for s in report["scaled"]] == [1, 6], f"scaled {report['scaled']}")
        for s in report["scaled"]:
            us, draft = rounds[s["rows"]]["window"]["us"], rounds[s["rows"]]["draft_us"]
            window = s["once_us"] + 2 * (us - s["once_us"]) if s["once_us"] < us else us
            expect(abs(s["window"]["us"] - window) < 1e-6 * window and s["window"]["bytes"] == 3e6 * s["rows"], f"scaled {s}")
            expect(draft > 0 and abs(s["window_and_draft"]["us"] - window - draft) < 1e-6 * window, f"scaled {s}")
        for k in report["kinds"]:
            kinds = {f["name"]: f for f in k["list"]}
            expect(abs(sum(f["us"] for f in k["list"]) - k["sum_us"]) < 1e-6 * k["sum_us"], f"sum of {k['step']}")
            words = sum(2 * math.prod(e["shape"]) for e in entries if e["name"].startswith("head.") and e["dtype"] == "I16")
            if k["step"] == "window":
                expect(kinds["head"]["calls"] == 1 and kinds["head"]["bytes"] >= words,
                       f"head {kinds['head']}, its words alone have {words} bytes")
            expect({"norm.rms", "attn.sparse", "ffn.experts"} <= set(kinds), f"kinds of {k['step']}: {sorted(kinds)}")

        _, err = run("check", PROFILE, "--set", f'model.checkpoint="{folder}"', "--set", "model.extra_tensors=[]", "--strict", code=5)
        expect("bench --synthetic" in err, f"the refusal says: {err}")
        for change, message in (
                ({"dtype": "F33"}, "F33"), ({"shape": [0]}, "shape"), ({"fill": "random"}, "random"),
                ({"name": "layers.{3..1}.x"}, "{3..1}"), ({"name": entries[1]["name"]}, "twice")):
            write(folder, {"bytes": {"window": {}, "draft": 0}, "tensors": [dict(entries[0], **change), *entries[1:]]})
            _, err = run("bench", PROFILE, "--synthetic", folder, code=5)
            expect("synthetic.json" in err and message in err, f"{change} says: {err}")
        run("bench", PROFILE, "--synthetic", folder + "/none", code=2)

        # The released geometry: nothing is missing or unknown, and the plan agrees with the description.
        full = os.path.join(folder, "full")
        subprocess.run([sys.executable, os.path.join(ROOT, "models/synthetic/make.py"), "--out", full], check=True,
                       stdout=subprocess.DEVNULL)
        _, err = run("bench", PROFILE, "--synthetic", full, "--set", "model.context_tokens=8192", code=4)
        expect("weights.experts" in err, f"the plan of the full geometry: {err}")
    print("synthetic: all right")


if __name__ == "__main__":
    main()
