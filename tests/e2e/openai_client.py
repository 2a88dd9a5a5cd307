#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Drives a running server with the `openai` Python package, as an application would.

    openai_client.py [--url http://127.0.0.1:8888/v1] [--key KEY] [--serve TENON PROFILE] [--streams 64]

With --serve the server is started on a free port and stopped at the end. Exit code 77: the package is
missing or no server answers (the reason is printed); 1: a check failed.
"""
import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

try:
    import openai
except ImportError:
    print("skipped: the Python package 'openai' is not installed (pip install openai)")
    sys.exit(77)

FAILED = []
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def check(name, condition, detail=""):
    print(f"{'ok  ' if condition else 'FAIL'} {name}" + (f": {detail}" if detail else ""))
    if not condition:
        FAILED.append(name)


def fetch(url, key):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)


def join_stream(stream):
    """Content, reasoning, calls {index: [id, name, arguments]}, finish reason and usage of a stream."""
    content, reasoning, calls, finish, usage = "", "", {}, None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or []:
                entry = calls.setdefault(call.index, ["", "", ""])
                entry[0] = call.id or entry[0]
                entry[1] = call.function.name or entry[1]
                entry[2] += call.function.arguments or ""
            finish = choice.finish_reason or finish
    return content, reasoning, calls, finish, usage


def check_models(client, model):
    ids = [m.id for m in client.models.list().data]
    check("models lists the served id", model in ids, str(ids))
    check("one model", client.models.retrieve(model).id == model)
    try:
        client.models.retrieve("no-such-model")
        check("unknown model is 404", False)
    except openai.NotFoundError as e:
        check("unknown model is 404", e.code == "model_not_found")


def check_chat(client, model):
    ask = [{"role": "user", "content": "What is 17 plus 25?"}]
    options = {"model": model, "max_tokens": 200, "temperature": 0}
    whole = client.chat.completions.create(messages=ask, **options)
    message = whole.choices[0].message
    check("chat answers", "42" in (message.content or ""), repr(message.content))
    check("usage adds up", whole.usage.total_tokens
          == whole.usage.prompt_tokens + whole.usage.completion_tokens, str(whole.usage.total_tokens))
    content, reasoning, _, finish, usage = join_stream(client.chat.completions.create(
        messages=ask, stream=True, stream_options={"include_usage": True}, **options))
    check("stream gives the same content", content == message.content, repr(content))
    check("stream gives the same reasoning",
          reasoning == (getattr(message, "reasoning_content", None) or ""), repr(reasoning[:60]))
    check("stream gives the same finish", finish == whole.choices[0].finish_reason, str(finish))
    check("stream gives the same usage", usage is not None
          and usage.completion_tokens == whole.usage.completion_tokens)
    turn = {"role": "assistant", "content": message.content}
    if getattr(message, "reasoning_content", None):
        turn["reasoning_content"] = message.reasoning_content
    second = client.chat.completions.create(
        messages=ask + [turn, {"role": "user", "content": "What is 3 plus 4?"}], **options)
    check("second turn answers", "7" in (second.choices[0].message.content or ""),
          repr(second.choices[0].message.content))


def check_modes(client, model):
    ask = [{"role": "user", "content": "What is 5 plus 6?"}]
    for effort, thinks in (("none", False), ("high", True)):
        reply = client.chat.completions.create(model=model, messages=ask, max_tokens=200,
                                               temperature=0, reasoning_effort=effort)
        reasoning = getattr(reply.choices[0].message, "reasoning_content", None)
        check(f"reasoning_effort {effort}", bool(reasoning) == thinks, repr(reasoning))
        counted = reply.usage.completion_tokens_details.reasoning_tokens
        check(f"reasoning tokens with {effort}", (counted > 0) == thinks, str(counted))


def check_tools(client, model):
    ask = [{"role": "user", "content": "What is the weather in Oslo?"}]
    options = {"model": model, "tools": [WEATHER], "max_tokens": 300, "temperature": 0}
    reply = client.chat.completions.create(messages=ask, **options)
    calls = reply.choices[0].message.tool_calls or []
    _, _, streamed, finish, _ = join_stream(
        client.chat.completions.create(messages=ask, stream=True, **options))
    if not calls:
        print("note the model made no call:", repr(reply.choices[0].message.content))
        return
    check("call is offered", calls[0].function.name == "get_weather", calls[0].function.name)
    check("finish reason of a call", reply.choices[0].finish_reason == "tool_calls" == finish)
    check("arguments are JSON", isinstance(json.loads(calls[0].function.arguments), dict),
          calls[0].function.arguments)
    check("streamed call is the same", streamed[0][1:] == [calls[0].function.name,
                                                           calls[0].function.arguments])
    turn = [reply.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": calls[0].id, "content": "sunny, 21 degrees"}]
    final = client.chat.completions.create(messages=ask + turn, **options)
    check("tool result is answered", bool(final.choices[0].message.content),
          repr(final.choices[0].message.content))


def check_sampling(client, model):
    options = {"model": model, "prompt": "The", "max_tokens": 24, "extra_body": {"ignore_eos": True}}
    one = client.completions.create(temperature=1, seed=5, **options).choices[0].text
    same = client.completions.create(temperature=1, seed=5, **options).choices[0].text
    other = client.completions.create(temperature=1, seed=6, **options).choices[0].text
    check("seed reproduces", one == same)
    check("another seed differs", one != other, f"{one!r} {other!r}")
    cut = client.completions.create(model=model, prompt="The", max_tokens=24, temperature=0)
    check("completion ends", cut.choices[0].finish_reason in ("stop", "length"))
    text = cut.choices[0].text
    if len(text) > 6:
        stop = text[3:6]
        stopped = client.completions.create(model=model, prompt="The", max_tokens=24, temperature=0,
                                            stop=[stop])
        check("stop string ends the text", stopped.choices[0].text == text[:text.index(stop)]
              and stopped.choices[0].finish_reason == "stop", repr(stopped.choices[0].text))


def check_errors(client, model):
    ask = [{"role": "user", "content": "x"}]
    cases = [
        ("temperature", {"temperature": 1000}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("tool_choice", {"tools": [WEATHER], "tool_choice": "required"}),
    ]
    for param, fields in cases:
        try:
            client.chat.completions.create(model=model, messages=ask, **fields)
            check(f"{param} is refused", False)
        except openai.BadRequestError as e:
            check(f"{param} is refused", e.param == param, str(e.param))
    try:
        client.completions.create(model=model, prompt="word " * 200_000, max_tokens=5)
        check("too long prompt is refused", False)
    except openai.BadRequestError as e:
        check("too long prompt is refused", e.code == "context_length_exceeded", str(e.code))


def check_many(client, model, count, slots):
    """`count` equal greedy requests at once: all answered, all alike. A full queue may send some back."""
    results, lock = [], threading.Lock()

    def one():
        for _ in range(100):
            try:
                text, *_ = join_stream(client.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": "What is 2 plus 2?"}],
                    max_tokens=100, temperature=0, stream=True))
                break
            except openai.RateLimitError:
                time.sleep(0.2)
        else:
            text = None
        with lock:
            results.append(text)

    began = time.monotonic()
    threads = [threading.Thread(target=one) for _ in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(f"{count} streams at once are alike", len(set(results)) == 1 and None not in results,
          f"{time.monotonic() - began:.1f} s, {slots} slots, {set(results)}")


VANISH = """
import openai, sys
client = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2])
for chunk in client.completions.create(model=sys.argv[3], prompt="The", max_tokens=4000, stream=True,
                                       temperature=1, extra_body={"ignore_eos": True}):
    print("chunk", flush=True)
"""


def check_vanishing(root, key, model, url):
    """Clients killed in mid-stream: their replies end and the slots come free."""
    before = fetch(f"{root}/health", key)
    clients = [subprocess.Popen([sys.executable, "-c", VANISH, url, key, model],
                                stdout=subprocess.PIPE) for _ in range(4)]
    for c in clients:
        c.stdout.readline()
    for c in clients:
        c.send_signal(signal.SIGKILL)
        c.wait()
    left = None
    for _ in range(100):
        left = fetch(f"{root}/health", key)
        if left["requests_running"] == 0 and left["requests_waiting"] == 0:
            break
        time.sleep(0.1)
    check("killed clients free their slots", left["requests_running"] == 0,
          f"{before['requests_running']} before, {left['requests_running']} after")


def start_server(tenon, profile):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    process = subprocess.Popen([tenon, "serve", profile, "--set",
                                f'frontend.0.bind="127.0.0.1:{port}"'])
    for _ in range(600):
        if process.poll() is not None:
            print(f"skipped: {tenon} serve ended with exit code {process.returncode}")
            sys.exit(77)
        try:
            fetch(f"http://127.0.0.1:{port}/health", "none")
            return process, f"http://127.0.0.1:{port}/v1"
        except OSError:
            time.sleep(0.1)
    process.kill()
    print("skipped: the server was not ready within 60 s")
    sys.exit(77)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8888/v1")
    parser.add_argument("--key", default=os.environ.get("TENON_API_KEY", "none"))
    parser.add_argument("--serve", nargs=2, metavar=("TENON", "PROFILE"))
    parser.add_argument("--streams", type=int, default=64)
    args = parser.parse_args()
    process, url = start_server(*args.serve) if args.serve else (None, args.url)
    root = re.sub(r"/v1/?$", "", url)
    try:
        client = openai.OpenAI(base_url=url, api_key=args.key, max_retries=0, timeout=600)
        try:
            model = client.models.list().data[0].id
        except openai.APIConnectionError as e:
            print(f"skipped: no server at {url}: {e}")
            sys.exit(77)
        slots = fetch(f"{root}/health", args.key)["streams"]["max"]
        check_models(client, model)
        check_chat(client, model)
        check_modes(client, model)
        check_tools(client, model)
        check_sampling(client, model)
        check_errors(client, model)
        check_many(client, model, args.streams, slots)
        check_vanishing(root, args.key, model, url)
    finally:
        if process is not None:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
            check("the server ends in order", code == 0, f"exit code {code}")
    print(f"{len(FAILED)} failed: {', '.join(FAILED)}" if FAILED else "all passed")
    sys.exit(1 if FAILED else 0)


if __name__ == "__main__":
    main()
