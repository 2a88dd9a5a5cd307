#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What `tenon` says and how it ends when it is called wrongly or a machine lets it down.

    cli_errors.py TENON REPOSITORY

Each case gives arguments, the exit code and a part of the message. Needs Python alone; ends with 1
and the cases that differ.
"""
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading

TENON, ROOT = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
MODEL, PROFILE = ROOT / "models/tenon-mini", ROOT / "profiles/mini.toml"
WQ_A = ["inspect", MODEL, "--tensor", "layers.0.attn.wq_a", "--out"]
failures = 0


def expect(args, code, part, **streams):
    """Runs a verb; `part` must be in what it says on either stream, "" matches anything."""
    global failures
    streams.setdefault("stdin", subprocess.DEVNULL)
    if "input" in streams:
        streams.pop("stdin")
    streams.setdefault("stdout", subprocess.PIPE)
    try:
        done = subprocess.run([TENON, *map(str, args)], stderr=subprocess.PIPE, timeout=120, **streams)
        found, said = done.returncode, ((done.stdout or b"") + done.stderr).decode(errors="replace")
    except subprocess.TimeoutExpired:
        found, said = "none within 120 s", ""
    if found != code or part not in said or "exception" in said.lower():
        failures += 1
        print(f"tenon {' '.join(map(str, args))}\n  expected {code}: {part}\n  found    {found}: {said[:300]}")


def close_streams(*numbers):
    return lambda: [os.close(n) for n in numbers]


def check_output():
    for args in (["plugins"], ["completion", "bash"], ["inspect", MODEL], ["--help"]):
        with open("/dev/full", "wb") as full:
            expect(args, 5, "standard output could not be written", stdout=full)
    expect(["plugins"], 5, "standard output could not be written", preexec_fn=close_streams(1))
    reader, writer = os.pipe()
    os.close(reader)
    expect(["plugins"], 0, "", stdout=writer)  # as before `| head`: the reader has seen enough
    os.close(writer)


def check_streams(folder):
    expect(["tokenize", "--checkpoint", MODEL], 5, "standard input cannot be read",
           stdin=os.open(folder, os.O_RDONLY))
    expect(["tokenize", "--checkpoint", MODEL], 5, "standard input cannot be read",
           preexec_fn=close_streams(0))
    expect(["tokenize", "--checkpoint", MODEL], 0, "not JSON: parse error", input=b"{\n")
    expect(["parse", "--checkpoint", MODEL], 0, "a string 'text' or a list 'ids'", input=b"{}\n")


def check_files(folder):
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    expect(["inspect", MODEL, "--extra", pipe], 5, "is not a regular file")
    ids, empty, out = folder / "ids", folder / "empty", folder / "logits"
    ids.write_text('{"ids": [1, 2]}\n')
    empty.write_text("\n")
    expect(["score", PROFILE, "--ids", folder, "--logits", out], 5, "cannot be read: Is a directory")
    expect(["score", PROFILE, "--ids", empty, "--logits", out], 2, "holds no line")
    expect(["score", PROFILE, "--ids", ids, "--logits", ids], 2, "is the file of --ids")
    expect(["score", PROFILE, "--ids", ids, "--logits", out], 5, "standard output could not be written",
           preexec_fn=close_streams(0, 1))
    expect([*WQ_A, "/dev/full"], 5, "could not be written")
    # A file that cannot be finished leaves the old one as it was, and nothing beside it.
    for args, size in [([*WQ_A, out], 1000), (["score", PROFILE, "--ids", ids, "--logits", out], 4000)]:
        out.write_text("old")
        expect(args, 5, "could not be written: File too large", preexec_fn=limit_files(size))
        if out.read_text() != "old" or list(folder.glob("*.partial")):
            expect([f"{args[0]}: {os.listdir(folder)}"], 0, "the old file alone")
    link = folder / "link"
    link.symlink_to(out)
    expect([*WQ_A, link], 0, "f32")
    if not link.is_symlink() or out.stat().st_size < 1000:
        expect(["inspect --out through a link"], 0, "the file behind it")


def limit_files(size):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return limit


def check_records(folder):
    record = folder / "record"
    record.mkdir()
    expect(["replay", folder / "none"], 2, "is it a folder of `serve --record`?")
    for text in ("", "{}", '{"version": "1", "profile": "a", "set": [], "profile_digest": "b"}',
                 '{"version": 1, "profile": "a", "set": [], "profile_digest": 7}'):
        (record / "manifest.json").write_text(text)
        expect(["replay", record], 5, "not the manifest of a record")
    manifest = {"version": 1, "profile": str(PROFILE), "set": [], "profile_digest": "?"}
    (record / "manifest.json").write_text(json.dumps(manifest))
    expect(["replay", record], 2, "recorded with the profile digest ?")
    said = subprocess.run([TENON, "replay", record], stderr=subprocess.PIPE, timeout=120).stderr.decode()
    manifest["profile_digest"] = re.search(r" has (\w+) now", said)[1]
    (record / "manifest.json").write_text(json.dumps(manifest))
    (record / "steps.tnr").write_bytes(b"not a record at all")
    expect(["replay", record], 5, "steps.tnr: not a record of version")


def chat_with(stream, code, part, **streams):
    """chat against a server that answers one request with `stream`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer():
            with server.accept()[0] as client:
                client.recv(65536)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + stream)

        thread = threading.Thread(target=answer)
        thread.start()
        expect(["chat", f"http://127.0.0.1:{server.getsockname()[1]}", "--once", "a"], code, part, **streams)
        thread.join()


def check_chat():
    chat_with(b'data: {"choices": [\n\ndata: [DONE]\n\n', 5, "no JSON object")
    chat_with(b'data: {"choices": [5]}\n\ndata: {"error": {"message": 5}}\n\n', 70, '"message": 5')
    content = b'data: {"choices": [{"delta": {"content": "a\\u001b[2J\\u009bb\\u0000c"}}]}\n\ndata: [DONE]\n\n'
    chat_with(content, 0, "a\x1b[2J\u009bb\0c")
    terminal, end = os.openpty()
    chat_with(content, 0, "", stdout=end)
    shown = os.read(terminal, 1000)
    if shown != b"a\\x1b[2J\\x9bb\\x00c\r\n":
        expect([f"chat: a terminal got {shown}"], 0, "no control characters")


def check_arguments(folder):
    expect(["chat", "http://127.0.0.1:99999", "--once", "a"], 2, "port 99999 is out of range")
    expect(["chat", "http://127.0.0.1:1", "--once", "a", "--set", "a=b"], 2, "changes a profile")
    expect(["chat", PROFILE, "--thinking", "--no-thinking"], 2, "excludes")
    expect(["plugin", "new"], 2, "(see tenon plugin new --help)")
    expect(["check", PROFILE, "--set", "model.context_tokens=1"], 2, "is out of range 2…8192")
    expect(["check", PROFILE, "--set", "base=other.toml"], 2, "--set base=other.toml: overrides come after")
    for args in (["serve", PROFILE, "--record"], ["replay", "x", "--profile"], ["bench", PROFILE, "--synthetic"]):
        expect([*args, ""], 2, 'needs a name, found ""')
    keys = folder / "keys"
    keys.write_text("me: secret\n")
    keys.chmod(0o644)
    expect(["serve", PROFILE, "--set", f"frontend.api_key_file={keys}", "--set", "model.checkpoint=/none"], 2,
           "mode 0644 lets others read it")  # before the model is looked at
    expect(["check", PROFILE, "--strict", "--set", f"frontend.api_key_file={keys}"], 2, "mode 0644")
    expect(["check", PROFILE, "--strict", "--set", "frontend.api_key_file=/none"], 5, "/none does not exist")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        expect(["serve", PROFILE, "--set", f"frontend.bind={address}"], 2, "is another server running there?")
        expect(["serve", PROFILE, "--set", f"frontend.bind={address}", "--set", "log.file=/dev/full"], 2,
               "log.file /dev/full: could not be written: No space left on device; lines are lost")


with tempfile.TemporaryDirectory() as name:
    check_output()
    check_streams(pathlib.Path(name))
    check_files(pathlib.Path(name))
    check_records(pathlib.Path(name))
    check_arguments(pathlib.Path(name))
    check_chat()
print(f"{failures} cases differ")
sys.exit(failures != 0)
