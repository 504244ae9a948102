"""The live panel: draws a run on a terminal, at most four times a second, and never holds up the run."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import anyio
from rich.console import COLOR_SYSTEMS, Console
from rich.style import Style

from sidecar.display import cells, frame
from sidecar.display.screen import Screen
from sidecar.display.tty import Tty

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from sidecar.display.progress import Progress
    from sidecar.display.rows import Row, StyleName
    from sidecar.model.events import RunEvent

_BEAT_S = 0.25
_IDLE_S = 1.0  # the times in it go on also when nothing happens
_REPAINT_S = 10.0  # whatever others wrote over it is mended then
_STYLES: dict[StyleName, str] = {
    "plain": "none",
    "dim": "dim",
    "strong": "bold",
    "good": "green",
    "warn": "bold yellow",
    "bad": "bold red",
    "frame": "blue",
}
_ASCII = str.maketrans("╭╮╰╯├┤─│█░▶‖✓✗■↻·…–", "++++++-|#.>=vx#o-~-")


class Panel:
    """What a person sees of a run while it goes on. `keys`: whether the key `s` is heard."""

    def __init__(
        self,
        progress: Progress,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.time,
        keys: bool = True,
    ) -> None:
        console = console or Console()
        self._progress = progress
        self._clock = clock
        self._keys = keys
        self._paint = _Paint(console)
        self._tty = Tty(console.file.fileno())
        self._screen = Screen(self._tty)
        self._changed = True
        self._drawn_at = self._painted_at = float("-inf")
        self._size: os.terminal_size | None = None
        self._hidden = 0
        self.problem: Exception | None = None  # why it shows nothing any more

    def hear(self, event: RunEvent) -> None:
        """Take in what happened; it is shown with the next beat."""
        self._progress.hear(event)
        self._changed = True

    async def run(self) -> None:
        """Show the run until cancelled; then give the terminal back, and leave a summary on it."""
        try:
            while True:
                self.beat()
                await anyio.sleep(_BEAT_S)
        finally:
            self.close()

    def beat(self) -> None:
        """Draw, if it is time to and there is something new."""
        if self.problem is not None or self._hidden:
            return
        try:
            self._draw_where_due()
        except OSError as error:  # hung up
            self.problem = error
        except Exception as error:
            # A defect of a picture must not end what it is a picture of.
            self._give_up(error)

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Leave the terminal to somebody else meanwhile."""
        self._hidden += 1
        try:
            self._leave()
            yield
        finally:
            self._hidden -= 1
            self._drawn_at = float("-inf")

    def redraw(self) -> None:
        """Others have written to the terminal, or may have."""
        self._screen.forget()
        self._drawn_at = float("-inf")

    def close(self) -> None:
        """Give the terminal back, and leave a summary on it."""
        if not self._tty.is_open:
            return
        self._hidden += 1
        if self.problem is None and self._tty.in_foreground():
            self._leave(self._summary())
        self._screen.give_up()
        self._tty.close()

    def _draw_where_due(self) -> None:
        now = self._clock()
        waited_s = abs(now - self._drawn_at)  # a clock that was set back must not stop us
        if waited_s < _BEAT_S:
            return
        if not self._tty.in_foreground():
            self._screen.forget()
            return
        size = self._tty.size()
        if not (self._changed or waited_s >= _IDLE_S or size != self._size):
            return
        if abs(now - self._painted_at) >= _REPAINT_S:
            self._screen.forget()
            self._painted_at = now
        rows = frame.compose(self._progress, size.columns, size.lines, now, keys=self._keys)
        if self._screen.draw([self._paint.row(row) for row in rows], size):
            self._drawn_at, self._size, self._changed = now, size, False

    def _summary(self) -> bytes:
        rows = frame.summary(self._progress, self._tty.size().columns, self._clock())
        notes = [line for note in self._progress.notes for line in self._paint.lines(note.text)]
        return b"".join(line + b"\n" for line in [*notes, *map(self._paint.row, rows)])

    def _leave(self, farewell: bytes = b"") -> None:
        try:
            self._screen.leave(farewell)
        except OSError as error:
            self.problem = error

    def _give_up(self, error: Exception) -> None:
        self.problem = error
        told = self._paint.lines(f"the panel cannot be shown ({error!r}); the run goes on")
        self._leave(b"".join(line + b"\n" for line in told))


class _Paint:
    """Rows as bytes for one console: its colours, or none, and its encoding."""

    def __init__(self, console: Console) -> None:
        self._encoding = console.encoding
        self._in_ascii = not console.encoding.startswith("utf")
        self._codes: dict[StyleName, tuple[str, str]] = {}
        for name, definition in _STYLES.items():
            style = Style.parse(definition)
            system = COLOR_SYSTEMS[console.color_system] if console.color_system else None
            marked = (style.without_color if console.no_color else style).render("|", color_system=system)
            before, _, after = marked.partition("|")
            self._codes[name] = before, after

    def row(self, row: Row) -> bytes:
        """A row with its styles."""
        parts = []
        for text, style in row:
            before, after = self._codes[style]
            parts.append(f"{before}{text}{after}" if before else text)
        return self._encoded("".join(parts))

    def lines(self, text: str) -> list[bytes]:
        """A text of the run, as the terminal may wrap it."""
        return [self._encoded(cells.clean(line)) for line in text.splitlines()]

    def _encoded(self, text: str) -> bytes:
        return (text.translate(_ASCII) if self._in_ascii else text).encode(self._encoding, "replace")
