"""Rows on a real terminal, as an emulator reads them."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
from collections.abc import Iterator

import pyte
import pytest

from sidecar.display.panel import Screen
from sidecar.display.terminal import Terminal

_SIZE = os.terminal_size((20, 4))


class Shown:
    """A screen, and what it looks like."""

    def __init__(self) -> None:
        self.master, self.terminal = pty.openpty()
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _SIZE.lines, _SIZE.columns, 0, 0))
        self.tty = Terminal(self.terminal)
        self.screen = Screen(self.tty)
        self.emulated = pyte.Screen(*_SIZE)
        self.stream = pyte.ByteStream(self.emulated)

    def draw(self, *rows: bytes) -> list[str]:
        assert self.screen.draw(list(rows), _SIZE)
        os.write(self.terminal, b"\033]0;end\007")
        self.emulated.title = ""
        while self.emulated.title != "end":
            assert select.select([self.master], [], [], 10)[0]
            self.stream.feed(os.read(self.master, 65536))
        return [row.rstrip() for row in self.emulated.display]

    def close(self) -> None:
        self.screen.give_up()
        self.tty.close()
        os.close(self.master)
        os.close(self.terminal)


@pytest.fixture
def shown() -> Iterator[Shown]:
    shown = Shown()
    try:
        yield shown
    finally:
        shown.close()


def test_a_row_that_is_wider_than_we_thought_spoils_no_other(shown: Shown) -> None:
    assert shown.draw(b"1", b"x" * 33, b"3", b"y" * 33) == ["1", "x" * 20, "3", "y" * 20]


def test_nothing_of_an_old_row_stays_behind_a_narrower_one(shown: Shown) -> None:
    shown.draw(b"1", b"x" * 20, b"3", b"4")
    assert shown.draw(b"1", b"short", b"3", b"4") == ["1", "short", "3", "4"]


def test_after_each_frame_lines_wrap_again_and_the_cursor_is_seen(shown: Shown) -> None:
    shown.draw(b"1", b"2", b"3", b"4")
    assert not shown.emulated.cursor.hidden
    assert pyte.modes.DECAWM in shown.emulated.mode
    assert (shown.emulated.cursor.x, shown.emulated.cursor.y) == (0, 3)


def test_a_size_that_nobody_knows_is_the_usual_one(shown: Shown) -> None:
    assert shown.tty.size() == _SIZE
    fcntl.ioctl(shown.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
    assert shown.tty.size() == (80, 24)
