"""The owner's end of the sentinel: starts it, asks it for agents, reads of their exits, notices if it is gone."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import anyio
import psutil

import sidecar
from sidecar.agents.sentinel import Inbox, pack
from sidecar.errors import AgentFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.agents.containment import Containment

_BOOT = """
import sys
sys.path[:0] = sys.argv[5:]
from sidecar.agents.sentinel import main
main(int(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]))
"""
_READY_S = 20.0
_LEAVE_S = 35.0


class SentinelLink:
    """One sentinel and the conversation with it."""

    def __init__(self, containment: Containment, descriptors: int) -> None:
        """`descriptors`: how many the sentinel and its agents may have open, whatever this process is allowed."""
        self._containment = containment
        self._descriptors = descriptors
        self._end, self._other = socket.socketpair()
        self._inbox = Inbox(self._end)
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        self._listeners: dict[int, Callable[[dict[str, Any] | None], None]] = {}
        self._next = 0
        self._ready = anyio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0
        self.session = 0
        self.lost = False

    def answers(self) -> bool:
        """Whether it can be asked for an agent. Its death is seen here before the event loop reports it."""
        if not self.lost and self._process is not None and self._process.poll() is not None:
            self._receive()  # its last messages: an agent may have exited before it was killed
            self._lose()
        return bool(self.pid) and not self.lost

    async def open(self) -> None:
        """Start the sentinel and wait until it is ready; cancelled meanwhile, it leaves none."""
        self._end.setblocking(False)
        loop = asyncio.get_running_loop()
        arguments = [
            str(self._other.fileno()),
            self._containment.name,
            self._containment.base or "",
            str(self._descriptors),
            *_import_paths(self._containment.name),
        ]
        # A session of its own and nothing of ours in its hands: no Ctrl-C reaches it, no lock and no pipe of the
        # owner's is kept by it. One vfork, a millisecond, once per owner (and once more each time that it was killed).
        self._process = subprocess.Popen(  # noqa: ASYNC220, S603
            [sys.executable, "-I", "-S", "-c", _BOOT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[self._other.fileno()],
            start_new_session=True,
            cwd="/",
        )
        self._other.close()
        loop.add_reader(self._end, self._receive)
        try:
            with anyio.move_on_after(_READY_S):
                await self._ready.wait()
        finally:
            if not self.answers():
                await self.close()
        if self.lost:
            raise AgentFailed(f"the sentinel did not start ({sys.executable}, containment {self._containment.name})")

    def start(
        self, request: dict[str, Any], descriptors: list[int], on_message: Callable[[dict[str, Any] | None], None]
    ) -> int:
        """Ask for an agent; `on_message` gets every message about it, and None if the sentinel is gone. The descriptors
        are closed here, sent or not."""
        self._next += 1
        number = self._next
        if self.lost:
            _close(descriptors)
            raise AgentFailed("the sentinel is gone: it cannot be asked for anything")
        self._listeners[number] = on_message
        self._send(pack({"type": "start", "id": number, **request}), descriptors)
        return number

    def release(self, number: int) -> None:
        """The agent's tree is done with: its zombie may be reaped."""
        self._listeners.pop(number, None)
        if not self.lost:
            self._send(pack({"type": "release", "id": number}), [])

    async def close(self) -> None:
        """Let the sentinel go; it sweeps once more before it does."""
        self._lose()
        self._other.close()
        process = self._process
        if process is None:
            return
        with anyio.CancelScope(shield=True), anyio.move_on_after(_LEAVE_S):
            # Not awaited through a thread or a child watcher: there is one such wait in a sentinel's life.
            while process.poll() is None:  # noqa: ASYNC110
                await anyio.sleep(0.002)
        if process.poll() is None:
            process.kill()
            process.wait()

    def _send(self, data: bytes, descriptors: list[int]) -> None:
        self._unsent.append((data, descriptors))
        if len(self._unsent) == 1:
            self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._unsent:
            data, descriptors = self._unsent[0]
            try:
                sent = socket.send_fds(self._end, [data], descriptors) if descriptors else self._end.send(data)
            except (BlockingIOError, InterruptedError):
                loop.add_writer(self._end, self._flush)
                return
            except OSError:
                self._lose()
                return
            _close(descriptors)  # they travel with the first byte
            if sent < len(data):
                self._unsent[0] = (data[sent:], [])
            else:
                self._unsent.popleft()
        loop.remove_writer(self._end)

    def _receive(self) -> None:
        messages = self._inbox.receive()
        if messages is None:
            self._lose()
            return
        for message in messages:
            if message["type"] == "ready":
                self.pid, self.session = message["pid"], message["session"]
                self._ready.set()
                continue
            on_message = self._listeners.get(message["id"])
            if on_message is not None:
                on_message(message)

    def _lose(self) -> None:
        """The conversation is over, by our wish or not: whoever waits for an answer gets None."""
        if self.lost:
            return
        self.lost = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._end)
        loop.remove_writer(self._end)
        self._end.close()
        for _, descriptors in self._unsent:
            _close(descriptors)
        self._unsent.clear()
        self._ready.set()
        for on_message in list(self._listeners.values()):
            on_message(None)


def _import_paths(containment: str) -> list[str]:
    """Where the sentinel, which starts without site packages, finds us (and psutil, where it looks through that)."""
    modules = [sidecar, psutil] if containment == "sweep" else [sidecar]
    return [os.path.dirname(os.path.dirname(os.path.abspath(str(module.__file__)))) for module in modules]


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
