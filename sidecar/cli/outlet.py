"""Our output, written by a thread of its own: a reader that is slow, or has gone, never holds up a run."""

from __future__ import annotations

import os
import queue
import sys
import threading

import anyio

_MOST_WAITING = 100_000
_LOOK_S = 0.005
_WAIT_S = 1.0


class Outlet:
    """Texts for standard output and standard error, in order. Where nobody reads, they are dropped."""

    def __init__(self) -> None:
        self._texts: queue.Queue[tuple[int, str] | None] = queue.Queue()
        self._encodings = {1: sys.stdout.encoding or "utf-8", 2: sys.stderr.encoding or "utf-8"}
        self._gone: dict[int, str] = {}  # those that nobody can read, and why
        self._dropped = 0
        # Not awaited by the interpreter's end: what nobody reads must not keep us.
        self._thread = threading.Thread(target=self._write_all, name="output", daemon=True)
        sys.stdout.flush()
        self._thread.start()

    @property
    def lost(self) -> str | None:
        """Why nobody can read standard output any more."""
        return self._gone.get(1)

    def write(self, text: str) -> None:
        """To standard output."""
        self._put(1, text)

    def beside(self, text: str) -> None:
        """To standard error."""
        self._put(2, text)

    def remark(self, text: str) -> None:
        """A line to standard error, marked as ours."""
        self._put(2, f"sidecar: {text}\n")

    async def shown(self) -> None:
        """Wait until all of it is out, but not for long."""
        with anyio.move_on_after(_WAIT_S):
            while self._texts.unfinished_tasks:  # noqa: ASYNC110 - a thread cannot set an event of the loop
                await anyio.sleep(_LOOK_S)

    def close(self) -> None:
        """Wait until all of it is out: by now nothing is held up by that."""
        if self._dropped:
            self.remark(f"{self._dropped} lines were not shown: nobody read them in time")
        self._texts.put(None)
        self._thread.join()

    def _put(self, descriptor: int, text: str) -> None:
        if self._texts.qsize() >= _MOST_WAITING:
            self._dropped += 1
        else:
            self._texts.put((descriptor, text))

    def _write_all(self) -> None:
        while (entry := self._texts.get()) is not None:
            descriptor, text = entry
            if descriptor not in self._gone:
                self._write(descriptor, text)
            self._texts.task_done()
        self._texts.task_done()

    def _write(self, descriptor: int, text: str) -> None:
        left = memoryview(text.encode(self._encodings[descriptor], "backslashreplace"))
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        except OSError as error:  # a pipe without a reader, a full disk, a terminal that hung up
            self._gone[descriptor] = error.strerror or str(error)
