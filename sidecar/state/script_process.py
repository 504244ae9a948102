"""The owner's end of the evaluator's process: start it, ask it, end it when it does not answer in time."""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import _quickjs  # type: ignore[import-not-found]

from sidecar.state import script_worker
from sidecar.state.javascript import GLOBALS
from sidecar.state.script_worker import FRAME_BYTES, PATIENCE, REPLY, REQUEST, EngineRequest

# Variables without which some interpreters do not start. Nothing else goes there; and dates are UTC everywhere.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")
# The process ends itself at its limit of CPU time. The owner's deadline is for one that gets no CPU, or was stopped:
# generous, because a machine may be busy, and longer for more to carry.
_WALL_PER_CPU = 8
_SLACK_S = 5.0
_BYTES_PER_S = 1_000_000
# To be woken takes longer than most expressions do: poll so often (a tenth of a millisecond) before sleeping.
_POLLS = 150
_EXIT_S = 5.0  # from the end of its connection to that of the process


@functools.cache
def realm_source() -> str:
    """What a fresh engine evaluates first."""
    realm = Path(__file__).with_name("realm.js").read_text(encoding="utf-8")
    return f"{realm.rstrip()}({json.dumps(sorted(GLOBALS))})"


class WorkerLost(Exception):  # noqa: N818 - named for what happened
    """The process is gone. `overdue`: because the expression took too long."""

    def __init__(self, *, overdue: bool) -> None:
        super().__init__("the evaluator's process is gone")
        self.overdue = overdue


class WorkerProcess:
    """One process. After WorkerLost it is of no more use: another has to be started."""

    def __init__(self, time_limit_s: float, memory_limit: int) -> None:
        self._patience_s = time_limit_s * PATIENCE * _WALL_PER_CPU + _SLACK_S
        self.closed = False
        ours, theirs = socket.socketpair()
        for one in (ours, theirs):  # fewer turns for a large state; the system may grant less
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        command = [sys.executable, "-I", "-S", script_worker.__file__, str(Path(str(_quickjs.__file__)).parent)]
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        with theirs:
            # A session of its own: Ctrl-C in a terminal is for the owner, which may still need an answer.
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**environment, "TZ": "UTC"},
                start_new_session=True,
            )
        self._socket = ours
        poll = select.poll()  # not select, which knows no descriptor above 1023
        poll.register(ours, select.POLLIN)
        self._poll = poll.poll
        source = realm_source().encode()
        header = REQUEST.pack(b"i", round(time_limit_s * 1000), memory_limit, len(source), 0, 0)
        self._send(header + source)

    @property
    def pid(self) -> int:
        """Which process it is."""
        return int(self._process.pid)

    def handle(self, request: EngineRequest) -> tuple[bytes, str]:
        """Ask, and wait for the answer."""
        texts = [text.encode("utf-8", "surrogatepass") for text in request[3:]]
        try:
            self._send(REQUEST.pack(*request[:3], *map(len, texts)) + b"".join(texts))
            return self._receive()
        except BaseException:
            # An interruption, such as Ctrl-C, leaves an answer behind that would be taken for the next one.
            self.close()
            raise

    def close(self) -> None:
        """End the process. It has nothing to lose, so there is no ladder to climb."""
        self.closed = True
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _send(self, data: bytes) -> None:
        self._socket.settimeout(self._patience_s + len(data) / _BYTES_PER_S)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from None

    def _receive(self) -> tuple[bytes, str]:
        for _ in range(_POLLS):
            if self._poll(0):
                break
        data = self._receive_some(FRAME_BYTES)
        while len(data) < REPLY.size:
            data += self._receive_some(FRAME_BYTES)
        status, length = REPLY.unpack_from(data)
        parts, missing = [data[REPLY.size :]], length - (len(data) - REPLY.size)
        while missing > 0:
            parts.append(self._receive_some(max(FRAME_BYTES, missing)))
            missing -= len(parts[-1])
        return status, b"".join(parts).decode("utf-8", "surrogatepass")

    def _receive_some(self, most: int) -> bytes:
        try:
            data = self._socket.recv(most)
        except OSError as error:
            raise self._lost(error) from None
        if not data:
            raise self._lost(None)
        return data

    def _lost(self, error: OSError | None) -> WorkerLost:
        if not isinstance(error, TimeoutError):
            # It is about to exit; its status distinguishes the end by its own timer from any other.
            try:
                self._process.wait(_EXIT_S)
            except subprocess.TimeoutExpired:
                pass
        overdue = self._process.poll() in (None, -signal.SIGPROF)
        self.close()
        return WorkerLost(overdue=overdue)
