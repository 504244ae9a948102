"""A run that is given away: to the project's daemon, or where there is none to a process of its own.

The daemon takes runs over on a socket: a line of JSON says which one, a line of JSON answers when it is running.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import UNIXSocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from sidecar import layout
from sidecar.agents import detach
from sidecar.engine.ending import revert_beginning
from sidecar.engine.execution import REQUEST, locked
from sidecar.errors import REPORTED, SidecarError
from sidecar.model import duration, ulid
from sidecar.signals import run_lock
from sidecar.sockets import Listener, connect, serve_each

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Mapping

    from anyio.abc import TaskStatus

    from sidecar.config import Project
    from sidecar.store.journal import Journal

    Begin = Callable[..., Awaitable[None]]

logger = logging.getLogger(__name__)
LOG = "owner.log"  # in the run's directory: what its detached owner says, which is little
_LONGEST = 16 * 1024 * 1024
_REQUEST_S = 60.0  # how long somebody who connects may take to say what is asked


def details(environment: Mapping[str, str]) -> dict[str, Any]:
    """What the journal keeps of a run that is begun detached: with whose environment its steps run."""
    return {"detached": True, "environment": dict(environment)}


async def hand_over(
    project: Project,
    journal: Journal,
    run_id: str,
    *,
    feedback: str | None = None,
    approve: bool = False,
    answer: Any = None,
    with_changes: bool = False,
) -> None:
    """Have it executed elsewhere; returns when somebody holds its lock. SidecarError: nobody does, nor will, and why.

    The request stands in the journal, and whoever executes the run looks for it there under the run's lock: one that is
    taken back is executed by nobody, however late a daemon reads it.
    """
    request = {"id": ulid.new(), "environment": dict(project.environment)}
    async with locked(project.root, run_id):
        details = {**journal.run(run_id).details, REQUEST: request}
        journal.change(run_id, details=details)
    asked = {
        "run_id": run_id,
        "request": request["id"],
        "feedback": feedback,
        "approve": approve,
        "answer": answer,
        "with_changes": with_changes,
    }
    try:
        await _hand_over(project, asked)
    except REPORTED as error:
        if await _taken_back(project.root, journal, asked, str(error)):
            raise


async def _hand_over(project: Project, asked: dict[str, Any]) -> None:
    within_s = duration.seconds(project.settings.hand_over_within)
    if await _to_the_daemon(project.root, asked, within_s):
        return
    run_id = asked["run_id"]
    # -P: the project is the working directory, and its modules must not be taken for ours.
    argv = [sys.executable, "-P", "-m", "sidecar", "--project", project.root, "own", json.dumps(asked)]
    log_path = os.path.join(layout.run_directory(project.root, run_id), LOG)
    await detach.start(argv, cwd=project.root, environment=project.environment, log_path=log_path, within_s=within_s)


async def _taken_back(root: str, journal: Journal, asked: dict[str, Any], why: str) -> bool:
    """Take the request back, under the run's lock; False where somebody executes it, or has, after all."""
    run_id = asked["run_id"]
    try:
        async with locked(root, run_id):
            run = journal.run(run_id)
            if (run.details.get(REQUEST) or {}).get("id") != asked["request"]:
                return False
            details = {name: value for name, value in run.details.items() if name != REQUEST}
            run = journal.change(run_id, details=details)
            if run.status == "pending" and not run.start:
                journal.end_unheld(run_id, "failed", reason=f"nobody executed it: {why}")
                run_lock.end(root, run_id)
            revert_beginning(root, journal, run)
    except run_lock.RunBusy:
        return False
    return True


async def take_over(root: str, begin: Begin, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """The daemon's side, until cancelled: `begin` starts what is asked for. The caller is the project's daemon."""
    with Listener(layout.handover_socket(root)) as listening:
        task_status.started()
        await serve_each(listening, lambda connected: _answered(connected, begin), "hand-over")


async def _answered(connected: socket.socket, begin: Begin) -> None:
    async with await UNIXSocketStream.from_socket(connected) as stream:
        try:
            with anyio.fail_after(_REQUEST_S):
                line = await BufferedByteReceiveStream(stream).receive_until(b"\n", _LONGEST)
            told = await _begun(json.loads(line), begin)
            await stream.send(json.dumps(told).encode() + b"\n")
        except Exception as error:  # whoever it was is gone, or was none of ours: no reason for the daemon to end
            logger.info("nobody to hand a run over: %r", error)


async def _begun(asked: dict[str, Any], begin: Begin) -> dict[str, Any]:
    try:
        await begin(**asked)
    except REPORTED as error:
        return {"error": str(error)}
    except OSError as error:  # out of descriptors, for one
        return {"error": f"the daemon cannot execute it: {error.strerror or error}"}
    except Exception as error:
        logger.exception("a run could not be taken over")
        return {"error": f"the daemon cannot execute it ({type(error).__name__}); its log tells more"}
    return {"begun": True}


async def _to_the_daemon(root: str, asked: dict[str, Any], within_s: float) -> bool:
    """False where there is no daemon, or it went away before it had the run."""
    try:
        connected = connect(layout.handover_socket(root))
    except OSError:
        return False
    with connected:
        connected.setblocking(False)
        with anyio.move_on_after(within_s):
            try:
                answer = await _exchange(connected, json.dumps(asked).encode() + b"\n")
            except OSError:
                return False
            if not answer:
                return False
            told = json.loads(answer)
            if "error" in told:
                raise SidecarError(told["error"])
            return True
    raise SidecarError(f"the daemon of {root} has not begun run {asked['run_id']} within {within_s:g} s")


async def _exchange(connected: socket.socket, line: bytes) -> bytes:
    while line:
        await anyio.wait_writable(connected)
        line = line[connected.send(line) :]
    answer = b""
    while not answer.endswith(b"\n"):
        await anyio.wait_readable(connected)
        more = connected.recv(65536)
        if not more:
            return b""
        answer += more
    return answer
