"""An agent that is an MCP client of its run: `tasks` does the steps of its task; `gate` submits a stage the first two
times, and then works on until it is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

RUN = os.environ["SIDECAR_RUN_ID"]
SERVE = [sys.executable, "-P", "-m", "sidecar", "serve"]


class Client:
    def __init__(self) -> None:
        self._serve = subprocess.Popen(SERVE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "agent", "version": "1"}}
        self._request("initialize", about)
        self._send({"method": "notifications/initialized"})

    def call(self, tool: str, **arguments: Any) -> Any:
        return self._request("tools/call", {"name": tool, "arguments": arguments})["structuredContent"]

    def _send(self, message: dict[str, Any]) -> None:
        assert self._serve.stdin is not None
        self._serve.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._serve.stdin.flush()

    def _request(self, method: str, params: dict[str, Any]) -> Any:
        self._send({"id": 1, "method": method, "params": params})
        assert self._serve.stdout is not None
        for line in self._serve.stdout:
            message = json.loads(line)
            if message.get("id") == 1:
                return message["result"]
        raise SystemExit("the server went away")


def submit() -> None:
    with open(f"gate-{RUN}", "a+", encoding="utf-8") as file:
        file.write("x")
        file.seek(0)
        if len(file.read()) > 2:
            return
    Client().call("stage_gate", stage="plan", output="one, two", kind="plan", run_id=RUN)
    signal.pause()


def do_task() -> None:
    client, task = Client(), os.environ["SIDECAR_TASK_ID"]
    while (step := client.call("workflow_get_next_step", workflow_id=RUN, task_id=task)["step"]) is not None:
        client.call("workflow_step_complete", workflow_id=RUN, step_id=step["id"], task_id=task, result="done")


submit() if sys.argv[1] == "gate" else do_task()
