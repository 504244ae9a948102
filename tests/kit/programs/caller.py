"""An agent that is an MCP client of `sidecar serve`, by hand: the SDK would take a second to import.

`caller.py call FILE JSON` calls tools, `[[name, arguments], …]`, with $RUN for the run's id, appends each answer to a
file as a line, and works on until it is ended.
`caller.py once FILE JSON` is like `call`, and ends by itself.
`caller.py tasks FILE` does the steps of its task, one after the other, and notes each one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any


class Caller:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sidecar", "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.number = 0
        client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "agent", "version": "1"}}
        self.request("initialize", client)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.number += 1
        self.send({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params})
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == self.number:
                return message["result"]  # type: ignore[no-any-return]
        raise SystemExit("the server went away")

    def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return self.request("tools/call", {"name": tool, "arguments": arguments})


def note(path: str, what: object) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, json.dumps(what).encode() + b"\n")
    os.close(file)


def do_tasks(path: str) -> None:
    caller = Caller()
    run_id, task_id = os.environ["SIDECAR_RUN_ID"], os.environ["SIDECAR_TASK_ID"]
    while True:
        asked = caller.call("workflow_get_next_step", {"workflow_id": run_id, "task_id": task_id})["structuredContent"]
        step = asked["step"]
        if step is None:
            note(path, {"task": task_id, "over": asked["status"]})
            return
        again = caller.call("workflow_get_next_step", {"workflow_id": run_id, "task_id": task_id})["structuredContent"]
        done = {"workflow_id": run_id, "step_id": step["id"], "task_id": task_id, "result": f"{task_id} did it"}
        told = caller.call("workflow_step_complete", done)
        note(path, {"task": task_id, "step": step["id"], "same": again["step"] == step, "told": told})


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    what, *rest = sys.argv[1:]
    if what == "tasks":
        do_tasks(rest[0])
        return
    path, calls = rest
    caller = Caller()
    for tool, arguments in json.loads(calls.replace("$RUN", os.environ["SIDECAR_RUN_ID"])):
        note(path, caller.call(tool, arguments))
    if what == "call":
        signal.pause()


main()
