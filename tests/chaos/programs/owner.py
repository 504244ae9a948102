"""Starts of the installed command, each in a process that can be made to die at any write of the journal.

A request is a line of JSON on stdin:

    {"root": DIRECTORY, "arguments": [WORD, ...], "environment": {NAME: VALUE},
     "die": ["before" | "after", N, {"kind": KIND, NAME: VALUE, ...}] | "die_after_s": S,
     "clock_back_s": S, "after_writes": N}

N counts the commits; where an event is given, those that have an event of this kind with these data.

Or {"shell": SCRIPT}, for what can be done only from here: mounts, which no other process sees.
The answer, a line of JSON too, comes when the process has ended and so has everything that it started. Requests are
served by forks of this process: a hundred starts share one import of everything that the command needs.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

_DEADLINE_S = 120.0
_PR_SET_CHILD_SUBREAPER = 36
# A private constant of the product, found by its name wherever it is: so that a short run has several checkpoints.
_CHECKPOINT_EVERY = {"_CHECKPOINT_EVERY": 25}
# A workflow that has everything imported that the workflows of the tests need.
_WARM_UP = """\
default_state: {raw: {n: 0}}
steps:
  - {type: shell_command, command: "true", state_update: {path: raw.n}}
  - {type: conditional, condition: "{{ [1].length > 5 }}", then: []}
  - {type: agent, agent: scribe, prompt: hello}
"""


class Writes:
    """Counts commits, and dies before or after one of them. The product knows nothing of it."""

    def __init__(self) -> None:
        self.count = 0
        self.clock_back_s = 0.0
        self.after_writes = 0
        self._when, self._number = "never", 0
        self._event: dict[str, Any] = {}
        self._met = 0  # commits that have the event that is waited for
        self._meets = False

    def prepare(self, request: dict[str, Any]) -> None:
        self._when, self._number, self._event = request.get("die") or ("never", 0, {})
        self.clock_back_s = request.get("clock_back_s", 0.0)
        self.after_writes = request.get("after_writes", 0)

    def look(self, values: Sequence[Any]) -> None:
        """Whether these are the values of the event that is waited for."""
        kind = self._event.get("kind")
        if kind not in values:
            return
        expected = {name: value for name, value in self._event.items() if name != "kind"}
        for text in values:
            if isinstance(text, str) and text.startswith("{"):
                data = json.loads(text)
                self._meets |= {name: data.get(name) for name in expected} == expected

    def commit(self, do: Callable[[], Any]) -> Any:
        self.count += 1
        meets, self._meets = self._meets or not self._event, False
        self._met += meets
        chosen = meets and self._met == self._number
        if chosen and self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = do()
        if chosen and self._when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return done


WRITES = Writes()


class Connection(sqlite3.Connection):
    """What `sqlite3.connect` returns in here."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        run = super().execute
        if sql == "COMMIT":
            done: sqlite3.Cursor = WRITES.commit(lambda: run(sql))
            return done
        if values:
            WRITES.look(values[0])
        return run(sql, *values)

    def executemany(self, sql: str, rows: Iterable[Any]) -> sqlite3.Cursor:
        kept = list(rows)
        for values in kept:
            WRITES.look(values)
        return super().executemany(sql, kept)


def install() -> None:
    """Before the product is imported, which keeps some of these functions."""
    connect, clock = sqlite3.connect, time.time

    def counting(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made: sqlite3.Connection = connect(*arguments, **{**options, "factory": Connection})
        return made

    def shifted() -> float:
        return clock() - (WRITES.clock_back_s if WRITES.count > WRITES.after_writes else 0.0)

    setattr(sqlite3, "connect", counting)  # noqa: B010 - mypy does not allow to assign to a function
    setattr(time, "time", shifted)  # noqa: B010


def command() -> int:
    """The installed command, in this process."""
    (found,) = entry_points(group="console_scripts", name="sidecar")
    try:
        return int(found.load()() or 0)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def child(request: dict[str, Any], answer: int, out: int, err: int) -> None:
    """In the fork: does not return."""
    code = 1
    try:
        os.environ |= request.get("environment", {})
        os.chdir(request["root"])
        for number, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, err)):
            os.dup2(file, number)
        sys.argv = ["sidecar", *request["arguments"]]
        WRITES.prepare(request)
        code = command()
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(answer, json.dumps({"writes": WRITES.count, "modules": sorted(sys.modules)}).encode())
    finally:
        os._exit(code)


def serve(request: dict[str, Any]) -> dict[str, Any]:
    """One request: what the process printed, how it ended, and what it left behind."""
    read, write = os.pipe()
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            os.close(read)
            child(request, write, out.fileno(), err.fileno())
        os.close(write)
        answer, hung = read_all(read, began + request.get("die_after_s", _DEADLINE_S))
        if hung:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(read)
        code = os.waitstatus_to_exitcode(status)
        told: dict[str, Any] = {"code": code, "s": time.monotonic() - began, "left": left()}
        for name, file in (("out", out), ("err", err)):
            file.seek(0)
            told[name] = file.read().decode(errors="replace")
    runs = Path(request["root"], ".swissarmyhammer", "runs")  # where a small disk is mounted, only seen from here
    told["runs"] = sorted(os.listdir(runs)) if runs.exists() else []
    if code >= 0:
        told |= json.loads(answer) if answer else {"bug": told["err"]}
    if "Traceback" in told["err"]:
        told["bug"] = told["err"]
    if hung and "die_after_s" not in request:
        told["bug"] = "it never came to an end"
    return told


def read_all(read: int, deadline: float) -> tuple[bytes, bool]:
    """What is written until the other side is closed, or until a moment; whether that came first."""
    found = b""
    while select.select([read], [], [], max(deadline - time.monotonic(), 0))[0]:
        piece = os.read(read, 65_536)
        if not piece:
            return found, False
        found += piece
    return found, True


def warm_up() -> None:
    """Import here what a run imports in a process of its own."""
    with tempfile.TemporaryDirectory() as root:
        for name, text in (
            ("workflows/warm.yaml", _WARM_UP),
            ("agents/scribe.yaml", "adapter: command\ncommand: ['true']\n"),
        ):
            file = Path(root, ".swissarmyhammer", name)
            file.parent.mkdir(parents=True)
            file.write_text(text)
        answer = serve({"root": root, "arguments": ["flow", "run", "warm", "--json"]})
    assert answer["code"] == 0, answer
    assert answer["writes"] > 5, "the journal is not written by sqlite3.connect any more"
    for name in answer["modules"]:
        if name.startswith("sidecar."):
            importlib.import_module(name)
    for name, value in _CHECKPOINT_EVERY.items():
        (holder,) = [
            module for key, module in sys.modules.items() if key.startswith("sidecar.") and name in vars(module)
        ]
        setattr(holder, name, value)


def act(script: str) -> dict[str, Any]:
    """Something else than a start."""
    return {"code": subprocess.run(["sh", "-euc", script], check=True).returncode, "left": []}


def left() -> list[str]:
    """Wait for everything that came of the process: its orphans are our children now. Those that are still there."""
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        if pid == 0:
            if time.monotonic() > deadline:
                return end_children()
            time.sleep(0.002)  # nothing announces the end of any of several children without blocking for ever


def end_children() -> list[str]:
    """Kill those that should have ended; their commands."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        pids = file.read().split()
    commands = []
    for pid in pids:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            commands.append(file.read().replace("\0", " "))
        os.kill(int(pid), signal.SIGKILL)
    return commands


def main() -> None:
    """Serve until stdin is closed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    install()
    warm_up()
    for line in sys.stdin:
        request = json.loads(line)
        answer = act(request["shell"]) if "shell" in request else serve(request)
        answer.pop("modules", None)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
