"""The live panel: draws a run on a terminal, at most four times a second, and never holds up the run.

What is known of the run becomes rows for a screen of any size: what matters most stays when there is little room. Only
the rows that changed are written, in one piece. The screen is the terminal's second one, where there is one: resizing
it rewraps nothing, and when it goes, what stood before is there again, even after `kill -9`. Outside of a single write
nothing about the terminal is changed but that: the cursor stays visible and lines wrap.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Literal

import anyio

from sidecar import text
from sidecar.display.terminal import LEAVE_SCREEN, SHOW_CURSOR, Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sidecar.display.progress import Progress, Task
    from sidecar.model.events import RunEvent

StyleName = Literal["plain", "dim", "strong", "good", "warn", "bad", "frame"]
Span = tuple[str, StyleName]
Row = tuple[Span, ...]
_BEAT_S = 0.25
_IDLE_S = 1.0  # the times in it go on also when nothing happens
_REPAINT_S = 10.0  # whatever others wrote over it is mended then
_RESET = "\033[0m"
_STYLES: dict[StyleName, str] = {
    "plain": "",
    "dim": "\033[2m",
    "strong": "\033[1m",
    "good": "\033[32m",
    "warn": "\033[1;33m",
    "bad": "\033[1;31m",
    "frame": "\033[34m",
}
_WITHOUT_COLOUR: dict[StyleName, str] = {**_STYLES, "good": "", "warn": "\033[1m", "bad": "\033[1m", "frame": ""}
_ASCII = str.maketrans("╭╮╰╯├┤─│█░▶‖✓✗■↻·…–", "++++++-|#.>=vx#o-~-")
_BOX_COLUMNS, _BOX_ROWS = 30, 12  # below that a box would cost more than it gives
_FACT_COLUMNS = 28
_SYMBOLS: dict[str, tuple[str, StyleName]] = {
    "pending": ("·", "dim"),
    "running": ("▶", "good"),
    "paused": ("‖", "warn"),
    "completed": ("✓", "good"),
    "failed": ("✗", "bad"),
    "aborted": ("✗", "bad"),
    "stopped": ("■", "warn"),
    "interrupted": ("!", "warn"),
}
_MESSAGES = 3
_HEADING_COLUMNS = 20
_TASK_SYMBOLS: dict[str, tuple[str, StyleName]] = {
    "running": ("▶", "good"),
    "done": ("✓", "good"),
    "failed": ("✗", "bad"),
    "again": ("↻", "warn"),
}
_ENTER = b"\033[?1049h\033[H\033[2J"
_HIDE_CURSOR = b"\033[?25l"
_NO_WRAP, _WRAP = b"\033[?7l", b"\033[?7h"
_LEAVING_S = 2.0


class Panel:
    """What a person sees of a run while it goes on, on the terminal `fd`. `keys`: whether the key `s` is read."""

    def __init__(
        self, progress: Progress, *, fd: int = 1, clock: Callable[[], float] = time.time, keys: bool = True
    ) -> None:
        self._progress = progress
        self._clock = clock
        self._keys = keys
        self._paint = _Paint(sys.stdout.encoding or "utf-8", colour=not os.environ.get("NO_COLOR"))
        self.terminal = Terminal(fd)
        self._screen = Screen(self.terminal)
        self._changed = True
        self._drawn_at = self._painted_at = float("-inf")
        self._size: os.terminal_size | None = None
        self._hidden = 0
        self.problem: Exception | None = None  # why it shows nothing any more

    def on_event(self, event: RunEvent) -> None:
        """Note what happened; it is shown with the next beat."""
        self._progress.on_event(event)
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
        """Leave the terminal to others meanwhile."""
        self._hidden += 1
        try:
            self._leave()
            yield
        finally:
            self._hidden -= 1
            self._drawn_at = float("-inf")

    def close(self) -> None:
        """Give the terminal back, and leave a summary on it."""
        if not self.terminal.is_open:
            return
        self._hidden += 1
        if self.problem is None and self.terminal.in_foreground():
            self._leave(self._summary())
        self._screen.give_up()
        self.terminal.close()

    def _draw_where_due(self) -> None:
        now = self._clock()
        waited_s = abs(now - self._drawn_at)  # a clock that was set back must not stop us
        if waited_s < _BEAT_S:
            return
        if not self.terminal.in_foreground():
            self._screen.forget()
            return
        size = self.terminal.size()
        if not (self._changed or waited_s >= _IDLE_S or size != self._size):
            return
        if abs(now - self._painted_at) >= _REPAINT_S:
            self._screen.forget()
            self._painted_at = now
        rows = compose(self._progress, size.columns, size.lines, now, keys=self._keys)
        if self._screen.draw([self._paint.row(row) for row in rows], size):
            self._drawn_at, self._size, self._changed = now, size, False

    def _summary(self) -> bytes:
        rows = summary(self._progress, self.terminal.size().columns, self._clock())
        messages = [line for message in self._progress.messages for line in self._paint.lines(message.text)]
        return b"".join(line + b"\n" for line in [*messages, *map(self._paint.row, rows)])

    def _leave(self, last: bytes = b"") -> None:
        try:
            self._screen.leave(last)
        except OSError as error:
            self.problem = error

    def _give_up(self, error: Exception) -> None:
        self.problem = error
        lines = self._paint.lines(f"the panel cannot be shown ({error!r}); the run continues")
        self._leave(b"".join(line + b"\n" for line in lines))


def compose(progress: Progress, columns: int, lines: int, now: float, *, keys: bool) -> list[Row]:
    """Exactly `lines` rows of `columns` cells. `keys`: whether the key `s` is read."""
    boxed = columns >= _BOX_COLUMNS and lines >= _BOX_ROWS
    width, room = (columns - 4, lines - 2) if boxed else (columns, lines)
    foot = _foot(width, keys=keys and not progress.is_over, boxed=boxed)
    top = [*_essentials(progress, width), *_signals(progress, width, keys=keys, lines=room)]
    # What was asked of the run is worth more than the hint how to ask for it.
    foot = foot if len(top) + len(foot) <= room else foot[-1:] if len(top) < room else []
    facts = _facts(progress, width, now)[: max(0, room - len(top) - len(foot))]
    body: list[Row | str] = [*top[:room], *facts]
    body += _details(progress, width, room - len(body) - len(foot), now)
    body += [_fitted((), width)] * (room - len(body) - len(foot)) + foot
    return _framed(body, columns, _title(progress), progress.run_id) if boxed else _unframed(body, columns)


def summary(progress: Progress, columns: int, now: float) -> list[Row]:
    """What stays on the terminal when the panel goes: how the run ended, in as few rows as that takes."""
    width = columns - 4 if columns >= _BOX_COLUMNS else columns
    body = [*_essentials(progress, width), *_facts(progress, width, now)]
    return _framed(body, columns, _title(progress), progress.run_id) if width < columns else _unframed(body, columns)


def _title(progress: Progress) -> str:
    return text.clean(" · ".join(filter(None, (progress.workflow or "run", progress.workspace))))


def _foot(width: int, *, keys: bool, boxed: bool) -> list[Row | str]:
    if not keys:
        return []
    hint = text.first_fitting(width, "Press s to toggle stop", "s: toggle stop")
    row = _fitted([(hint, "dim")], width)
    return ["", row] if boxed else [row]


def _essentials(progress: Progress, width: int) -> list[Row]:
    symbol, style = _SYMBOLS[progress.status]
    status: list[Span] = [(f"{symbol} {progress.status.upper()}", style)]
    where = text.clean(_where(progress))
    if where:
        status.append((f"  {where}", "plain"))
    rows = [_fitted(status, width)]
    bar = _bar(progress, width)
    if bar is not None:
        rows.append(bar)
    return rows


def _where(progress: Progress) -> str:
    if progress.is_over:
        return progress.reason
    if progress.waits_for:
        return f"waits for {progress.waits_for}" if progress.status == "paused" else f"asks: {progress.waits_for}"
    parts = [f"step {progress.step}"] if progress.step else []
    if progress.loop is not None and progress.loop.done < progress.loop.number:
        parts.append(f"iteration {progress.loop.number}")
    if progress.attempt > 1:
        parts.append(f"attempt {progress.attempt}")
    return " · ".join(parts)


def _bar(progress: Progress, width: int) -> Row | None:
    done, of, unit = 0, None, ""
    if progress.loop is not None and not (progress.loop.is_over and progress.tasks.running):
        done, of, unit = progress.loop.done, progress.loop.of, "iterations"
    elif progress.tasks:
        done, _, of = progress.tasks.count()
        unit = "tasks"
    if not unit:
        return None
    if not of or (progress.status == "completed" and unit == "iterations"):  # it was a maximum, and is over
        return _fitted([(f"{done} {unit} done", "strong")], width)
    words = text.share(done, of)
    room = width - len(words) - 2
    if room < 4:
        return _fitted([(words, "strong")], width)
    full = room * min(done, of) // of
    return _fitted([("█" * full, "good"), ("░" * (room - full), "dim"), (f"  {words}", "strong")], width)


def _signals(progress: Progress, width: int, *, keys: bool, lines: int) -> list[Row]:
    """The signals that stand. The words for a stop are never cut."""
    if progress.is_over:
        return []
    rows: list[Row] = []
    stop, abort = progress.signals.get("stop"), progress.signals.get("abort")
    if abort is not None:
        rows.append(_fitted([(f"✗ Abort requested: {text.clean(abort.reason)}", "bad")], width))
    if stop is None:
        return rows
    whole = "Stop requested (Press 's' to cancel)" if keys else "Stop requested"
    if len(whole) <= width:
        mark = "■ " if len(whole) + 2 <= width else ""
        rows.append(_fitted([(mark + whole, "warn")], width))
    else:
        rows += [_fitted([(line, "warn")], width) for line in ("■ Stop requested", "  press s to cancel")]
    reason = text.clean(stop.reason)
    words = (f"  by {stop.source} {text.clean(stop.path)}: {reason}", f"  by {stop.source}: {reason}")
    if lines > len(rows) + 3:
        rows.append(_fitted([(text.first_fitting(width, *words), "dim")], width))
    return rows


def _facts(progress: Progress, width: int, now: float) -> list[Row]:
    facts = [(label, words) for label, words in _known(progress, now) if words]
    columns = max(1, min(4, width // _FACT_COLUMNS))
    if columns == 1:
        return _packed(facts, width)
    each = width // columns
    rows: list[Row] = []
    for first in range(0, len(facts), columns):
        spans: list[Span] = []
        for label, words in facts[first : first + columns]:
            spans += _fitted([(f"{label}: ", "dim"), (words, "plain")], each)
        rows.append(_fitted(spans, width))
    return rows


def _known(progress: Progress, now: float) -> list[tuple[str, str]]:
    loop, (ended, failed, of) = progress.loop, progress.tasks.count()
    remaining_s = loop.remaining_s(now) if loop is not None and not progress.is_over else None
    counts_down = loop is not None and loop.of is not None and not progress.is_over
    average_s = loop.average_s if loop is not None else None
    tasks = f"{ended} / {of}" if of is not None else f"{ended} done"
    known = [
        ("Elapsed", text.duration(progress.elapsed_s(now))),
        ("ETA", f"~{text.duration(remaining_s)}" if remaining_s is not None else "–" if counts_down else ""),
        ("Avg/iter", text.duration(average_s) if average_s is not None else ""),
        ("Mode", text.clean(progress.mode)),
        ("Tasks", tasks + (f", {failed} failed" if failed else "") if progress.tasks else ""),
        ("Steps", f"{progress.steps_done} done" if progress.steps_done else ""),
        ("Cost", text.cost(progress.agents.cost_usd) if progress.agents.cost_usd is not None else ""),
        ("Tokens", text.tokens(progress.agents.tokens) if progress.agents.tokens else ""),
    ]
    if progress.updated_at is not None and not progress.is_over:
        known.append(("Updated", f"{text.duration(now - progress.updated_at)} ago"))
    return known


def _packed(facts: Sequence[tuple[str, str]], width: int) -> list[Row]:
    """As many as fit side by side."""
    rows: list[list[Span]] = [[]]
    used = 0
    for label, words in facts:
        size = len(label) + 2 + text.width(words)
        if used and used + 2 + size > width:
            rows.append([])
            used = 0
        if used:
            rows[-1].append(("  ", "plain"))
            used += 2
        rows[-1] += [(f"{label}: ", "dim"), (words, "plain")]
        used += size
    return [_fitted(spans, width) for spans in rows if spans]


def _details(progress: Progress, width: int, room: int, now: float) -> list[Row | str]:
    """Agents or tasks, messages, output: in that order, each with a heading while there is room."""
    if room < 1:
        return []
    heads = room >= 6 and width >= _HEADING_COLUMNS
    for_output = min(len(progress.agents.lines), max(1, room // 3))
    rows: list[Row | str] = []
    workers = _workers(progress, width, max(1, room - for_output - heads), now)
    if workers:
        rows += [*(["Tasks" if progress.tasks.running else "Agents"] if heads else []), *workers]
    messages = list(progress.messages)[-_MESSAGES:] if heads and room - len(rows) > 5 else []
    if messages:
        rows.append("Messages")
        for message in messages:
            rows.append(_fitted([(text.clean(message.text), "warn" if message.is_problem else "plain")], width))
    left = room - len(rows)
    if progress.agents.lines and left > heads:
        rows += ["Output"] if heads else []
        rows += _output(progress, width, left - heads)
    return rows


def _workers(progress: Progress, width: int, most: int, now: float) -> list[Row]:
    if progress.is_over:
        return []
    if progress.tasks.running:
        return _tasks(progress, width, most, now)
    agents = list(progress.agents.running.values())
    shown = agents if len(agents) <= most else agents[: most - 1]
    rows = [
        _fitted(
            [
                (f"{text.clean(agent.name)}  ", "strong"),
                (f"pid {agent.pid}  {text.duration(now - agent.began_at)}  ", "dim"),
                (text.clean(agent.doing), "plain"),
            ],
            width,
        )
        for agent in shown
    ]
    if len(shown) < len(agents):
        rows.append(_fitted([(f"… and {len(agents) - len(shown)} more", "dim")], width))
    return rows


def _tasks(progress: Progress, width: int, most: int, now: float) -> list[Row]:
    shown = progress.tasks.rows(most)
    if len(progress.tasks.running) > most:
        shown = shown[: most - 1]
    doing = {agent.task: agent.doing for agent in progress.agents.running.values() if agent.task and agent.doing}
    longest = max((text.width(text.clean(task.id)) for task in shown), default=0)
    rows = [_task(task, doing.get(task.id, ""), min(longest, width // 2), width, now) for task in shown]
    hidden = len(progress.tasks.running) - len(shown)
    if hidden > 0:
        rows.append(_fitted([(f"… and {hidden} more", "dim")], width))
    return rows


def _task(task: Task, doing: str, longest: int, width: int, now: float) -> Row:
    symbol, style = _TASK_SYMBOLS[task.state]
    return _fitted(
        [
            (f"{symbol} ", style),
            *_fitted([(text.clean(task.id), "plain")], longest),
            (f"  {text.duration(task.lasted_s(now)):>7}  ", "dim"),
            (text.clean(doing if doing and task.state == "running" else task.doing), "plain"),
        ],
        width,
    )


def _output(progress: Progress, width: int, room: int) -> list[Row]:
    lines = list(progress.agents.lines)[-room:]
    several = len({line.source for line in lines}) > 1
    return [
        _fitted(
            [
                (f"{text.clean(line.source)}: " if several else "", "dim"),
                (text.clean(line.text), "dim" if line.stream == "stderr" else "plain"),
            ],
            width,
        )
        for line in lines
    ]


def _fitted(spans: Iterable[Span], width: int) -> Row:
    """Exactly so wide: cut where it is too long, filled with blanks where it is too short."""
    row: list[Span] = []
    left = width
    for piece, style in spans:
        shown = text.cut(piece, left)
        if shown:
            row.append((shown, style))
            left -= text.width(shown)
        if shown != piece:
            break
    if left:
        row.append((" " * left, "plain"))
    return tuple(row)


def _framed(body: Iterable[Row | str], width: int, title: str, corner: str) -> list[Row]:
    """A box around rows that are four cells narrower than it; a word is a line across with that word in it."""
    bottom: Row = (("╰" + "─" * (width - 2) + "╯", "frame"),)
    return [_top(width, title, corner), *(_inside(row, width) for row in body), bottom]


def _unframed(body: Iterable[Row | str], width: int) -> list[Row]:
    """The same without a box."""
    return [_line("─", row, "─", width) if isinstance(row, str) else row for row in body]


def _inside(row: Row | str, width: int) -> Row:
    return _line("├", row, "┤", width) if isinstance(row, str) else (("│ ", "frame"), *row, (" │", "frame"))


def _line(left: str, word: str, right: str, width: int) -> Row:
    shown = f" {word} " if word else ""
    return ((f"{left}─", "frame"), (shown, "dim"), ("─" * (width - 3 - len(shown)) + right, "frame"))


def _top(width: int, title: str, corner: str) -> Row:
    room = width - 6
    title = text.cut(title, room)
    left = room - text.width(title)
    shown = f" {corner} ─" if corner and text.width(corner) + 6 <= left else ""
    line = "─" * (left + 1 - text.width(shown))
    return (("╭─ ", "frame"), (title, "strong"), (f" {line}", "frame"), (shown, "dim"), ("╮", "frame"))


class _Paint:
    """Rows as bytes: with colours, or without, in the encoding of the terminal."""

    def __init__(self, encoding: str, *, colour: bool) -> None:
        self._encoding = encoding
        self._in_ascii = not encoding.lower().startswith("utf")
        self._codes = _STYLES if colour else _WITHOUT_COLOUR

    def row(self, row: Row) -> bytes:
        """A row with its styles."""
        parts = []
        for piece, style in row:
            code = self._codes[style]
            parts.append(f"{code}{piece}{_RESET}" if code else piece)
        return self._encoded("".join(parts))

    def lines(self, message: str) -> list[bytes]:
        """A text of the run, as the terminal may wrap it."""
        return [self._encoded(text.clean(line)) for line in message.splitlines()]

    def _encoded(self, line: str) -> bytes:
        return (line.translate(_ASCII) if self._in_ascii else line).encode(self._encoding, "replace")


class Screen:
    """Rows on a terminal. OSError from any of it: the terminal is gone."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._shown: list[bytes] = []
        self._size: os.terminal_size | None = None  # None: the screen is not ours

    def forget(self) -> None:
        """Others may have written over it: the next time everything is written again."""
        self._shown = []

    def draw(self, rows: list[bytes], size: os.terminal_size) -> bool:
        """Show these rows; False where the terminal still has not taken what was written before."""
        if not self._terminal.write(b""):
            return False
        parts = []
        if self._size is None:
            self._terminal.watch_screen(True)  # before there is anything to put back
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
            self._terminal.write(b"".join([*parts, _HIDE_CURSOR, _NO_WRAP, *changed, last, _WRAP, SHOW_CURSOR]))
        self._shown, self._size = rows, size
        return True

    def leave(self, last: bytes = b"") -> None:
        """Give the terminal back as it was, and write something there."""
        if self._size is None and not last:
            return
        entered, self._size, self._shown = self._size is not None, None, []
        # What was begun is finished first: half of an escape sequence would swallow the beginning of this one.
        try:
            self._terminal.write((LEAVE_SCREEN if entered else b"") + last)
            self._terminal.finish(_LEAVING_S)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Whatever it shows is not ours to put back any more."""
        self._terminal.watch_screen(False)
