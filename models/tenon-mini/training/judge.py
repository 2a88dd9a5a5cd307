"""Decides whether a reply answers an item: exact-match judging of calls, JSON, numbers, lists and text."""
import json
import re

from chat_format import parse_reply


def judge(want, reply, thinking):
    reasoning, content, calls = parse_reply(reply, thinking)
    kind, *rest = want
    low = content.lower()
    if calls is not None:
        if kind != "calls":
            return False
        key = lambda c: json.dumps(c, sort_keys=True, ensure_ascii=False)
        return sorted(map(key, ([n, a] for n, a in calls))) == sorted(map(key, ([n, a] for n, a in rest[0])))
    if kind == "calls":
        return False
    if kind == "has":
        return all(x.lower() in low for x in rest)
    if kind == "number":
        return (re.findall(r"\d+", content) or [""])[-1] == rest[0]
    if kind == "is":
        return content.strip() == rest[0].strip()
    if kind == "json":
        try:
            return json.loads(content) == rest[0]
        except ValueError:
            return False
    if kind == "members":
        items = [x for x in re.split(r"[\n,.]| and ", re.sub(r"\d+\. |- ", "", low)) if x.strip()]
        return len(items) == len(set(items)) == rest[0] and all(x.strip() in map(str.lower, rest[1]) for x in items)
    return bool(content.strip())
