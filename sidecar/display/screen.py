"""A whole screen, of which only the rows that changed are written, in one piece.

It is the terminal's second screen, where there is one: resizing it rewraps nothing, and when it goes, what stood
before is there again, even after `kill -9`. Outside of a single write nothing about the terminal is changed but that:
the cursor stays visible and lines wrap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.signals.terminal import ScreenGuardian

if TYPE_CHECKING:
    import os

    from sidecar.display.tty import Tty

_ENTER = b"\033[?1049h\033[H\033[2J"
_LEAVE = b"\033[0m\033[?7h\033[H\033[2J\033[?1049l"  # cleared first: not every terminal has a second screen
_HIDE, _SHOW = b"\033[?25l", b"\033[?25h"
_NO_WRAP, _WRAP = b"\033[?7l", b"\033[?7h"
_LEAVING_S = 2.0


class Screen:
    """Rows on a terminal. OSError from any of it: the terminal is gone."""

    def __init__(self, tty: Tty) -> None:
        self._tty = tty
        self._shown: list[bytes] = []
        self._size: os.terminal_size | None = None  # None: the screen is not ours
        # Half of an escape sequence may stand there by then; the next escape ends it.
        self._guardian = ScreenGuardian(tty.fd, _LEAVE + _SHOW)

    @property
    def is_entered(self) -> bool:
        """Whether it shows our rows."""
        return self._size is not None

    def forget(self) -> None:
        """Others may have written over it: the next time everything is written again."""
        self._shown = []

    def draw(self, rows: list[bytes], size: os.terminal_size) -> bool:
        """Show these rows; False where the terminal still has not taken what was written before."""
        if not self._tty.write(b""):
            return False
        parts = []
        if self._size is None:
            self._guardian.watch()  # before there is anything to put back
            parts.append(_ENTER)
        if size != self._size:
            parts.append(b"\033[2J")
            self._shown = []
        shown = self._shown + [b""] * (len(rows) - len(self._shown))
        # A character that is wider or narrower here than we think spoils its own row at most: nothing wraps, each row
        # begins at its place, and nothing of the old one stays.
        changed = [b"\033[%d;1H\033[K%s" % (at, row) for at, row in enumerate(rows, 1) if row != shown[at - 1]]
        if changed or parts:
            last = b"\033[%d;1H" % len(rows)
            self._tty.write(b"".join([*parts, _HIDE, _NO_WRAP, *changed, last, _WRAP, _SHOW]))
        self._shown, self._size = rows, size
        return True

    def leave(self, farewell: bytes = b"") -> None:
        """Give the terminal back as it was, and write something there."""
        if self._size is None and not farewell:
            return
        entered, self._size, self._shown = self._size is not None, None, []
        # What was begun is finished first: half of an escape sequence would swallow the beginning of this one.
        try:
            self._tty.write((_LEAVE if entered else b"") + farewell)
            self._tty.finish(_LEAVING_S)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Whatever it shows is not ours to put back any more."""
        self._guardian.dismiss()
