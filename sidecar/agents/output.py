"""The pipes of an agent: stdin is fed; stdout and stderr are drained, masked, logged, and passed on as lines.

Output is always drained and never kept whole. The log has everything, until it is rotated. A line longer than a
mebibyte is cut, and a subscriber that falls behind loses the oldest lines and learns how many: a slow reader never
blocks the agent.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import anyio

from sidecar import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

StreamName = Literal["stdout", "stderr"]

_READ_BYTES = 1 << 16  # four times as much was slower: the lines of one read should fit into a processor's cache
_CHATTY_BYTES = 1 << 20
_WIDE_PIPE_BYTES = 1 << 20
_LONGEST_LINE_BYTES = 1 << 20
_LAST_DRAIN_BYTES = 4 << 20
_EARLY_BYTES = 1 << 16
TAIL_BYTES = 16 << 10
SUBSCRIPTION_BYTES = 4 << 20


class OutputLines(NamedTuple):
    """Some lines of one stream, and how many were lost before them."""

    stream: StreamName
    lines: list[str]
    dropped: int = 0


class Subscription:
    """Lines for one subscriber: `async for output in subscription`. Bounded: it drops the oldest, and counts them."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._waiting: deque[tuple[int, OutputLines]] = deque()
        self._size = 0
        self._dropped = 0
        self._closed = False
        self._news = anyio.Event()

    def widen(self, capacity_bytes: int) -> None:
        """Let it hold more."""
        self._capacity = capacity_bytes

    def put(self, stream: StreamName, lines: list[str], size: int) -> None:
        """Add lines; never waits."""
        self._waiting.append((size, OutputLines(stream, lines)))
        self._size += size
        while self._size > self._capacity and len(self._waiting) > 1:
            lost, output = self._waiting.popleft()
            self._size -= lost
            self._dropped += len(output.lines)
        self._news.set()

    def close(self) -> None:
        """No more lines come."""
        self._closed = True
        self._news.set()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> OutputLines:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._news = anyio.Event()
            await self._news.wait()
        size, output = self._waiting.popleft()
        self._size -= size
        dropped, self._dropped = self._dropped, 0
        return output._replace(dropped=dropped) if dropped else output


class AgentPipes:
    """The three pipes of one agent, from before its start until after its end."""

    def __init__(self, log_path: str | None, secrets: Secrets, stdin: bytes | None, *, keep_stdin_open: bool) -> None:
        """`stdin` None: the agent reads /dev/null, unless it is kept open. OSError: no log, or no descriptors."""
        self.child_ends: list[int] = []  # for the agent's stdin, stdout and stderr; whoever starts it closes them
        self._sink = OutputSink(log_path)
        self._pumps: list[_Pump] = []
        self._feed: _Feed | None = None
        try:
            if stdin is not None or keep_stdin_open:
                read, write = os.pipe()
                self.child_ends.append(read)
                self._feed = _Feed(write, stdin or b"", keep_open=keep_stdin_open)
            else:
                self.child_ends.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            streams: tuple[StreamName, StreamName] = ("stdout", "stderr")
            for stream in streams:
                read, write = os.pipe()
                self.child_ends.append(write)
                self._pumps.append(_Pump(stream, read, self._sink, secrets))
        except OSError:
            self.discard()
            raise

    def start(self) -> None:
        """Read and write from now on."""
        for pump in self._pumps:
            pump.start()
        if self._feed is not None:
            self._feed.start()

    def subscribe(self, capacity_bytes: int = SUBSCRIPTION_BYTES) -> Subscription:
        """The output's lines. The first subscriber also gets what came before it subscribed."""
        return self._sink.subscribe(capacity_bytes)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Nothing more is passed to it."""
        self._sink.unsubscribe(subscription)

    def write_stdin(self, data: bytes) -> bool:
        """More input, where stdin was kept open; False where it is closed."""
        return self._feed is not None and self._feed.add(data)

    def close_stdin(self, last: bytes = b"") -> bool:
        """End of input, after a last piece that fits into the pipe; whether it was open until now."""
        if self._feed is None:
            return False
        if last:
            self._feed.add(last)
        return self._feed.close()

    def discard(self) -> None:
        """Close everything, also the agent's ends: it is not started."""
        self.close()
        for descriptor in self.child_ends:
            os.close(descriptor)

    def close(self) -> tuple[str, str | None]:
        """Take what is still in the pipes, and close them. A second time changes nothing.

        Returns the end of all output, and why the log is not complete, where it is not.
        """
        for pump in self._pumps:
            pump.finish()
        self.close_stdin()
        self._sink.close()
        return self._sink.tail(), self._sink.problem


class _Pump:
    """One stream of an agent, read whenever the loop finds something in the pipe."""

    def __init__(self, stream: StreamName, descriptor: int, sink: OutputSink, secrets: Secrets) -> None:
        self._stream = stream
        self._descriptor = descriptor
        self._sink = sink
        self._masker = Masker(secrets)
        self._lines = LineSplitter()
        self._total = 0
        self._widened = False
        os.set_blocking(descriptor, False)

    def start(self) -> None:
        """Read from now on."""
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def finish(self) -> None:
        """Take what is still in the pipe, without waiting for other processes that hold it, and close."""
        taken = 0
        while self._descriptor >= 0 and taken < _LAST_DRAIN_BYTES:
            size = self._read()
            if not size:
                break
            taken += size
        self._close()

    def _read(self) -> int:
        # One read a turn of the loop: an agent that floods its output delays no other agent's.
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            data = b""
        if not data:
            self._close()
            return 0
        self._total += len(data)
        if self._total > _CHATTY_BYTES and not self._widened:
            self._widen()
        self._pass_on(self._masker.feed(data))
        return len(data)

    def _widen(self) -> None:
        """A wider pipe for an agent that prints much: fewer turns of the loop for the same bytes. Only for those,
        because all pipes of a user together may only be so wide."""
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


class _Feed:
    """An agent's stdin: given as fast as it is read, closed when all is in. A child that never reads waits alone."""

    def __init__(self, descriptor: int, data: bytes, *, keep_open: bool) -> None:
        self._descriptor = descriptor
        self._unsent = bytearray(data)
        self._keep_open = keep_open
        os.set_blocking(descriptor, False)

    def start(self) -> None:
        """Write from now on."""
        self._write()

    def add(self, data: bytes) -> bool:
        """Write more, where stdin was kept open; False where it is closed by now."""
        if self._descriptor < 0:
            return False
        self._unsent += data
        self._write()
        return self._descriptor >= 0

    def close(self) -> bool:
        """End of file for the agent; what was not read by now is not sent. Whether it was open."""
        if self._descriptor < 0:
            return False
        asyncio.get_running_loop().remove_writer(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        self._unsent.clear()
        return True

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


class OutputSink:
    """The destination of both streams of an agent: the log, the tail and the subscribers."""

    def __init__(self, log_path: str | None) -> None:
        self._log = LogFile(log_path) if log_path is not None else None
        self.problem: str | None = None
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        # A subscriber that comes right after the start has missed nothing: the first subscription is made before it.
        self._early: Subscription | None = Subscription(_EARLY_BYTES)
        self._subscriptions = [self._early]
        self._closed = False

    def subscribe(self, capacity_bytes: int = SUBSCRIPTION_BYTES) -> Subscription:
        """A new subscription; the first one also has what came before."""
        subscription, self._early = self._early or Subscription(capacity_bytes), None
        subscription.widen(capacity_bytes)
        if subscription not in self._subscriptions:
            self._subscriptions.append(subscription)
        if self._closed:
            subscription.close()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Nothing more is passed to it."""
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
        """To the subscribers."""
        for subscription in self._subscriptions:
            subscription.put(stream, lines, size)

    def tail(self) -> str:
        """The end of the output."""
        return b"".join(self._tail)[-TAIL_BYTES:].decode("utf-8", "replace")

    def close(self) -> None:
        """No more output comes."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.close()
        if self._log is not None:
            self._log.close()


class LineSplitter:
    """Bytes in, whole lines out; an overlong line is cut."""

    def __init__(self) -> None:
        self._unfinished: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete now."""
        end = data.rfind(b"\n")
        if end < 0:
            self._keep(data)
            return []
        lines: list[str] = []
        at = 0
        if self._unfinished:
            # Pieces are joined once, at the line's end: adding to one buffer would be quadratic.
            at = data.find(b"\n") + 1
            self._keep(data[: at - 1])
            lines = [self._take()]
        if at <= end:
            # Through a view: a copy of what is only decoded would cost a tenth of the whole way.
            whole = str(memoryview(data)[at:end], "utf-8", "replace").split("\n")
            lines = lines + whole if lines else whole
        if end + 1 < len(data):
            self._keep(data[end + 1 :])
        return lines

    def rest(self) -> list[str]:
        """The last line, where it has no end."""
        return [self._take()] if self._unfinished else []

    def _keep(self, data: bytes) -> None:
        room = _LONGEST_LINE_BYTES - self._size
        if room > 0 and data:
            self._unfinished.append(data[:room])
            self._size += len(self._unfinished[-1])

    def _take(self) -> str:
        line = b"".join(self._unfinished).decode("utf-8", "replace")
        self._unfinished, self._size = [], 0
        return line


# --- the log


FORMER = ".1"  # the suffix of the older part of a log, once it was rotated
MOST_BYTES = 8 * 1024 * 1024


class LogFile:
    """A log with a bound, as the one process that writes it has it. Whoever reads the former part, and then this one,
    misses nothing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1
        self._size = 0
        try:
            self._open()
        except FileNotFoundError:
            layout.make_directory(os.path.dirname(path) or ".")
            self._open()

    def write(self, data: bytes) -> None:
        """All of it. OSError: the disk is full, or the directory is gone; nothing more is written then."""
        if self._file < 0:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
            self._size += len(data)
            if self._size > MOST_BYTES:
                self._rotate()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """A second time does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        # Not blocking, and no link: an agent may have put something else there.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._file).st_size

    def _rotate(self) -> None:
        os.rename(self._path, self._path + FORMER)
        self.close()
        self._open()


# --- secrets, which leave no stream and no event in the clear, not even when they arrive in two pieces


MASK = b"********"
# What names a part of the run: it comes from the definition or from us, and others find things by it.
_NAMES = frozenset({"step", "id", "thread", "task", "type", "kind", "field", "path", "handler", "status", "workflow"})


class Secrets:
    """Values that are masked, in every spelling in which a stream or an event may carry them."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._known: set[str] = set()
        self._set(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Add more of them."""
        if not self._known.issuperset(more := set(secrets)):
            self._set(more)

    def _set(self, secrets: Iterable[str]) -> None:
        self._known.update(secrets)
        texts: set[str] = set()
        for secret in filter(None, self._known):
            # Agents print JSON: there a quote, a line break or an umlaut is spelled differently.
            texts |= {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
        # The longest first: of two secrets that begin alike, the shorter must not leave the longer's end behind.
        self._spellings = sorted({text.encode("utf-8", "surrogateescape") for text in texts}, key=len, reverse=True)
        self._longest = len(self._spellings[0]) if texts else 0
        self._pattern = re.compile(b"|".join(map(re.escape, self._spellings))) if texts else None
        in_order = sorted(texts, key=len, reverse=True)
        self._text_pattern = re.compile("|".join(map(re.escape, in_order))) if texts else None
        self.in_json = tuple({json.dumps(text)[1:-1] for text in texts})  # of ASCII characters

    def __bool__(self) -> bool:
        return self._pattern is not None

    def masked(self, data: bytes) -> bytes:
        """The data with every secret in it masked."""
        return data if self._pattern is None else self._pattern.sub(MASK, data)

    def masked_text(self, text: str) -> str:
        """The text with every secret in it masked."""
        return text if self._text_pattern is None else self._text_pattern.sub(MASK.decode(), text)

    def masked_event(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """An event's data with every secret in it masked; the names in it stay."""
        return {
            name: value
            if name in _NAMES
            else self.masked_event(value)
            if name == "waits" and isinstance(value, dict)  # a question or a gate, as its own event has it
            else self.masked_value(value)
            for name, value in data.items()
        }

    def masked_value(self, value: Any) -> Any:
        """A JSON value with every secret in its texts masked."""
        if isinstance(value, str):
            return self.masked_text(value)
        if isinstance(value, dict):
            return {self.masked_text(name): self.masked_value(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.masked_value(inner) for inner in value]
        return value

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """What can be shown now, masked, and the end that may be the beginning of a secret."""
        if self._pattern is None:
            return data, b""
        shown: list[bytes] = []
        at = 0
        held = self._held_from(data, 0)
        for match in self._pattern.finditer(data):
            if match.start() >= held:
                break
            shown += (data[at : match.start()], MASK)
            at = match.end()
            if at > held:  # what looked like a beginning was the end of this one
                held = self._held_from(data, at)
        shown.append(data[at:held])
        return b"".join(shown), data[held:]

    def _held_from(self, data: bytes, start: int) -> int:
        """Where the longest end that begins a secret (and is not all of it) starts; the data's length if none does."""
        for at in range(max(start, len(data) - self._longest + 1), len(data)):
            if any(len(data) - at < len(secret) and secret.startswith(data[at:]) for secret in self._spellings):
                return at
        return len(data)


class Masker:
    """One stream's masking, from chunk to chunk."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What of it can be shown now."""
        if not self._secrets:
            return data
        shown, self._held = self._secrets.split(self._held + data)
        return shown

    def rest(self) -> bytes:
        """What was held back, once nothing follows any more."""
        held, self._held = self._held, b""
        return self._secrets.masked(held)
