"""Unix sockets at paths of any length, and the accept loop of everything that listens.

A socket address holds about a hundred bytes, and projects lie deeper. Standard library only when imported, and little
of it: `sidecar serve` starts through here.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys

from sidecar.errors import SidecarError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from logging import Logger
    from types import TracebackType

    Serve = Callable[[socket.socket], Awaitable[None]]

_LONGEST = 103 if sys.platform == "darwin" else 107  # sun_path, without the zero at its end
_MOST_CONNECTIONS = 512
_RETRY_S = 0.1
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


def connect(path: str) -> socket.socket:
    """A connection to the server at the path; OSError where none listens."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _Address(path) as address:
            connected.connect(address)
    except BaseException:
        connected.close()
        raise
    return connected


def bind(path: str, backlog: int = 128) -> socket.socket:
    """Listen at the path, for this user only. A socket that is there already is stale: the caller holds the lock of
    its server. Anything else there is an error."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "something that is not a socket is in the way", path)
        os.unlink(path)
    except FileNotFoundError:
        pass
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _Address(path) as address:
            listening.bind(address)
            # Before anybody can connect: until `listen`, all are refused.
            os.chmod(address, 0o600)
        listening.listen(backlog)
    except BaseException:
        listening.close()
        raise
    return listening


class Listener:
    """A socket that listens at a path inside the `with`. The file goes with it, unless it is another one by then."""

    __slots__ = ("_file", "_listening", "_path")

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> socket.socket:
        try:
            self._listening = bind(self._path)
        except OSError as error:
            raise SidecarError(f"cannot listen on {self._path}: {error.strerror}") from None
        self._file = _file_identity(self._path)
        return self._listening

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
        if self._file is not None and _file_identity(self._path) == self._file:
            os.unlink(self._path)


def _file_identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _Address:
    """What to bind or connect to for a path, valid inside the `with`."""

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


# The accept loop. It imports anyio and logging where it runs: `sidecar serve`, which only connects, starts without.


class Acceptor:
    """Accepts connections one at a time. Without a free descriptor it closes a connection and goes on listening.

    `what`: the kind of connection, for the log.
    """

    def __init__(self, listening: socket.socket, what: str) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._what = what
        # Closed for a moment where no other descriptor is free: then a waiting client can be accepted and closed, and
        # does not wait for ever.
        self._reserve: int | None = _reserve_descriptor()

    async def accept(self) -> socket.socket:
        """The next connection, blocking as sockets are by default."""
        import anyio  # noqa: PLC0415

        while True:
            await anyio.wait_readable(self._listening)
            try:
                connected, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                continue
            except OSError as error:
                _log().warning("cannot accept a connection (%s): %s", self._what, error.strerror)
                if error.errno not in _NO_DESCRIPTOR or not self._reject_one():
                    await anyio.sleep(_RETRY_S)
                continue
            connected.setblocking(True)
            return connected

    def close(self) -> None:
        """Close the reserved descriptor. The listening socket is closed by whoever opened it."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None

    def _reject_one(self) -> bool:
        if self._reserve is None:
            self._reserve = _reserve_descriptor()
            return self._reserve is not None
        os.close(self._reserve)
        try:
            self._listening.accept()[0].close()
        except OSError:
            return False
        finally:
            self._reserve = _reserve_descriptor()
        return True


async def serve_each(listening: socket.socket, serve: Serve, what: str) -> None:
    """Serve each connection in a task of its own, until cancelled. One that fails is logged and ends alone."""
    import anyio  # noqa: PLC0415

    room = anyio.Semaphore(_MOST_CONNECTIONS)

    async def serve_one(connected: socket.socket) -> None:
        with connected:
            try:
                await serve(connected)
            except Exception:
                _log().exception("a connection failed (%s)", what)
            finally:
                room.release()

    acceptor = Acceptor(listening, what)
    try:
        async with anyio.create_task_group() as tasks:
            while True:
                await room.acquire()
                tasks.start_soon(serve_one, await acceptor.accept())
    finally:
        acceptor.close()


def _reserve_descriptor() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _log() -> Logger:
    import logging  # noqa: PLC0415

    return logging.getLogger("sidecar.daemon")
