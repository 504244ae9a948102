"""Starts of runs, each in a process of its own that can be made to die at any write: a JSON line a request on stdin.

    {"root": DIRECTORY, "environment": {NAME: VALUE}, "workflow": FILE | "run_id": ID,
     "die": ["before" | "after", N, ABOUT] | "die_after_s": S}

N counts the writes that say they are about ABOUT, all of them where it is empty.

Or {"shell": SCRIPT}, for what can be done only from here: mounts, which nobody else sees.
The answer, a JSON line too, comes when the process is gone and so is everything that came of it. Requests are served
by forks of this process: what is imported once is a second that a hundred starts need not wait for.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from typing import Any

import anyio

from sidecar import config
from sidecar.catalog import workflows
from sidecar.engine import interpreter
from sidecar.engine.execution import Execution
from sidecar.engine.opened import load
from sidecar.engine.owner import Owner
from sidecar.errors import SidecarError
from sidecar.model import ulid
from sidecar.model.parameters import bind
from sidecar.service import starting
from sidecar.signals import liveness
from sidecar.store.db import Database

_DEADLINE_S = 60.0
_PR_SET_CHILD_SUBREAPER = 36
_CHECKPOINT_EVERY = 25  # events: so that a short run has several


async def start(request: dict[str, Any], told: dict[str, Any]) -> None:
    """One start or resume, from the owner's first write to its last."""
    root = request["root"]
    settings = config.load(root, os.environ)
    async with Owner(root, settings, dict(os.environ), told["reports"].append) as owner:
        run_id = request.get("run_id")
        if run_id is None:
            definition = workflows.load(request["workflow"])
            run_id = ulid.new()
            inputs = bind(definition.workflow.parameters, {}, definition.name)
            with liveness.begin(root, run_id, workspace=None, driver="server"):
                owner.journal.create(run_id, definition.name, definition=json.dumps(definition.record()), inputs=inputs)
        else:
            with liveness.RunLock(root, run_id):
                starting.begin_again(root, owner.journal, owner.journal.run(run_id), "server")
        told["run_id"] = run_id
        if request.get("clock_back_s"):
            turn_back(owner.database, request["clock_back_s"], request["after_writes"])
        ending = await Execution(owner, run_id, lambda event: None).execute()
        told |= {"status": ending.status, "reason": ending.reason}
        image = load(owner, owner.journal.run(run_id))
        told["state"] = image.spaces[()].state.flattened()


def turn_back(database: Database, seconds_s: float, after_writes: int) -> None:
    """The wall clock of this process is set back in the middle of the run."""
    real, writes = time.time, 0

    def clock() -> float:
        nonlocal writes
        writes += 1
        return real() - (seconds_s if writes > after_writes else 0.0)

    time.time = clock
    database.clock = clock


class Writes:
    """Counts commits and refusals, and dies before or after one of the commits. The product knows nothing of it."""

    def __init__(self, die: list[Any] | None, told: dict[str, Any]) -> None:
        self._when, self._number, self._about = die or ["never", 0, ""]
        self._told = told
        self._met = 0  # writes that are about what is waited for
        self._meets = False
        self._run = Database._run
        # A function, since a method of ours would not be given the database.
        setattr(Database, "_run", lambda database, *arguments: self.run(database, *arguments))  # noqa: B010, PLW0108

    def run(self, database: Database, sql: str, values: Any = (), about: str = "") -> Any:
        """In place of the database's own."""
        if sql == "COMMIT":
            return self._commit(database)
        self._meets = (self._meets and sql != "BEGIN IMMEDIATE") or (about.endswith(self._about) and bool(about))
        try:
            return self._run(database, sql, values, about)
        except SidecarError:
            self._told["refused"] += 1
            raise

    def _commit(self, database: Database) -> Any:
        self._told["writes"] += 1
        self._met += self._meets or not self._about
        chosen, self._meets = self._met == self._number and (self._meets or not self._about), False
        if chosen and self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = self._run(database, "COMMIT")
        if chosen and self._when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return done


def child(request: dict[str, Any], answer: int) -> None:
    """In the fork: never comes back."""
    told: dict[str, Any] = {"writes": 0, "refused": 0, "reports": []}
    code = 2
    try:
        os.environ |= request.get("environment", {})
        interpreter._CHECKPOINT_EVERY = _CHECKPOINT_EVERY
        Writes(request.get("die"), told)
        if "busy_timeout_s" in request:
            defaults = Database.__init__.__kwdefaults__ or {}
            defaults["busy_timeout_s"] = request["busy_timeout_s"]
        anyio.run(start, request, told)
        code = 0
    except BaseException as error:
        told |= explained(error)
    finally:
        os.write(answer, json.dumps(told).encode())
        os._exit(code)


def explained(error: BaseException) -> dict[str, Any]:
    """What went wrong: an error that says what to do, or one that nobody expected."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, SidecarError):
        return {"error": str(error), "kind": getattr(error, "kind", None)}
    return {"bug": "".join(traceback.format_exception(error))}


def serve(request: dict[str, Any]) -> dict[str, Any]:
    """One request: what the process told, how it ended, and what it left behind."""
    read, write = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        child(request, write)
    os.close(write)
    said, hung = hear(read, began + request.get("die_after_s", _DEADLINE_S))
    if hung:
        os.kill(pid, signal.SIGKILL)
        said += hear(read, time.monotonic() + _DEADLINE_S)[0]
    _, status = os.waitpid(pid, 0)
    os.close(read)
    code = os.waitstatus_to_exitcode(status)
    told = json.loads(said) if code >= 0 else {}
    if hung and "die_after_s" not in request:
        told["bug"] = "it never came to an end"
    return {**told, "code": code, "s": time.monotonic() - began, "left": left()}


def hear(read: int, deadline: float) -> tuple[bytes, bool]:
    """What is said until the other side is gone, or until a moment; whether that came first."""
    said = b""
    while select.select([read], [], [], max(deadline - time.monotonic(), 0))[0]:
        piece = os.read(read, 65_536)
        if not piece:
            return said, False
        said += piece
    return said, True


def act(script: str) -> dict[str, Any]:
    """Something else than a start."""
    return {"code": subprocess.run(["sh", "-euc", script], check=True).returncode, "left": []}


def left() -> list[str]:
    """Wait for everything that came of the process: its orphans are our children now. Who is still there."""
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        if pid == 0:
            if time.monotonic() > deadline:
                return end_children()
            time.sleep(0.002)  # nothing tells of any of several children without blocking for ever


def end_children() -> list[str]:
    """The commands of those who should not be there any more; they are not."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        pids = file.read().split()
    commands = []
    for pid in pids:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            commands.append(file.read().replace("\0", " "))
        os.kill(int(pid), signal.SIGKILL)
    return commands


def main() -> None:
    """Serve until nobody asks any more."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.write(json.dumps(act(request["shell"]) if "shell" in request else serve(request)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
