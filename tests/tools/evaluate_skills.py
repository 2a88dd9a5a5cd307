#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asks a running server the items of models/tenon-mini/training/evaluate.py and counts right answers per skill.

  tests/tools/evaluate_skills.py [--url http://127.0.0.1:8888] [--count 40] [--skills add,copy] [--streams 4] [--out F.json]

Greedy, through /v1/completions with lists of ids, so the prompt is exactly the trainer's. Needs PyPI `tokenizers` and `numpy`.
"""
import argparse
import concurrent.futures
import http.client
import json
import pathlib
import sys
import time
import urllib.parse

TRAINING = pathlib.Path(__file__).resolve().parents[2] / "models" / "tenon-mini" / "training"
sys.path.insert(0, str(TRAINING))
import data  # noqa: E402
from judge import judge  # noqa: E402


def complete(url, ids, room):
    """The ids of the reply, without the end token, and whether the model ended it."""
    at = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname, at.port, timeout=600)
    body = {"prompt": ids, "max_tokens": room, "temperature": 0, "return_token_ids": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    if response.status != 200:
        raise SystemExit(f"{url}: {response.status} {text[:300]!r}")
    choice = json.loads(text)["choices"][0]
    return choice["token_ids"], choice["finish_reason"] == "stop"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8888")
    parser.add_argument("--count", type=int, default=40, help="items a skill")
    parser.add_argument("--seed", type=int, default=990001)
    parser.add_argument("--skills", default="", help="comma separated; all by default")
    parser.add_argument("--room", type=int, default=320, help="longest reply")
    parser.add_argument("--streams", type=int, default=4, help="requests at once")
    parser.add_argument("--out", help="report as JSON")
    parser.add_argument("--least", type=float, default=0.84, help="share of right answers below which the exit code is 1")
    args = parser.parse_args()
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(TRAINING.parent / "tokenizer.json"))

    work = []
    for n, skill in enumerate(data.MIX):
        if args.skills and skill.__name__ not in args.skills.split(","):
            continue
        for item in data.test_items(skill, args.count, args.seed + n):
            ids = tokenizer.encode(item[0], add_special_tokens=False).ids
            if len(ids) <= 2000:
                work.append((skill.__name__, ids, item))

    begin = time.time()
    rows = {}
    tokens = 0
    with concurrent.futures.ThreadPoolExecutor(args.streams) as pool:
        replies = pool.map(lambda w: complete(args.url, w[1], args.room), work)
        for (name, _, (_, _, thinking, want, _)), (ids, ended) in zip(work, replies):
            ids = [i for i in ids if i != 1]
            tokens += len(ids)
            text = tokenizer.decode(ids, skip_special_tokens=False)
            text += tokenizer.id_to_token(1) if ended else ""
            right = bool(judge(want, text, thinking)) and ended
            row = rows.setdefault(name, {"items": 0, "right": 0, "thinking": 0, "thinking_right": 0})
            row["items"] += 1
            row["right"] += right
            row["thinking"] += bool(thinking)
            row["thinking_right"] += right and bool(thinking)
    seconds = time.time() - begin
    for name in sorted(rows):
        r = rows[name]
        print(f"{name:14s} {r['right']:4d}/{r['items']}   with thinking {r['thinking_right']}/{r['thinking']}")
    items, right = sum(r["items"] for r in rows.values()), sum(r["right"] for r in rows.values())
    print(f"all {right}/{items} = {right / items:.4f}; {tokens} tokens in {seconds:.0f} s")
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps({"skills": rows, "right": right, "items": items, "seconds": seconds}, indent=1))
    sys.exit(0 if right / items >= args.least else 1)


if __name__ == "__main__":
    main()
