"""An agent's output: always drained, never kept whole; to the log, to the tail, and as lines to who listens.

The log has everything, until there is too much. A line longer than a mebibyte is cut, and a listener that falls behind
loses the oldest lines and is told how many: nobody's slowness reaches the agent.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Literal, NamedTuple

import anyio

from sidecar.agents.log_file import LogFile
from sidecar.agents.mask import Masker

if TYPE_CHECKING:
    from sidecar.agents.mask import Secrets

StreamName = Literal["stdout", "stderr"]

_READ_BYTES = 1 << 16  # four times as much was slower: the lines of one read should fit into a processor's cache
_CHATTY_BYTES = 1 << 20
_WIDE_PIPE_BYTES = 1 << 20
_LONGEST_LINE_BYTES = 1 << 20
_LAST_DRAIN_BYTES = 4 << 20
_EARLY_BYTES = 1 << 16
TAIL_BYTES = 16 << 10
SUBSCRIPTION_BYTES = 4 << 20


class Output(NamedTuple):
    """Some lines of one stream, and how many were lost before them."""

    stream: StreamName
    lines: list[str]
    dropped: int = 0


class Subscription:
    """Lines for one listener: `async for output in subscription`. Bounded: it forgets the oldest, and counts them."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._waiting: deque[tuple[int, Output]] = deque()
        self._size = 0
        self._dropped = 0
        self._closed = False
        self._news = anyio.Event()

    def widen(self, capacity_bytes: int) -> None:
        """Let it hold more."""
        self._capacity = capacity_bytes

    def put(self, stream: StreamName, lines: list[str], size: int) -> None:
        """Add lines; never waits."""
        self._waiting.append((size, Output(stream, lines)))
        self._size += size
        while self._size > self._capacity and len(self._waiting) > 1:
            lost, output = self._waiting.popleft()
            self._size -= lost
            self._dropped += len(output.lines)
        self._news.set()

    def close(self) -> None:
        """Nothing more comes."""
        self._closed = True
        self._news.set()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Output:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._news = anyio.Event()
            await self._news.wait()
        size, output = self._waiting.popleft()
        self._size -= size
        dropped, self._dropped = self._dropped, 0
        return output._replace(dropped=dropped) if dropped else output


class Lines:
    """Bytes in, whole lines out; an overlong line is cut."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete now."""
        end = data.rfind(b"\n")
        if end < 0:
            self._keep(data)
            return []
        lines: list[str] = []
        at = 0
        if self._begun:
            # Pieces are joined once, at the line's end: adding to one buffer would be quadratic.
            at = data.find(b"\n") + 1
            self._keep(data[: at - 1])
            lines = [self._taken()]
        if at <= end:
            # Through a view: a copy of what is only decoded would cost a tenth of the whole way.
            whole = str(memoryview(data)[at:end], "utf-8", "replace").split("\n")
            lines = lines + whole if lines else whole
        if end + 1 < len(data):
            self._keep(data[end + 1 :])
        return lines

    def rest(self) -> list[str]:
        """The last line, where it has no end."""
        return [self._taken()] if self._begun else []

    def _keep(self, data: bytes) -> None:
        room = _LONGEST_LINE_BYTES - self._size
        if room > 0 and data:
            self._begun.append(data[:room])
            self._size += len(self._begun[-1])

    def _taken(self) -> str:
        line = b"".join(self._begun).decode("utf-8", "replace")
        self._begun, self._size = [], 0
        return line


class Sink:
    """Where both streams of an agent end up."""

    def __init__(self, log_path: str | None) -> None:
        self._log = LogFile(log_path) if log_path is not None else None
        self.problem: str | None = None
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        # Whoever subscribes right after the start has missed nothing: the first subscription is there before.
        self._early: Subscription | None = Subscription(_EARLY_BYTES)
        self._subscriptions = [self._early]
        self._closed = False

    def subscribe(self, capacity_bytes: int = SUBSCRIPTION_BYTES) -> Subscription:
        """A listener of its own."""
        subscription, self._early = self._early or Subscription(capacity_bytes), None
        subscription.widen(capacity_bytes)
        if subscription not in self._subscriptions:
            self._subscriptions.append(subscription)
        if self._closed:
            subscription.close()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Nobody listens there any more."""
        subscription.close()
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def write(self, data: bytes) -> None:
        """To the log and the tail."""
        if self._log is not None:
            try:
                self._log.write(data)
            except OSError as error:  # a full disk ends the log, not the agent
                self.problem = f"the log could not be written: {error.strerror}"
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= TAIL_BYTES:
            self._tail_size -= len(self._tail.popleft())

    def lines(self, stream: StreamName, lines: list[str], size: int) -> None:
        """To whoever listens."""
        for subscription in self._subscriptions:
            subscription.put(stream, lines, size)

    def tail(self) -> str:
        """The end of the output."""
        return b"".join(self._tail)[-TAIL_BYTES:].decode("utf-8", "replace")

    def close(self) -> None:
        """Nothing more comes."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.close()
        if self._log is not None:
            self._log.close()


class Pump:
    """One stream of an agent, read whenever the loop finds something in the pipe."""

    def __init__(self, stream: StreamName, descriptor: int, sink: Sink, secrets: Secrets) -> None:
        self._stream = stream
        self._descriptor = descriptor
        self._sink = sink
        self._masker = Masker(secrets)
        self._lines = Lines()
        self._total = 0
        self._widened = False
        self.last_at = time.monotonic()  # when something came last
        os.set_blocking(descriptor, False)

    def start(self) -> None:
        """Read from now on."""
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def finish(self) -> None:
        """Take what is still in the pipe, without waiting for whoever else holds it, and close."""
        taken = 0
        while self._descriptor >= 0 and taken < _LAST_DRAIN_BYTES:
            size = self._read()
            if not size:
                break
            taken += size
        self._close()

    def _read(self) -> int:
        # One read a turn of the loop: an agent that floods its output delays nobody else's.
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            data = b""
        if not data:
            self._close()
            return 0
        self.last_at = time.monotonic()
        self._total += len(data)
        if self._total > _CHATTY_BYTES and not self._widened:
            self._widen()
        self._pass_on(self._masker.feed(data))
        return len(data)

    def _widen(self) -> None:
        """A wider pipe for who has much to say: fewer turns of the loop for the same bytes. Only for those, because
        all pipes of a user together may only be so wide."""
        self._widened = True
        if sys.platform == "linux":
            try:
                fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, _WIDE_PIPE_BYTES)
            except OSError:
                return

    def _pass_on(self, data: bytes) -> None:
        if data:
            self._sink.write(data)
            lines = self._lines.feed(data)
            if lines:
                self._sink.lines(self._stream, lines, len(data))

    def _close(self) -> None:
        if self._descriptor < 0:
            return
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        self._pass_on(self._masker.rest())
        last = self._lines.rest()
        if last:
            self._sink.lines(self._stream, last, len(last[0]))


class Feed:
    """An agent's stdin: given as fast as it is read, closed when all is in. A child that never reads waits alone."""

    def __init__(self, descriptor: int, data: bytes, *, keep_open: bool) -> None:
        self._descriptor = descriptor
        self._unsent = bytearray(data)
        self._keep_open = keep_open
        os.set_blocking(descriptor, False)

    @property
    def is_open(self) -> bool:
        """Whether the agent can still expect something."""
        return self._descriptor >= 0

    def start(self) -> None:
        """Write from now on."""
        self._write()

    def add(self, data: bytes) -> bool:
        """Write more, where stdin was kept open; False where it is closed by now."""
        if self._descriptor < 0:
            return False
        self._unsent += data
        self._write()
        return self.is_open

    def close(self) -> None:
        """End of file for the agent; what was not read by now is not sent."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            self._unsent.clear()

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._descriptor, memoryview(self._unsent)[:_READ_BYTES].tobytes())]
        except (BlockingIOError, InterruptedError):
            asyncio.get_running_loop().add_writer(self._descriptor, self._write)
            return
        except OSError:  # the reader is gone
            self.close()
            return
        if self._keep_open:
            asyncio.get_running_loop().remove_writer(self._descriptor)
        else:
            self.close()
