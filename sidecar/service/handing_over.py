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
from anyio.abc import SocketListener
from anyio.streams.buffered import BufferedByteReceiveStream

from sidecar import layout
from sidecar.agents import detach, socket_path
from sidecar.agents.bound_socket import bound
from sidecar.errors import SidecarError

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Mapping

    from anyio.abc import ByteStream, TaskStatus

    from sidecar.service.project import Project
    from sidecar.store.journal import Journal, Run

    Begin = Callable[..., Awaitable[None]]

logger = logging.getLogger(__name__)
LOG = "owner.log"  # in the run's directory: what its detached owner says, which is little
_WITHIN_S = 60.0
_LONGEST = 16 * 1024 * 1024


def details(environment: Mapping[str, str]) -> dict[str, Any]:
    """What the journal keeps of a run that is begun detached: with whose environment its steps run."""
    return {"detached": True, "environment": dict(environment)}


def mark(journal: Journal, run: Run, environment: Mapping[str, str], *, detached: bool) -> None:
    """From its next start on the run belongs to a terminal, or to none. It keeps the environment that it was given."""
    if detached != bool(run.details.get("detached")):
        known = run.details.get("environment") or (dict(environment) if detached else None)
        kept = {**run.details, "detached": detached, **({"environment": known} if known else {})}
        journal.change(run.run_id, details=kept)


async def hand_over(
    project: Project,
    run_id: str,
    *,
    feedback: str | None = None,
    answer: Any = None,
    with_changes: bool = False,
) -> None:
    """Have it executed elsewhere; returns when somebody holds its lock. SidecarError: nobody does, and why."""
    asked = {"run_id": run_id, "feedback": feedback, "answer": answer, "with_changes": with_changes}
    if await _to_the_daemon(project.root, asked):
        return
    options = ["--with-changes"] if with_changes else []
    if feedback is not None:
        options += ["--feedback", feedback]
    if answer is not None:
        options += ["--answer", json.dumps(answer)]
    # -P: the project is the working directory, and its modules must not be taken for ours.
    argv = [sys.executable, "-P", "-m", "sidecar", "--project", project.root, "own", *options, run_id]
    log_path = os.path.join(layout.run_directory(project.root, run_id), LOG)
    await detach.start(argv, cwd=project.root, environment=project.environment, log_path=log_path)


async def take_over(root: str, begin: Begin, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """The daemon's side, until cancelled: `begin` starts what is asked for. The caller is the project's daemon."""
    with bound(layout.handover_socket(root)) as listening:
        async with await SocketListener.from_socket(listening) as listener:
            task_status.started()
            await listener.serve(lambda stream: _answered(stream, begin))


async def _answered(stream: ByteStream, begin: Begin) -> None:
    async with stream:
        try:
            line = await BufferedByteReceiveStream(stream).receive_until(b"\n", _LONGEST)
            told = await _begun(json.loads(line), begin)
            await stream.send(json.dumps(told).encode() + b"\n")
        except Exception as error:  # whoever it was is gone, or was none of ours: no reason for the daemon to end
            logger.info("nobody to hand a run over: %r", error)


async def _begun(asked: dict[str, Any], begin: Begin) -> dict[str, Any]:
    try:
        await begin(
            asked["run_id"], feedback=asked["feedback"], answer=asked["answer"], with_changes=asked["with_changes"]
        )
    except SidecarError as error:
        return {"error": str(error)}
    except Exception as error:
        logger.exception("a run could not be taken over")
        return {"error": f"the daemon cannot execute it ({type(error).__name__}); its log tells more"}
    return {"begun": True}


async def _to_the_daemon(root: str, asked: dict[str, Any]) -> bool:
    """False where there is no daemon, or it went away before it had the run."""
    try:
        connected = socket_path.connect(layout.handover_socket(root))
    except OSError:
        return False
    with connected:
        connected.setblocking(False)
        with anyio.move_on_after(_WITHIN_S):
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
    raise SidecarError(f"the daemon of {root} has not begun run {asked['run_id']} within {_WITHIN_S:g} s")


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
