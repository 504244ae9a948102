"""Unix sockets by a path of any length: a socket address holds about a hundred bytes, and projects lie deeper.

Standard library only, and little of it: `sidecar serve` starts through here.
"""

from __future__ import annotations

import os
import socket
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

_LONGEST = 103 if sys.platform == "darwin" else 107  # sun_path, without the zero at its end


class Address:
    """What to bind or connect to for a path, good inside the `with`."""

    __slots__ = ("_directory", "_link", "_path")

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self._directory = -1
        self._link: str | None = None

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= _LONGEST:
            return self._path
        parent, name = os.path.split(self._path)
        if sys.platform == "linux":
            self._directory = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            return f"/proc/self/fd/{self._directory}/{name}"
        import tempfile  # noqa: PLC0415 - only where it is needed, and it costs start-up time

        self._link = os.path.join(tempfile.mkdtemp(prefix="sidecar-", dir="/tmp"), "d")
        os.symlink(parent, self._link)
        return f"{self._link}/{name}"

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._directory >= 0:
            os.close(self._directory)
        if self._link is not None:
            os.unlink(self._link)
            os.rmdir(os.path.dirname(self._link))


def connect(path: str) -> socket.socket:
    """A connection to whoever listens at the path; OSError where nobody does."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with Address(path) as address:
            connected.connect(address)
    except BaseException:
        connected.close()
        raise
    return connected


def bind(path: str, backlog: int = 128) -> socket.socket:
    """Listen at the path, for nobody but this user. A socket that is there already is one that nobody serves any more:
    whoever binds holds the lock that says so. Anything else there is an error."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(17, "something that is not a socket is in the way", path)
        os.unlink(path)
    except FileNotFoundError:
        pass
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with Address(path) as address:
            listening.bind(address)
            # Before anybody can connect: until `listen`, all are refused.
            os.chmod(address, 0o600)
        listening.listen(backlog)
    except BaseException:
        listening.close()
        raise
    return listening
