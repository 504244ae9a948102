"""An MCP server of the handshake era without the SDK: it starts at once, and can misbehave as no SDK lets it.

Arguments are the names of the tools to offer; without any it offers all that it knows.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

NOTES = os.environ.get("NOTES")


def note(text: str) -> None:
    if NOTES:
        with open(NOTES, "a", encoding="utf-8") as file:
            file.write(text + "\n")


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def echo(arguments: dict[str, Any]) -> dict[str, Any]:
    return text(json.dumps(arguments))


def plain(arguments: dict[str, Any]) -> dict[str, Any]:
    return text("not {JSON")


def pid(arguments: dict[str, Any]) -> dict[str, Any]:
    return text(str(os.getpid()))


def where(arguments: dict[str, Any]) -> dict[str, Any]:
    return text(json.dumps({"cwd": os.getcwd(), "argv": sys.argv[1:], "env": dict(os.environ)}))


def fail(arguments: dict[str, Any]) -> dict[str, Any]:
    return {**text("the disk is made of cheese"), "isError": True}


def chatter(arguments: dict[str, Any]) -> dict[str, Any]:
    sys.stdout.write("oh, this was for the terminal\n")
    sys.stderr.write("and this for the log\n")
    return text("said")


def huge(arguments: dict[str, Any]) -> dict[str, Any]:
    return text("x" * (2 << 20))


def flood(arguments: dict[str, Any]) -> dict[str, Any]:
    for _ in range(5000):
        sys.stdout.write('{"jsonrpc": "2.0", "method": "notifications/nothing"}\n')
    return text("done")


def plug(arguments: dict[str, Any]) -> dict[str, Any]:
    os.close(sys.stdin.fileno())
    return text("plugged")


def die(arguments: dict[str, Any]) -> dict[str, Any]:
    sys.exit("out of cheese")


def silent(arguments: dict[str, Any]) -> None:
    note("asked")


def broken(arguments: dict[str, Any]) -> None:
    raise NotImplementedError


def deaf(arguments: dict[str, Any]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("deaf")
    while True:
        time.sleep(60)


TOOLS: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    tool.__name__: tool
    for tool in (echo, plain, pid, where, fail, chatter, huge, flood, plug, die, silent, broken, deaf)
}


def listed() -> dict[str, Any]:
    names = [name for name in TOOLS if name in sys.argv[1:] or not sys.argv[1:]]
    return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}


def answer(request: dict[str, Any]) -> dict[str, Any] | None:
    parameters = request.get("params", {})
    match request["method"]:
        case "initialize":
            about = {"serverInfo": {"name": "plain", "version": "1"}, "capabilities": {"tools": {}}}
            return {"result": {"protocolVersion": "2025-06-18", **about}}
        case "tools/list":
            note("listed")
            return {"result": listed()}
        case "tools/call" if parameters["name"] == "broken":
            return {"error": {"code": -32000, "message": "the cheese rolled away"}}
        case "tools/call":
            result = TOOLS[parameters["name"]](parameters.get("arguments") or {})
            return None if result is None else {"result": result}
    return {"error": {"code": -32601, "message": "Method not found"}}


note(f"started {os.getpid()}")
if os.environ.get("STARTS") == "never":
    sys.exit("no cheese, no service")
if os.environ.get("STARTS") == "silently":
    deaf({})
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "notifications/cancelled":
        note("cancelled")
    elif "id" in asked and (answered := answer(asked)) is not None:
        send({"id": asked["id"], **answered})
        if (asked.get("params") or {}).get("name") == "plug":
            time.sleep(600)
note("left")
