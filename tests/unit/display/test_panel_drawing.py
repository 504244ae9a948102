"""When the panel draws, on a real terminal with a clock of our own."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import threading
from collections.abc import Iterator

import anyio
import pytest

from sidecar.display.panel import Panel
from sidecar.display.progress import Progress
from sidecar.display.terminal import can_show_panel
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent

_FRAME = b"\033[?25l"  # each draw begins with it


class Watched:
    """A panel on a terminal, and what it wrote there."""

    def __init__(self) -> None:
        self.master, self.terminal = pty.openpty()
        self.resize(80, 24)
        self.now = 1000.0
        self.panel = Panel(Progress(), fd=self.terminal, clock=lambda: self.now)

    def close(self) -> None:
        for fd in (self.master, self.terminal):
            os.close(fd)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def say(self, text: str) -> None:
        self.panel.on_event(RunEvent("run", kinds.MESSAGE, self.now, {"text": text}))

    def beats(self, count: int) -> bytes:
        """So many, a quarter of a second apart; what they wrote."""
        written = b""
        for _ in range(count):
            self.panel.beat()
            written += self.read()
            self.now += 0.25
        return written

    def read(self, within_s: float = 0.0) -> bytes:
        written = b""
        # The panel writes before it returns, but a terminal hands on what it was given a moment later.
        while select.select([self.master], [], [], within_s or 0.02)[0]:
            written += os.read(self.master, 65536)
        return written


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    try:
        yield watched
        watched.panel.close()
    finally:
        watched.close()


def test_it_draws_four_times_a_second_however_much_happens(watched: Watched) -> None:
    written = b""
    for number in range(100):
        watched.say(f"message {number}")
        watched.panel.beat()
        watched.now += 0.02
        written += watched.read() if number % 10 == 9 else b""
    assert 7 <= written.count(_FRAME) <= 9  # in two seconds


def test_only_rows_that_changed_are_written(watched: Watched) -> None:
    watched.say("first")
    whole = watched.beats(1)
    assert b"first" in whole
    watched.now += 1
    changed = watched.beats(1)
    assert 0 < len(changed) < len(whole) / 4
    assert b"first" not in changed


def test_a_clock_that_is_set_back_does_not_stop_it(watched: Watched) -> None:
    watched.beats(1)
    watched.now -= 3600
    watched.say("after the clock was set back")
    assert b"after the clock was set back" in watched.beats(2)


def test_a_terminal_that_takes_nothing_holds_up_nobody_and_catches_up_later(watched: Watched) -> None:
    """As after Ctrl-S, or where a connection hangs."""
    termios.tcflow(watched.terminal, termios.TCOOFF)

    def go_on() -> None:
        for number in range(400):
            watched.say(f"message {number} " + "x" * 60)
            watched.panel.beat()
            watched.now += 1

    beating = threading.Thread(target=go_on, daemon=True)
    beating.start()
    beating.join(20)
    was_held_up = beating.is_alive()
    termios.tcflow(watched.terminal, termios.TCOON)
    assert not was_held_up
    written = watched.read(0.2)
    watched.say("the last message")
    written += watched.beats(2)
    assert b"the last message" in written
    assert len(written) < 400 * 500  # what could not be shown was not kept either


def test_a_terminal_that_is_gone_ends_the_drawing_and_nothing_else(watched: Watched) -> None:
    watched.beats(1)
    os.close(watched.master)
    os.close(watched.terminal)
    try:
        watched.say("nobody sees this")
        watched.now += 1
        watched.panel.beat()
        assert isinstance(watched.panel.problem, OSError)
        watched.panel.close()
    finally:
        watched.master, watched.terminal = pty.openpty()


@pytest.mark.anyio
async def test_cancelled_it_gives_the_terminal_back_and_leaves_messages_and_a_summary(watched: Watched) -> None:
    watched.say("line one\nline two \033[2J")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watched.panel.run)
        await anyio.wait_readable(watched.master)
        tasks.cancel_scope.cancel()
    left = watched.read().rpartition(b"\033[?1049l")[2]
    assert left.startswith(b"line one\r\nline two \r\n")
    assert b"PENDING" in left
    assert b"\033[2J" not in left


def test_a_terminal_that_cannot_move_its_cursor_gets_no_panel(watched: Watched) -> None:
    assert can_show_panel(watched.terminal, {"TERM": "xterm"})
    assert not can_show_panel(watched.terminal, {"TERM": "dumb"})
    assert not can_show_panel(watched.terminal, {})
    read, write = os.pipe()
    assert not can_show_panel(write, {"TERM": "xterm"})
    os.close(read)
    os.close(write)
