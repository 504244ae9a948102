"""Starts a process that outlives this one: in a session of its own, away from the terminal, known to have begun.

It reports on a pipe that it inherits: one line, `begun` or what went wrong. One that ends without a line has died.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import anyio

from sidecar import layout
from sidecar.errors import SidecarError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OPTION = "--tell"  # the command gets it with the number of its descriptor
_BEGUN = "begun"
_WITHIN_S = 60.0
_LET_GO_S, _LOOK_S = 5.0, 0.005
_LONGEST = 64 * 1024
_TAIL_BYTES = 2000


async def start(
    argv: Sequence[str], *, cwd: str, environment: Mapping[str, str], log_path: str, within_s: float = _WITHIN_S
) -> None:
    """Start it, and wait until it has begun. SidecarError: it has not, and why."""
    read, write = os.pipe()
    try:
        try:
            process = _spawned(argv, write, cwd, environment, log_path)
        finally:
            os.close(write)
        try:
            report = await _line(read, within_s)
        except BaseException:
            _end(process)  # its report would not be read any more, so it would run unnoticed
            raise
    finally:
        os.close(read)
    if report is None:
        _end(process)
        raise SidecarError(f"it had not begun within {within_s:g} s, and was ended; {log_path} may say why")
    # It is over already: when it reports, what was started has left us. If not, that is no reason to hang.
    with anyio.move_on_after(_LET_GO_S):
        while process.poll() is None:  # noqa: ASYNC110 - it is a moment
            await anyio.sleep(_LOOK_S)
    if report != _BEGUN:
        raise SidecarError(report or f"it ended before it had begun{_last_line(log_path)}")


class Starter:
    """The other end of it, in the process that was started: its starter waits for the report."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)

    @staticmethod
    def let_go() -> None:
        """Leave the starter, which need not wait for this process then. Before anything else: no thread survives it."""
        if os.fork():
            os._exit(0)

    def begun(self) -> None:
        """Report that it has begun. Later reports are not read."""
        self._report(_BEGUN)

    def failed(self, why: str) -> None:
        """Report why it has not begun."""
        self._report(" ".join(why.split()))

    def _report(self, text: str) -> None:
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):  # the starter did not wait
            os.write(self._descriptor, text.encode("utf-8", "replace")[: _LONGEST - 1] + b"\n")
        os.close(self._descriptor)
        self._descriptor = -1


def _spawned(
    argv: Sequence[str], write: int, cwd: str, environment: Mapping[str, str], log_path: str
) -> subprocess.Popen[bytes]:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        layout.make_directory(os.path.dirname(log_path))
        log = os.open(log_path, flags, 0o600)
    except OSError as error:
        raise SidecarError(f"cannot write {log_path}: {error.strerror}") from None
    try:
        return subprocess.Popen(  # noqa: S603 - what the caller says
            [*argv, OPTION, str(write)],
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[write],
            start_new_session=True,
        )
    except OSError as error:
        raise SidecarError(f"cannot start {argv[0]}: {error.strerror}") from None
    finally:
        os.close(log)


def _end(process: subprocess.Popen[bytes]) -> None:
    """What has not begun has nothing to lose. It leads its group, and while we have not waited for it the number of
    that group is not given to another group, also after it has left us."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


async def _line(descriptor: int, within_s: float) -> str | None:
    """What comes before the end or a line break; None where nothing does in time."""
    data = b""
    os.set_blocking(descriptor, False)
    with anyio.move_on_after(within_s):
        while b"\n" not in data and len(data) < _LONGEST:
            await anyio.wait_readable(descriptor)
            more = os.read(descriptor, _LONGEST)
            if not more:
                break
            data += more
        return data.partition(b"\n")[0].decode("utf-8", "replace")
    return None


def _last_line(log_path: str) -> str:
    try:
        with open(log_path, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _TAIL_BYTES, 0))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last} ({log_path})" if last else ""
