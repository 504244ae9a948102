"""The installed command in a process of its own, forked from one that has imported it: most of a start is imports."""

from __future__ import annotations

import atexit
import functools
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.kit.waiting import DEADLINE_S

SIDECAR = str(Path(sys.executable).with_name("sidecar"))
_SERVER = Path(__file__).parent / "programs" / "fork_server.py"


def call(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """One command, to its end. What is in the environment of the test is in its own, and this besides."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Forked([SIDECAR, *arguments], cwd or Path.cwd(), {**os.environ, **environment}, **streams) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


class Forked(subprocess.Popen[Any]):
    """As `subprocess.Popen`, for the words of the installed command. It has no options that `Forked` does not name.

    What a start from the disk does differently: `/proc/PID/cmdline` and `environ` are the fork server's.
    """

    def __init__(self, argv: list[str], cwd: Path, env: dict[str, str], **streams: Any) -> None:
        """`terminal=True`: its standard input becomes the controlling terminal of a session of its own."""
        self._terminal = streams.pop("terminal", False)
        super().__init__(argv, cwd=cwd, env=env, **streams)

    def _execute_child(self, args: Any, *rest: Any) -> None:
        cwd, env, pipes = *rest[4:6], rest[9:15]
        request = {"argv": args, "environment": env, "directory": str(cwd), "terminal": self._terminal}
        theirs = (pipes[0], pipes[3], pipes[5])
        streams = [number if stream == -1 else stream for number, stream in enumerate(theirs)]
        self._reports, reports = socket.socketpair()
        with tempfile.TemporaryFile("w") as file, reports:
            file.write(json.dumps(request))
            file.flush()
            os.lseek(file.fileno(), 0, os.SEEK_SET)
            socket.send_fds(_server(), [b"x"], [file.fileno(), *streams, reports.fileno()])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self.pid = self._report()

    def _report(self) -> int:
        data = self._reports.recv(4)
        assert data, "the fork server has gone"
        (number,) = struct.unpack("i", data)
        return int(number)

    def _ended(self, within_s: float | None) -> bool:
        if self.returncode is None:
            self._reports.settimeout(within_s)
            try:
                self.returncode = os.waitstatus_to_exitcode(self._report())
            except (BlockingIOError, TimeoutError):
                return False
            self._reports.close()
        return True

    def _internal_poll(self, *_: Any, **_more: Any) -> int | None:
        return self.returncode if self._ended(0) else None

    def _wait(self, timeout: float | None) -> int:
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode


@functools.cache
def _server() -> socket.socket:
    """One for each process that runs tests; it ends when its socket is closed."""
    ours, theirs = socket.socketpair()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SIDECAR_")}
    with theirs:
        command = [sys.executable, "-P", str(_SERVER)]
        process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment, cwd="/")

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours
