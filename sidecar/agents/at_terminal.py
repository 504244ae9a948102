"""A command on the terminal of this process: in its session and its process group, and supervised all the same.

The sentinel has a session of its own, and what it starts can never have our terminal: no Ctrl-C, no /dev/tty. So the
command is our own child, and the sentinel starts a keeper in its place, which does nothing but wait. The command
carries the keeper's marks, and with them it belongs to that agent's tree: the ladder ends both, the receipt counts
both, and when we die, the sentinel sweeps both.
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import anyio

from sidecar.agents import lineage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sidecar.agents.supervisor import Agent

# Its exit code is the command's, so that the journal has the right one.
KEEPER = ["sh", "-c", 'read -r code; exit "$code"', "keeper of a command on the terminal"]
_SIGNALLED = 128


class TerminalCommand(NamedTuple):
    """What to run there."""

    argv: Sequence[str]
    cwd: str
    environment: Mapping[str, str]  # all of it
    timeout_s: float | None


async def run(keeper: Agent, command: TerminalCommand, terminal: int) -> int | None:
    """Run a command with the terminal as its three descriptors; its exit code, negative for a signal, or None where
    it was not over in time. OSError: it cannot be started.

    Cancelled, too late, or ended with its keeper: it is gone before this returns, with all that it started.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        process = _start(keeper, command, terminal)
        with anyio.move_on_after(command.timeout_s) as limit:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_kill_without_keeper, keeper)
                await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
                tasks.cancel_scope.cancel()
        if limit.cancelled_caught:
            await keeper.end("timeout")
            return None
        code = process.returncode
        await _finish(keeper, code)
        return code
    except BaseException:
        await keeper.end("abort")
        raise
    finally:
        if process is not None:
            process.poll()  # cancelled before the thread had begun, it would stay a zombie


def _start(keeper: Agent, command: TerminalCommand, terminal: int) -> subprocess.Popen[bytes]:
    marks = keeper.record
    process = subprocess.Popen(  # noqa: S603
        [*_inside(marks.group), *command.argv],
        cwd=command.cwd,
        env={**command.environment, lineage.MARKER_VARIABLE: lineage.with_marker(command.environment, marks.marker)},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    if sys.platform == "linux":
        # Before the shell has forked anybody; where it was faster, the other mark and its parent lead there.
        with contextlib.suppress(OSError, ValueError):
            _, hard = resource.prlimit(process.pid, lineage.TAG_LIMIT)
            resource.prlimit(process.pid, lineage.TAG_LIMIT, (marks.tag, hard))
    return process


def _inside(group: str | None) -> list[str]:
    """What enters the keeper's control group, where it has one, and becomes the command then."""
    return ["sh", "-c", 'echo 0 2>/dev/null >"$0/cgroup.procs"; exec "$@"', group] if group else []


async def _kill_without_keeper(keeper: Agent) -> None:
    """The keeper was killed alone, and the supervision with it: then the command is killed, too."""
    await keeper.over()
    keeper.tree.kill_now()


async def _finish(keeper: Agent, code: int) -> None:
    """The command is over, and so is the agent; what it left in the background goes with it, as with any other."""
    if any(row.pid != keeper.pid for row in await keeper.tree.living()):
        await keeper.end("shutdown")
        return
    keeper.pipes.close_stdin(b"%d\n" % (code if code >= 0 else _SIGNALLED - code))
    await keeper.over()
