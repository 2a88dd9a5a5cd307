#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What goes wrong around a running `tenon serve`: clients that die, overload, signals, short memory, a damaged table,
kept state on disk.

    serving_faults.py TENON PROFILE [NAME ...]        NAME = only these checks

PROFILE is profiles/mini.toml: its tables are copied, then cut while the server reads them. Needs Python alone. Ends with
1 if a check failed.
"""
import collections
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

TENON, PROFILE = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
ONLY = sys.argv[3:]
FAILED = []
CODES = {"ok": 0, "data": 5, "fit": 4, "internal": 70}


def check(name, condition, detail=""):
    print(f"{'ok  ' if condition else 'FAIL'} {name}" + (f": {detail}" if detail else ""), flush=True)
    if not condition:
        FAILED.append(name)


class Server:
    """`tenon serve` on a free port; `log` is what it wrote to standard error."""

    def __init__(self, folder, *sets, key=None, under=()):
        self.log = pathlib.Path(folder) / "stderr.txt"
        self.key = key
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        options = [f'frontend.0.bind="127.0.0.1:{self.port}"', *sets]
        self.process = subprocess.Popen([*under, TENON, "serve", str(PROFILE), *[a for s in options for a in ("--set", s)]],
                                        stderr=open(self.log, "w"))

    def wait_ready(self):
        for _ in range(1200):
            if self.process.poll() is not None:
                return False
            with contextlib.suppress(OSError):
                if self.get("/health").status == 200:
                    return True
            time.sleep(0.1)
        return False

    def request(self, method, path, body=None, timeout=240):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        connection.request(method, path, json.dumps(body) if body else None, headers)
        return connection.getresponse()

    def get(self, path):
        return self.request("GET", path)

    def health(self):
        return json.load(self.get("/health"))

    def metric(self, name, label=""):
        text = self.get("/metrics").read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                   if re.match(rf"tenon_{name}(\{{|\s)", line) and label in line)

    def chat(self, text="What is 17 plus 25?", stream=False, **more):
        body = {"model": "mini", "messages": [{"role": "user", "content": text}], "temperature": 0, "stream": stream,
                **more}
        return self.request("POST", "/v1/chat/completions", body)

    def wait_idle(self, seconds=60):
        for _ in range(seconds * 10):
            health = self.health()
            if health["requests_running"] + health["requests_waiting"] == 0:
                return True
            time.sleep(0.1)
        return False

    def answers(self):
        reply = self.chat(max_tokens=200)
        body = json.load(reply)
        return reply.status == 200 and "42" in (body["choices"][0]["message"]["content"] or "")

    def wait_running(self):
        for _ in range(3000):
            if self.health()["requests_running"] > 0:
                return True
            time.sleep(0.01)
        return False

    def end(self, signal_number=signal.SIGTERM):
        self.process.send_signal(signal_number)
        return self.process.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def events(response):
    """Objects of a stream until its end."""
    found = []
    with contextlib.suppress(http.client.HTTPException, OSError):
        for line in response:
            if line.startswith(b"data: ") and b"[DONE]" not in line:
                found.append(json.loads(line[6:]))
    return found


def outcome(found):
    """"stop", "length", or the code of the error event; "" if the stream has neither."""
    for event in found:
        if "error" in event:
            return event["error"]["code"]
        for choice in event.get("choices", []):
            if choice.get("finish_reason"):
                return choice["finish_reason"]
    return ""


class Stream(threading.Thread):
    """A streamed reply read in the background."""

    def __init__(self, server, text, **more):
        super().__init__(daemon=True)
        self.server, self.text, self.more, self.result = server, text, more, "none"
        self.start()

    def run(self):
        try:
            response = self.server.chat(self.text, stream=True, **self.more)
            self.result = outcome(events(response)) if response.status == 200 else str(response.status)
        except OSError as e:
            self.result = type(e).__name__


LONG = {"max_tokens": 6000, "ignore_eos": True}
COUNT = "Count from 1 to 30."

DYING = """
import http.client, json, sys, time
c = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
c.request("POST", "/v1/chat/completions", sys.argv[2], {"Content-Type": "application/json"})
r = c.getresponse()
print(r.status, flush=True)
r.fp.readline()
print("reads", flush=True)
time.sleep(600)
"""


def killed_clients(folder):
    """Clients that are killed while they read: each is counted, its slot is free at once, nobody else notices."""
    with Server(folder) as server:
        assert server.wait_ready(), server.log.read_text()
        body = json.dumps({"model": "mini", "messages": [{"role": "user", "content": COUNT}], "stream": True, **LONG})
        dying = [subprocess.Popen([sys.executable, "-c", DYING, str(server.port), body], stdout=subprocess.PIPE)
                 for _ in range(3)]
        for d in dying:
            d.stdout.readline()
            d.stdout.readline()
        beside = Stream(server, COUNT, max_tokens=60)
        for d in dying:
            d.kill()
            d.wait()
        beside.join(120)
        check("a stream beside killed clients ends", beside.result in ("stop", "length"), beside.result)
        check("slots of killed clients are free", server.wait_idle())
        gone = server.metric("client_disconnections_total")
        check("each killed client is counted", gone == 3, str(gone))
        check("the next request is right", server.answers())


def overload(folder):
    """64 connections at once against 4 slots and a queue of 8: each gets a reply or a refusal, none is lost."""
    with Server(folder, "engine.max_queued=8") as server:
        assert server.wait_ready(), server.log.read_text()
        counts, retry, lock = collections.Counter(), [], threading.Lock()

        def one(index):
            try:
                reply = server.chat(f"{COUNT} {index}", max_tokens=30, ignore_eos=True)
                body = json.load(reply)
                with lock:
                    counts[reply.status] += 1
                    if reply.status in (429, 503):
                        retry.append(reply.getheader("Retry-After"))
                    elif reply.status == 200 and not body["choices"][0]["finish_reason"]:
                        counts["no finish"] += 1
            except (OSError, ValueError, http.client.HTTPException) as e:
                with lock:
                    counts[type(e).__name__] += 1

        threads = [threading.Thread(target=one, args=(i,)) for i in range(64)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        lost = {k: n for k, n in counts.items() if k not in (200, 429, 503)}
        check("each of 64 requests has an answer", sum(counts.values()) == 64 and not lost, str(dict(counts)))
        check("as many as there are places were served", counts[200] >= 12, str(counts[200]))
        check("some were refused, before any 200", counts[429] > 0, str(counts[429]))
        check("each refusal says when to come back", all(r and 1 <= int(r) <= 60 for r in retry), str(retry[:3]))
        complete = server.metric("requests_total", 'outcome="ok"')
        check("metrics count the same replies", complete == counts[200], f"{complete} of {counts[200]}")
        check("idle afterwards", server.wait_idle() and server.answers())


def signals(folder):
    """SIGHUP, SIGTERM while a prompt is computed, a second SIGTERM."""
    keys, log = pathlib.Path(folder) / "keys", pathlib.Path(folder) / "log.json"
    keys.write_text("a: first-key-0123456789\n")
    keys.chmod(0o600)
    with Server(folder, f'log.file="{log}"', f'frontend.0.api_key_file="{keys}"', 'engine.drain="60 s"',
                key="first-key-0123456789") as server:
        assert server.wait_ready(), server.log.read_text()
        log.rename(log.with_suffix(".1"))
        keys.write_text("b: second-key-0123456789\n")
        server.process.send_signal(signal.SIGHUP)
        for _ in range(100):
            if log.exists() and "reopened" in log.read_text():
                break
            time.sleep(0.1)
        check("SIGHUP reopens the log", log.exists() and "reopened" in log.read_text())
        time.sleep(1.1)  # the file is looked at once a second
        status = server.chat(max_tokens=1).status
        check("the key that went is refused", status == 401, str(status))
        server.key = "second-key-0123456789"
        check("the key that came is taken", server.answers())
        running = Stream(server, COUNT, **LONG)
        check("a reply runs", server.wait_running())
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        check("a first SIGTERM lets replies go on", running.result == "none", running.result)
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(30)
        running.join(10)
        check("a second SIGTERM ends them, with a reason", running.result == "shutdown", running.result)
        check("and the process, before its drain is over", code == 0 and time.monotonic() - begun < 25, str(code))
    with Server(folder, 'engine.drain="1 s"', "engine.chunk_rows=64") as server:
        assert server.wait_ready(), server.log.read_text()
        prompt = Stream(server, "red blue green " * 1200, max_tokens=100)
        check("a prompt is computed", server.wait_running(), prompt.result)
        code = server.end()
        prompt.join(10)
        check("SIGTERM while a prompt is computed ends with a reason or the reply",
              prompt.result in ("shutdown", "stop", "length"), prompt.result)
        check("and code 0", code == 0, str(code))


class Meminfo:
    """A /proc/meminfo of our own in the mount namespace of a server; MemAvailable as the test says."""

    def __init__(self, folder):
        self.file = pathlib.Path(folder) / "meminfo"
        self.file.write_text("")
        self.available(20_000)
        self.under = None
        for unshare in (["unshare", "-m"], ["unshare", "-r", "-m"]):
            under = [*unshare, "sh", "-c", 'mount --bind "$0" /proc/meminfo && exec "$@"', str(self.file)]
            with contextlib.suppress(OSError):
                if subprocess.run([*under, "true"], capture_output=True).returncode == 0:
                    self.under = under
                    break

    def available(self, mebibytes):
        with open(self.file, "r+") as f:  # in place and of one length: the bound file is this inode
            f.write(f"MemAvailable: {mebibytes * 1024:>12} kB\n")
        time.sleep(0.8)  # three readings


def memory(folder):
    """The guard at the start, and each level of MemAvailable (reserve 256, soft 128, hard 64, last 32 MiB)."""
    with Server(folder, 'memory.min_available="800 TiB"') as server:
        code = server.process.wait(60)
        check("the start guard ends with 4", code == CODES["fit"], str(code))
        check("and says what is missing", "min_available" in server.log.read_text())
    meminfo = Meminfo(folder)
    if meminfo.under is None:
        print("left out: the levels; this machine lets nobody bind a file in a mount namespace")
        return
    with Server(folder, under=meminfo.under) as server:
        assert server.wait_ready(), server.log.read_text()
        running = Stream(server, COUNT, **LONG)
        check("a reply runs", server.wait_running())
        meminfo.available(100)
        reply = server.chat(max_tokens=5)
        body = json.load(reply)
        check("below soft: 503 with Retry-After", reply.status == 503 and reply.getheader("Retry-After"), str(body))
        meminfo.available(50)
        text = server.log.read_text()
        check("below hard, taken by others: their names", "has not grown" in text and "others: " in text, text[-300:])
        check("and the reply goes on", running.result == "none", running.result)
        meminfo.available(20_000)
        check("enough again: served again", server.answers())
        meminfo.available(20)
        code = server.process.wait(30)
        running.join(10)
        check("below last: 70", code == CODES["internal"], str(code))
        check("and streams are told", running.result == "memory", running.result)
        check("and the log says so", "memory.last" in server.log.read_text())


def tables(folder):
    """The table of an Engram layer becomes short while the server runs, then whole again; and is missing at the start."""
    source = PROFILE.parent / ".." / "models" / "tenon-mini" / "engram"
    copy = pathlib.Path(folder) / "engram"
    shutil.copytree(source, copy)
    table = max(copy.iterdir(), key=lambda p: p.stat().st_size)
    whole = table.read_bytes()
    with Server(folder, f'engram.dir="{copy}"', 'engram.in_memory=0') as server:
        assert server.wait_ready(), server.log.read_text()
        check("the copied table serves", server.answers())
        os.truncate(table, 65536)
        hurt = Stream(server, "What is 26 plus 31? And Tell me a story.", max_tokens=60)
        hurt.join(120)
        check("short reads end the request with `storage`", hurt.result == "storage", hurt.result)
        check("the process lives", server.process.poll() is None and server.health()["requests_running"] == 0)
        with open(table, "r+b") as f:
            f.write(whole)
        check("the next request is right", server.answers())
        failures = server.metric("requests_total", 'outcome="storage"')
        check("the failure is counted", failures == 1, str(failures))
        check("and it ends with 0", server.end() == 0)
    os.truncate(table, len(whole) // 2)
    with Server(folder, f'engram.dir="{copy}"') as server:
        code = server.process.wait(60)
        check("missing rows at the start: 5", code == CODES["data"], str(code))
        check("the file is named", table.name in server.log.read_text(), server.log.read_text()[-300:])


def disk(folder):
    """Kept state on disk: over a restart, over SIGKILL while it is written, foreign and torn files, a folder in use."""
    kept = pathlib.Path(folder) / "kept"
    kept.mkdir()
    option = f'kv_spill.dir="{kept}"'
    first = {"role": "user", "content": "Name a colour. " * 60}

    def ask(server, *messages):
        body = json.load(server.request("POST", "/v1/chat/completions", {
            "model": "mini", "messages": list(messages), "temperature": 0, "max_tokens": 24, "ignore_eos": True}))
        return body["choices"][0]["message"], body["usage"]

    def visible(message):
        return {k: v for k, v in message.items() if v and k in ("role", "content", "reasoning_content")}

    with Server(folder) as server:  # what is right: no disk tier
        assert server.wait_ready(), server.log.read_text()
        reply, usage = ask(server, first)
        second = [first, visible(reply), {"role": "user", "content": "And one more?"}]
        right, _ = ask(server, *second)
        check("nothing was kept for the first turn", usage["prompt_tokens_details"]["cached_tokens"] == 0, str(usage))
    with Server(folder, option) as server:
        assert server.wait_ready(), server.log.read_text()
        check("the first turn is the same with a disk tier", ask(server, first)[0] == reply)
        with Server(kept, option) as other:
            code = other.process.wait(60)
            check("a second process on the folder: 2", code == 2, str(code))
        check("a running server ends with 0", server.end() == 0, server.log.read_text()[-300:])
    files = list(kept.glob("*.tnkv"))
    check("files were written at shutdown", files)
    (kept / "ffff.tnkv").write_bytes(b"TNKV" + bytes(9000))
    (kept / "half.tnkv.tmp").write_bytes(bytes(100))
    with Server(folder, option) as server:
        assert server.wait_ready(), server.log.read_text()
        check("foreign and torn files went", not (kept / "ffff.tnkv").exists() and not list(kept.glob("*.tmp")))
        got, usage = ask(server, *second)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        check("the second turn goes on from disk", cached > 300 and server.metric("kv_spill_hits_total") == 1, str(usage))
        check("with the same reply", got == right, f"{got} against {right}")
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.02)  # the new cuts are being written, or are about to be
        server.end(signal.SIGKILL)
    with Server(folder, option) as server:
        assert server.wait_ready(), server.log.read_text()
        got, usage = ask(server, *second)
        check("after SIGKILL the reply is the same", got == right, f"{got} against {right}")
        check("and nothing half-written is left", not list(kept.glob("*.tmp")))


for step in (killed_clients, overload, signals, memory, tables, disk):
    if not ONLY or step.__name__ in ONLY:
        print(f"== {step.__name__}: {step.__doc__}", flush=True)
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as name:
            step(name)
        print(f"   {time.monotonic() - begin:.1f} s", flush=True)
print("all well" if not FAILED else f"failed: {', '.join(FAILED)}")
sys.exit(1 if FAILED else 0)
