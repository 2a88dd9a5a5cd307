#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the looking-glass verbs of `tenon` over the goldens: tokenize, detokenize, render, parse, inspect, score, pack-engram.

    cli_verbs.py TENON FIXTURES        FIXTURES = tests/fixtures/golden

Needs Python alone. Ends with 1 and the first differences of each verb.
"""
import array
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

TENON, GOLDEN = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
TEXT = GOLDEN / "text"
failures = 0


def lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def call(*args, stdin=""):
    done = subprocess.run([TENON, *map(str, args)], input=stdin.encode(), capture_output=True, timeout=280)
    if done.returncode != 0:
        sys.exit(f"tenon {' '.join(map(str, args))}: exit code {done.returncode}\n{done.stderr.decode()}")
    return done.stdout.decode().rstrip("\n")


def answers(verb, requests, *args):
    text = "".join(json.dumps(r, ensure_ascii=True) + "\n" for r in requests)
    out = [json.loads(line) for line in call(verb, *args, stdin=text).split("\n")]
    assert len(out) == len(requests), f"{verb}: {len(requests)} lines in, {len(out)} out"
    return out


def report(name, cases, wrong):
    global failures
    print(f"{name}: {cases - len(wrong)} of {cases}")
    for label, expected, found in wrong[:3]:
        print(f"  {label}\n    expected {str(expected)[:300]}\n    found    {str(found)[:300]}")
    failures += len(wrong)


def tensors(path):
    """name -> (dtype, shape, flat list)"""
    raw = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    kinds = {"F32": "f", "I32": "i", "BF16": "H"}
    found = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in kinds:
            continue
        begin, end = entry["data_offsets"]
        found[name] = entry["shape"], array.array(kinds[entry["dtype"]], raw[8 + size + begin : 8 + size + end])
    return found


def check_tokenizer(folder, vocabulary):
    cases = lines(folder / "encode.jsonl")
    requests = [{"text": c["text"]} for c in cases]
    for key, flags in (("ids", []), ("ids_with_specials_parsed", ["--parse-specials"])):
        got = answers("tokenize", requests, "--checkpoint", folder, *flags)
        wrong = [(c["text"][:60], c[key], g) for c, g in zip(cases, got) if g.get(key) != c[key]]
        report(f"tokenize {vocabulary} {key}", len(cases), wrong)
    cases = lines(folder / "decode.jsonl")
    requests = [{"ids": c["ids"]} for c in cases]
    for key, flags in (("text", []), ("text_skip_special", ["--skip-specials"])):
        got = answers("detokenize", requests, "--checkpoint", folder, *flags)
        wrong = [(c["ids"], c[key], g) for c, g in zip(cases, got) if g.get("text") != c[key]]
        report(f"detokenize {vocabulary} {key}", len(cases), wrong)


def check_render(folder, ids_key):
    cases = [c for path in sorted((TEXT / "chat").glob("*.jsonl")) for c in lines(path)]
    got = answers("render", [{"request": c["request"]} for c in cases], "--checkpoint", folder)
    wrong = []
    for c, g in zip(cases, got):
        expect = c["expect"]
        if "error" in expect:
            same = g.get("error", {}).get("status") == expect["error"]["status"]
        else:
            fields = [k for k in ("prompt", "thinking", "images", "parse") if k in expect]
            same = all(g.get(k) == expect[k] for k in fields) and g.get("ids") == expect.get(ids_key, g.get("ids"))
        if not same:
            wrong.append((c["id"], expect, g))
    report(f"render {ids_key}", len(cases), wrong)


def check_parse():
    cases = [c for path in sorted((TEXT / "replies").glob("*.jsonl")) for c in lines(path)]
    requests = []
    for c in cases:
        keys = ("start", "tools", "backend_finish", "stop", "parallel_tool_calls")
        request = {k: c[k] for k in keys if k in c}
        if "chunks" in c:
            request["text"] = "".join(c["chunks"])
        elif c.get("needs_ids"):
            request["ids"] = c["ids"]
        else:
            request["text"] = c["text"]
        requests.append(request)
    got = answers("parse", requests, "--checkpoint", TEXT / "tokenizer")
    wrong = []
    for c, g in zip(cases, got):
        expect = c["whole"] if "whole" in c else c["expect"]
        if any(g.get(k) != expect[k] for k in expect if k in ("reasoning", "content", "tool_calls", "finish_reason")):
            wrong.append((c["id"], expect, g))
    report("parse", len(cases), wrong)


def check_score(folder):
    """Logits and drafts of the official-format golden; limits: dsv41/README.md, column "same rounding points"."""
    golden = tensors(GOLDEN / "dsv41" / "prompts.safetensors")
    profile = folder / "tiny.toml"
    profile.write_text(
        'profile = 1\nname = "tiny"\n'
        f'model = {{ plugin = "dsv41", checkpoint = "{GOLDEN / "dsv41" / "tiny"}", context_tokens = 1024, slots = 1 }}\n'
        'quant = { plugin = ["plain"] }\ncompute = { plugin = "cpu" }\nengram = { plugin = "mmap" }\n'
    )
    lengths = (1, 2, 31, 33, 97, 331)
    ids = folder / "ids.jsonl"
    ids.write_text("".join(json.dumps({"ids": list(golden[f"p{n}.ids"][1])}) + "\n" for n in lengths))
    out = folder / "logits.safetensors"
    said = json.loads(call("score", profile, "--ids", ids, "--logits", out, "--drafts").split("\n")[-1])
    found = tensors(out)
    wrong = []
    for i, n in enumerate(lengths):
        shape, expected = golden[f"p{n}.logits"]
        got_shape, got = found[f"logits.{i}"]
        assert got_shape == shape, f"logits.{i}: {got_shape}, expected {shape}"
        rms = math.sqrt(sum((a - b) ** 2 for a, b in zip(expected, got)) / len(expected))
        limit = 0.02 if n <= 33 else 0.03 if n <= 97 else 0.045
        print(f"  prompt {n}: rms {rms:.4f}, limit {limit}")
        if rms > limit:
            wrong.append((f"prompt {n}", f"rms <= {limit}", rms))
        vocab, gaps = shape[1], golden[f"p{n}.top_gap"][1]
        for t in range(n):
            e, g = expected[t * vocab : (t + 1) * vocab], got[t * vocab : (t + 1) * vocab]
            if gaps[t] >= 0.3 and e.index(max(e)) != g.index(max(g)):
                wrong.append((f"prompt {n} row {t}", e.index(max(e)), g.index(max(g))))
    report("score, rows of logits", sum(lengths), wrong)
    drafts = list(golden["p33.draft33.drafts"][1])
    found_drafts = list(found[f"drafts.{lengths.index(33)}"][1])
    report("score, drafts", 1, [] if drafts == found_drafts else [("p33", drafts, found_drafts)])
    nats, tokens = 0.0, 0
    for i, n in enumerate(lengths):
        (_, vocab), got = found[f"logits.{i}"]
        row_ids = golden[f"p{n}.ids"][1]
        for t in range(n - 1):
            row = got[t * vocab : (t + 1) * vocab]
            nats += math.log(sum(math.exp(x - max(row)) for x in row)) + max(row) - row[row_ids[t + 1]]
            tokens += 1
    own = math.exp(nats / tokens)
    # The same f32 logits, summed in another order: far below 1e-5.
    same = abs(said["perplexity"] - own) <= 1e-5 * own
    report("score, perplexity", 1, [] if same else [("perplexity", own, said)])


def check_usage():
    """A mistake on the command line names the nearest word, or the help of the verb that it was made in."""
    cases = [
        (["serv"], "no verb 'serv'. Did you mean 'serve'?"),
        (["serve"], "(see tenon serve --help)"),
        (["bench", "--run", "1"], "no option '--run'. Did you mean '--runs'?"),
        (["plugin", "new", "storage"], "(see tenon plugin new --help)"),
    ]
    wrong = []
    for args, text in cases:
        done = subprocess.run([TENON, *args], capture_output=True, timeout=60)
        found = (done.returncode, done.stderr.decode())
        if found[0] != 2 or text not in found[1]:
            wrong.append((" ".join(args), (2, text), found))
    report("usage errors", len(cases), wrong)


def check_inspect(folder):
    """A matrix of the pack against the same matrix of the official-format twin is not exact; names and shapes are."""
    pack = GOLDEN / "dsv41" / "tiny_exl3"
    native = GOLDEN / "dsv41" / "tiny"
    for name in ("layers.3.attn.wq_a", "layers.3.attn.wq_a.weight", "layers.3.attn.wo_a"):
        out = []
        for checkpoint in (pack, native):
            path = folder / "w.safetensors"
            call("inspect", checkpoint, "--tensor", name, "--out", path)
            found = tensors(path)
            assert list(found) == [name], f"inspect wrote {list(found)}, expected {name}"
            out.append(found[name])
        assert out[0][0] == out[1][0], f"{name}: {out[0][0]} in the pack, {out[1][0]} in the official format"
        scale = math.sqrt(sum(x * x for x in out[1][1]))
        error = math.sqrt(sum((a - b) ** 2 for a, b in zip(out[0][1], out[1][1]))) / scale
        # Random weights: an EXL3 pack of K bits is off by about 2^-K of their norm; transposed or shuffled ones by 1.41.
        report(f"inspect {name} {out[0][0]}", 1, [] if error < 0.5 else [("relative error", "< 0.5", error)])


def check_packed(folder):
    """Packed Engram tables hold the rows of the official ones: the same logits, bit by bit."""
    profile = GOLDEN.parents[2] / "profiles" / "mini.toml"
    prompts = folder / "packed.jsonl"
    prompts.write_text(json.dumps({"ids": list(range(3, 67))}) + "\n")
    call("pack-engram", profile, "--out", folder / "packed")
    call("pack-engram", profile, "--out", folder / "packed", "--verify")
    out = []
    for layout in ([], ["--set", f'engram.dir="{folder / "packed"}"', "--set", 'engram.layout="packed"']):
        for memory in ([], ["--set", "engram.in_memory=0"]):
            path = folder / "logits.safetensors"
            call("score", profile, "--ids", prompts, "--logits", path, *layout, *memory)
            out.append(path.read_bytes())
    report("packed tables", 3, [("logits", "those of official tables", "others") for o in out[1:] if o != out[0]])


with tempfile.TemporaryDirectory() as name:
    check_usage()
    check_packed(pathlib.Path(name))
    check_tokenizer(TEXT / "small", "small")
    check_tokenizer(TEXT / "tokenizer", "released")
    check_render(TEXT / "tokenizer", "ids")
    check_render(TEXT / "small", "ids_small")
    check_parse()
    check_inspect(pathlib.Path(name))
    check_score(pathlib.Path(name))
sys.exit(1 if failures else 0)
