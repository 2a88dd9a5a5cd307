#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes a model folder of the released geometry without a checkpoint: config.json, synthetic.json
(names, types, shapes and distributions of all tensors, read by `tenon bench --synthetic`), the
tokenizer, and Engram tables as files with holes.

    models/synthetic/make.py --out DIR [--layers 40] [--experts 384] [--expert-bits 3] [--values]

With --values the tensors are written too (model.safetensors, as long as the printed size), so that
any verb reads the folder and loading can be measured.

Layers: the first half compresses by 2, the second by 1, as in the released model; with 40 the
configuration is the released one (docs/dsv41_config.json), less its vision part. Bits a weight are those of docs/dsv41.md 2.4.
Needs Python 3.9 and nothing else."""
import argparse
import json
import os
import random
import re
import shutil
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, help="folder to write; made if missing")
    p.add_argument("--layers", type=int, default=40, help="layers of the backbone, 6 to 40")
    p.add_argument("--experts", type=int, default=384, help="routed experts a layer; the drafter has at most as many")
    p.add_argument("--expert-bits", type=float, default=3, help="bits a weight of routed experts")
    p.add_argument("--values", action="store_true", help="write the weights too")
    p.add_argument("--tokenizer", default=os.path.join(ROOT, "tests/fixtures/golden/text/tokenizer/tokenizer.json"),
                   help="tokenizer.json of the release")
    a = p.parse_args()
    if not 6 <= a.layers <= 40 or a.layers % 2:
        p.error("--layers: an even number from 6 to 40")
    if a.experts < 16 or a.experts > 384:
        p.error("--experts: 16 to 384")
    if a.expert_bits * 2 not in (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16):
        p.error("--expert-bits: 1 to 8, or 1.5, 2.5, 3.5")
    if not os.path.exists(a.tokenizer):
        p.error(f"--tokenizer: {a.tokenizer} does not exist")
    return a


def configuration(layers, experts):
    with open(os.path.join(ROOT, "docs/dsv41_config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config.pop("_transcription_notes", None)
    config.pop("vision_config", None)
    config["quantization_config"] = {"quant_method": "exl3", "codebook": "mul1", "out_scales": "always"}
    text = config["text_config"]
    text["n_routed_experts"] = experts
    text["dspark_n_routed_experts"] = min(experts, text["dspark_n_routed_experts"])
    if layers == 40:
        return config
    half = layers // 2
    text["num_hidden_layers"] = layers
    text["compress_ratios"] = [0, 0] + [2] * (half - 2) + [1] * half + [0] * text["num_nextn_predict_layers"]
    sources = list(range(2, half, 6)) + [half]
    text["kv_source_layer_ids"] = sources
    text["index_source_layer_ids"] = sources + list(range(half + 4, layers, 4))
    text["candidate_source_layer_id"] = half
    text["engram_layer_ids"] = [1, min(14, half - 1)]
    text["dspark_target_layer_ids"] = list(range(layers - 3, layers))
    return config


class Tensors:
    def __init__(self):
        self.entries = []

    def add(self, name, dtype, shape, fill):
        self.entries.append({"name": name, "dtype": dtype, "shape": shape, "fill": fill})

    def exl3(self, name, inputs, outputs, bits):
        """One EXL3 matrix; random trellis words decode to about unit variance, so that signs of
        1 / sqrt(inputs) at the output keep a product at the size of its input."""
        scale = inputs ** -0.5
        self.add(name + ".trellis", "I16", [inputs // 16, outputs // 16, int(16 * bits)], "bits")
        self.add(name + ".suh", "F16", [inputs], "signs 1")
        self.add(name + ".svh", "F16", [outputs], f"signs {scale:.6g}")
        self.add(name + ".mul1", "I32", [], "value -2082680531")
        return inputs * outputs * bits / 8 + 2 * (inputs + outputs)

    def plain(self, name, dtype, shape, fill):
        self.add(name, dtype, shape, fill)
        n = 1
        for s in shape:
            n *= s
        return n * (4 if dtype == "F32" else 2)


def describe(config, expert_bits):
    """Adds all tensors; returns bytes that a row reads: {part: bytes}, experts apart."""
    c = config["text_config"]
    t = Tensors()
    d, vocab, dim = c["hidden_size"], c["vocab_size"], c["head_dim"]
    width = c["moe_intermediate_size"]
    heads, groups, q_rank, o_rank = (c["num_attention_heads"], c["o_groups"], c["q_lora_rank"], c["o_lora_rank"])
    streams = c["hc_mult"]
    coefficients = streams * (streams + 2)
    bytes_ = {"attention": 0.0, "mixing": 0.0, "router": 0.0, "shared": 0.0, "engram": 0.0, "head": 0.0,
              "expert": 0.0, "draft": 0.0, "draft_expert": 0.0}

    def block(name, kind, part):
        """kind: (ratio, owns rows, owns an index, Engram table or None, experts, bits)"""
        ratio, owns_kv, owns_index, table, experts, bits = kind
        draft = part == "draft"
        mixing, attention, router, shared, expert = (
            ("draft",) * 4 + ("draft_expert",) if draft else
            ("mixing", "attention", "router", "shared", "expert"))
        for site in ("attn", "ffn"):
            bytes_[mixing] += t.plain(f"{name}.hc_{site}_fn", "F32", [coefficients, streams * d], "normal 0.005")
            bytes_[mixing] += t.plain(f"{name}.hc_{site}_scale", "F32", [3], "value 0.1")
            bytes_[mixing] += t.plain(f"{name}.hc_{site}_base", "F32", [coefficients], "normal 0.1")
            bytes_[mixing] += t.plain(f"{name}.{site}_norm.weight", "BF16", [d], "value 1")
        k = 4 if draft else 5
        a = f"{name}.attn"
        total = t.exl3(f"{a}.wq_a", d, q_rank, k) + t.exl3(f"{a}.wkv", d, dim, k)
        total += t.exl3(f"{a}.wq_b", q_rank, heads * dim, k)
        for g in range(groups):
            total += t.exl3(f"{a}.wo_a.slice.{g}", heads * dim // groups, o_rank, k)
        total += t.exl3(f"{a}.wo_b", groups * o_rank, d, k)
        total += t.plain(f"{a}.q_norm.weight", "BF16", [q_rank], "value 1")
        total += t.plain(f"{a}.kv_norm.weight", "BF16", [dim], "value 1")
        total += t.plain(f"{a}.attn_sink", "F32", [heads], "normal 1")
        if owns_kv:
            total += t.exl3(f"{a}.compressor.wkv", d, dim, k)
            if ratio > 1:
                total += t.exl3(f"{a}.compressor.wgate", d, dim, k)
            total += t.plain(f"{a}.compressor.norm.weight", "BF16", [dim], "value 1")
            total += t.exl3(f"{a}.indexer.wk", dim, c["index_head_dim"], 8)
            total += t.plain(f"{a}.indexer.k_norm.weight", "BF16", [c["index_head_dim"]], "value 1")
        if owns_index:
            total += t.exl3(f"{a}.indexer.wq_b", q_rank, c["index_n_heads"] * c["index_head_dim"], k)
            total += t.plain(f"{a}.indexer.weights_proj.weight", "BF16", [c["index_n_heads"], d], "normal 0.01")
        bytes_[attention] += total
        bytes_[router] += t.plain(f"{name}.ffn.gate.weight", "BF16", [experts, d], f"normal {d ** -0.5:.6g}")
        bytes_[router] += t.plain(f"{name}.ffn.gate.bias", "F32", [experts], "normal 0.01")
        every = f"{name}.ffn.experts.{{0..{experts - 1}}}"
        one = 0.0
        for w, i, o in (("w1", d, width), ("w3", d, width), ("w2", width, d)):
            one += t.exl3(f"{every}.{w}", i, o, bits)
            bytes_[shared] += t.exl3(f"{name}.ffn.shared_experts.{w}", i, o, k)
        bytes_[expert] = one
        if table is not None:
            columns = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"] * c["engram_head_dim"]
            e = f"{name}.engram"
            bytes_["engram"] += t.exl3(f"{e}.wkv", columns, (streams + 1) * d, 5 if table == 0 else 4)
            for side in ("q", "k"):
                bytes_["engram"] += t.plain(f"{e}.{side}_weight", "BF16", [streams, d], "value 1")

    t.plain("embed.weight", "BF16", [vocab, d], "normal 1")
    for i in range(c["num_hidden_layers"]):
        tables = c["engram_layer_ids"]
        block(f"layers.{i}", (c["compress_ratios"][i], i in c["kv_source_layer_ids"], i in c["index_source_layer_ids"],
                              tables.index(i) if i in tables else None, c["n_routed_experts"], expert_bits), "main")
    bytes_["head"] += t.plain("norm.weight", "BF16", [d], "value 1") + t.exl3("head", d, vocab, 6)
    stages = c["num_nextn_predict_layers"]
    for s in range(stages):
        block(f"mtp.{s}", (0, False, False, None, c["dspark_n_routed_experts"], 4), "draft")
    rank = c["dspark_markov_rank"]
    bytes_["draft"] += t.exl3("mtp.0.main_proj", len(c["dspark_target_layer_ids"]) * d, d, 4)
    bytes_["draft"] += t.plain("mtp.0.main_norm.weight", "BF16", [d], "value 1")
    last = f"mtp.{stages - 1}"
    bytes_["draft"] += t.plain(f"{last}.norm.weight", "BF16", [d], "value 1")
    t.plain(f"{last}.markov_head.embed.weight", "BF16", [vocab, rank], "normal 0.05")
    bytes_["draft"] += t.plain(f"{last}.markov_head.head.weight", "BF16", [vocab, rank], "normal 0.05")
    bytes_["draft"] += t.plain(f"{last}.confidence_head.proj.weight", "BF16", [1, d + rank], "normal 0.01")
    return t.entries, bytes_


def distinct(experts, chosen, rows):
    """Experts that `rows` rows touch if each draws `chosen` of them at random."""
    return experts * (1 - (1 - chosen / experts) ** rows)


def floors(config, part):
    """Weight bytes of a window of n rows and of a draft pass; state is left out."""
    c = config["text_config"]
    fixed = sum(part[k] for k in ("attention", "mixing", "router", "shared", "engram", "head"))
    windows = {}
    for rows in (1, 2, 4, 6, 8, 12, 16):
        routed = distinct(c["n_routed_experts"], c["num_experts_per_tok"], rows) * part["expert"]
        windows[str(rows)] = int(fixed + c["num_hidden_layers"] * routed)
    # All rows of a block pass the stages together; the drafter ends in the backbone's head.
    routed = distinct(c["dspark_n_routed_experts"], c["dspark_num_experts_per_tok"], c["dspark_block_size"])
    draft = part["draft"] + part["head"] + c["num_nextn_predict_layers"] * routed * part["draft_expert"]
    return {"window": windows, "draft": int(draft)}


def engram_files(config, out):
    """Official two-tensor tables as one file with holes: rows are zeros, reads are real calls."""
    c = config["text_config"]
    header, at = {}, 0
    for layer, rows in zip(c["engram_layer_ids"], c["engram_num_embeddings"]):
        for name, dtype, columns in (("weight", "F8_E4M3", c["engram_head_dim"]),
                                     ("scale", "F8_E8M0", c["engram_head_dim"] // 32)):
            header[f"layers.{layer}.engram.embed.{name}"] = {
                "dtype": dtype, "shape": [rows, columns], "data_offsets": [at, at + rows * columns]}
            at += rows * columns
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    os.makedirs(os.path.join(out, "engram"), exist_ok=True)
    with open(os.path.join(out, "engram", "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)


BLOCK = 16 << 20  # of values; tensors take turns in it


def block_of(dtype, fill, r):
    """BLOCK bytes of values of one type and fill, or random ones."""
    kind, _, number = fill.partition(" ")
    if kind == "bits":
        return r.randbytes(BLOCK)
    count = 1 << 14  # drawn; repeated after that
    x = float(number)
    values = [r.gauss(0, x) if kind == "normal" else r.choice((-x, x)) if kind == "signs" else x for _ in range(count)]
    if dtype == "BF16":  # the upper half of an f32
        text = b"".join(struct.pack("<f", v)[2:] for v in values)
    else:
        text = struct.pack(f"<{count}{ {'F32': 'f', 'F16': 'e', 'I32': 'i'}[dtype] }",
                           *(map(int, values) if dtype == "I32" else values))
    return text * (BLOCK // len(text))


def expand(name):
    """"a.{0..2}.b" as three names."""
    found = re.search(r"\{(\d+)\.\.(\d+)\}", name)
    if not found:
        return [name]
    return [n for i in range(int(found[1]), int(found[2]) + 1)
            for n in expand(name[:found.start()] + str(i) + name[found.end():])]


def write_values(entries, path):
    """All tensors as one safetensors file, each matrix's together as a converter writes them."""
    size = {"F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2}
    tensors = sorted((name, e) for e in entries for name in expand(e["name"]))
    header, at = {}, 0
    for name, e in tensors:
        n = size[e["dtype"]]
        for s in e["shape"]:
            n *= s
        header[name] = {"dtype": e["dtype"], "shape": e["shape"], "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    r, blocks = random.Random(1), {}
    with open(path, "wb", buffering=1 << 20) as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, e in tensors:
            key = (e["dtype"], e["fill"])
            if key not in blocks:
                blocks[key] = memoryview(block_of(*key, r))
            begin, left = r.randrange(BLOCK // 256) * 256, header[name]["data_offsets"][1] - header[name]["data_offsets"][0]
            while left > 0:
                piece = blocks[key][begin:begin + left]
                f.write(piece)
                left -= len(piece)
                begin = 0


def main():
    a = arguments()
    config = configuration(a.layers, a.experts)
    entries, part = describe(config, a.expert_bits)
    os.makedirs(a.out, exist_ok=True)
    with open(os.path.join(a.out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
    floor = floors(config, part)
    whole = configuration(40, a.experts)
    floor["layers"] = a.layers
    floor["full"] = {"layers": 40, **floors(whole, describe(whole, a.expert_bits)[1])}
    with open(os.path.join(a.out, "synthetic.json"), "w", encoding="utf-8") as f:
        json.dump({"bytes": floor, "tensors": entries}, f, indent=0)
    shutil.copyfile(a.tokenizer, os.path.join(a.out, "tokenizer.json"))
    engram_files(config, a.out)
    if a.values:
        write_values(entries, os.path.join(a.out, "model.safetensors"))
    weights = (sum(part[k] for k in ("attention", "mixing", "router", "shared", "engram", "head", "draft"))
               + a.layers * a.experts * part["expert"]
               + config["text_config"]["num_nextn_predict_layers"]
               * config["text_config"]["dspark_n_routed_experts"] * part["draft_expert"])
    print(f"{a.out}: {a.layers} layers, {a.experts} experts of {a.expert_bits:g} bits, {weights / 2**30:.1f} GiB of weights; "
          f"a row reads {floor['window']['1'] / 1e9:.2f} GB, a draft pass {floor['draft'] / 1e9:.2f} GB")


if __name__ == "__main__":
    sys.exit(main())
