"""The live panel as a person sees it: a real process draws on a real terminal, and the screen is read."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyte
import pytest

from sidecar.model import events as kinds
from tests.kit.terminal import TwoScreens

_PROGRAM = Path(__file__).parent / "programs" / "show_panel.py"
_SNAPSHOTS = Path(__file__).parent / "snapshots"
_DEADLINE_S = 120.0
_SIZES = [(80, 24), (40, 12), (20, 10), (200, 60)]


class Show:
    """The process, its terminal, and what is on the screen."""

    def __init__(self, columns: int, lines: int, environment: dict[str, str] | None = None) -> None:
        self.master, self.terminal = pty.openpty()
        self.screen = TwoScreens(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.written = b""
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.terminal)
        read, self._commands = os.pipe()
        self._answers, write = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), str(read), str(write)],
            stdin=self.terminal,
            stdout=self.terminal,
            stderr=subprocess.PIPE,
            pass_fds=[read, write],
            env={**_environment(), **(environment or {})},
        )
        os.close(read)
        os.close(write)
        self._marks = 0
        self._expect_answer()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        for fd in (self.master, self.terminal, self._answers, self._commands):
            if fd >= 0:
                os.close(fd)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def do(self, name: str, /, *args: Any, **kwargs: Any) -> str:
        os.write(self._commands, (json.dumps([name, args, kwargs]) + "\n").encode())
        return self._expect_answer()

    def tell(self, kind: str, /, **data: Any) -> None:
        self.do("tell", kind, **data)

    def draw(self) -> list[str]:
        """Draw, and read the whole screen."""
        self.do("draw")
        return self.look()

    def look(self) -> list[str]:
        self._marks += 1
        mark = f"mark {self._marks}"
        self.do("sync", mark)
        self._wait(lambda: self.screen.title == mark)
        return list(self.screen.display)

    def ended(self) -> int:
        os.close(self._commands)
        self._commands = -1
        self._wait(lambda: self.process.poll() is not None)
        return self.process.returncode

    def error(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def _expect_answer(self) -> str:
        self._wait(lambda: bool(select.select([self._answers], [], [], 0)[0]))
        return str(json.loads(os.read(self._answers, 65536)))

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Read the screen until something is true."""
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "\n".join(self.screen.display)
            if select.select([self.master, self._answers], [], [], 0.05)[0]:
                self.read()

    def read(self) -> None:
        while select.select([self.master], [], [], 0)[0]:
            data = os.read(self.master, 65536)
            self.written += data
            self.stream.feed(data)


def _environment() -> dict[str, str]:
    """Where a person would have it in colour, whatever runs the tests."""
    removed = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    kept = {name: value for name, value in os.environ.items() if name not in removed}
    return {**kept, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}


@pytest.fixture
def show() -> Iterator[Callable[..., Show]]:
    shows: list[Show] = []

    def begin(columns: int = 80, lines: int = 24, environment: dict[str, str] | None = None) -> Show:
        shows.append(Show(columns, lines, environment))
        return shows[-1]

    try:
        yield begin
    finally:
        for each in shows:
            each.close()


def play_iterate(show: Show) -> None:
    """Twelve iterations of fifty, one of them under way, and a stop from a file."""
    show.tell(kinds.RUN_STARTED, workflow="iterate", inputs={"mode": "loop"})
    for number in range(1, 14):
        agent, step = f"a{number}", f"loop[{number - 1}]/work"
        show.tell(kinds.ITERATION, step="loop", iteration=number, of=50)
        show.tell(kinds.STEP_STARTED, step=step, id="work", type="agent", attempt=1)
        show.tell(kinds.AGENT_STARTED, agent_id=agent, name="claude", pid=4000 + number, step=step)
        if number < 13:
            show.do("advance", 28)
            show.tell(kinds.AGENT_ENDED, agent_id=agent)
            show.tell(kinds.USAGE, step=step, cost_usd=0.1234, tokens=9900)
            show.tell(kinds.STEP_COMPLETED, step=step, id="work", type="agent")
    show.tell(kinds.MESSAGE, text="Half of the tests pass")
    answer = [f"line {number} of the answer" for number in range(80)]
    show.tell(kinds.AGENT_OUTPUT, agent_id="a13", stream="stdout", lines=answer)
    show.tell(
        kinds.AGENT_OUTPUT,
        agent_id="a13",
        stream="stdout",
        lines=["\033[31mred\033[0m \033[2J\a\tthen 日本語", "10%\r90%"],
    )
    show.tell(kinds.ACTIVITY, agent_id="a13", activity="tool_started", name="Edit")
    path = "/project/.swissarmyhammer/.stop"
    show.tell(kinds.SIGNAL, signal="stop", source="file", path=path, reason="Tests are red on main")
    show.do("advance", 6)


def play_parallel(show: Show) -> None:
    """Nine tasks, three of them under way."""
    show.tell(kinds.RUN_STARTED, workflow="standards:fix")
    show.tell(kinds.EVALUATED, step="each", field="items", outcome=["answer", list("abcdefghi")])
    for index in range(5):
        show.tell(kinds.TASK_STARTED, task=f"each.{index}", step="each", index=index)
        show.tell(kinds.AGENT_STARTED, agent_id=f"a{index}", name="codex", pid=5000 + index, task=f"each.{index}")
        show.do("advance", 7)
    show.tell(kinds.AGENT_ENDED, agent_id="a0")
    show.tell(kinds.TASK_ENDED, task="each.0")
    show.tell(kinds.TASK_ENDED, task="each.1", error={"message": "eslint exited with 2"})
    show.tell(kinds.ACTIVITY, agent_id="a3", activity="tool_started", name="Read")
    show.tell(kinds.AGENT_OUTPUT, agent_id="a2", stream="stdout", lines=["checking c"])
    show.tell(kinds.AGENT_OUTPUT, agent_id="a3", stream="stderr", lines=["checking d"])


@pytest.mark.parametrize("play", [play_iterate, play_parallel])
@pytest.mark.parametrize(("columns", "lines"), _SIZES)
def test_the_screen_is_what_the_snapshot_says(
    show: Callable[..., Show], columns: int, lines: int, play: Callable[[Show], None]
) -> None:
    shown = show(columns, lines)
    play(shown)
    drawn = "".join(row.rstrip() + "\n" for row in shown.draw())
    snapshot = _SNAPSHOTS / f"{play.__name__.removeprefix('play_')}-{columns}x{lines}.txt"
    if os.environ.get("SIDECAR_TEST_WRITE_SNAPSHOTS"):
        snapshot.write_text(drawn)
    assert drawn == snapshot.read_text()


def test_resized_from_large_to_small_and_back_it_looks_as_if_it_had_never_been_otherwise(
    show: Callable[..., Show],
) -> None:
    shown = show(80, 24)
    play_iterate(shown)
    shown.draw()
    for waited_s, (columns, lines) in enumerate([(20, 10), (200, 60), (40, 12), (20, 10), (80, 24), (80, 30)], 1):
        shown.resize(columns, lines)
        shown.do("advance", 1)
        fresh = show(columns, lines)
        play_iterate(fresh)
        fresh.do("advance", waited_s)
        assert shown.draw() == fresh.draw()


@pytest.mark.parametrize(("columns", "lines"), [(20, 10), (21, 3), (10, 2), (1, 1), (300, 5), (29, 60)])
def test_no_screen_is_too_small_for_the_status(show: Callable[..., Show], columns: int, lines: int) -> None:
    shown = show(columns, lines)
    play_iterate(shown)
    rows = shown.draw()
    assert len(rows) == lines
    assert columns == 1 or rows[0][0] == "▶"
    if columns >= 20 and lines >= 3:
        assert "12 / 50 (24%)" in rows[1]
        assert "Stop requested" in rows[2]


def test_ten_minutes_of_work_leave_nothing_on_the_screen_that_a_fresh_one_would_not_have(
    show: Callable[..., Show],
) -> None:
    shown = show(80, 24)
    shown.stream.feed(b"$ sidecar iterate my-task\r\n")
    before = list(shown.screen.display)
    shown.tell(kinds.RUN_STARTED, workflow="iterate")
    sizes = [(80, 24), (60, 15), (20, 10), (120, 30), (40, 12)]
    for minute in range(10):
        shown.resize(*sizes[minute % len(sizes)])
        assert shown.do("work", 60, minute) == "done"
        shown.do("advance", 1)
        drawn = shown.draw()
        shown.do("repaint")
        assert shown.look() == drawn
        assert shown.screen.title.startswith("mark")  # and not what an agent wanted
    entered, resized = shown.written.count(b"\033[?1049h"), shown.written.count(b"\033[2J")
    assert (entered, resized) == (1, 1 + 10)  # cleared where it has to be, and never to draw
    shown.resize(80, 24)
    shown.tell(kinds.RUN_ENDED, status="completed")
    shown.do("close")
    assert shown.ended() == 0
    shown.read()
    left = [row.rstrip() for row in shown.screen.display]
    assert left[0] == before[0].rstrip()
    assert left[1].startswith("╭─ iterate · my-task")
    assert "✓ COMPLETED" in left[2]
    assert left[shown.screen.cursor.y :] == [""] * (24 - shown.screen.cursor.y)


def test_afterwards_the_terminal_is_as_it_was(show: Callable[..., Show]) -> None:
    shown = show()
    modes = set(shown.screen.mode)
    play_iterate(shown)
    shown.draw()
    shown.do("close")
    assert shown.ended() == 0
    shown.read()
    assert shown.screen.mode == modes
    assert not shown.screen.cursor.hidden
    assert shown.screen.cursor.attrs.fg == "default"
    assert termios.tcgetattr(shown.terminal) == shown.before


def test_an_exception_beside_the_panel_restores_the_terminal_too(show: Callable[..., Show]) -> None:
    shown = show()
    modes = set(shown.screen.mode)
    play_iterate(shown)
    shown.draw()
    os.write(shown._commands, (json.dumps(["fail", [], {}]) + "\n").encode())
    assert shown.ended() == 1
    shown.read()
    assert "a defect beside the panel" in shown.error()
    assert (shown.screen.mode, shown.screen.cursor.hidden) == (modes, False)
    assert shown.written.rstrip().count(b"\033[?1049l") == 1
    assert shown.screen.display[1].startswith("╭─ iterate")


def test_killed_it_leaves_the_first_screen_a_cursor_and_lines_that_wrap(show: Callable[..., Show]) -> None:
    shown = show()
    shown.stream.feed(b"$ sidecar iterate my-task\r\n")
    before, modes = list(shown.screen.display), set(shown.screen.mode)
    play_iterate(shown)
    assert shown.draw() != before
    shown.process.kill()
    shown._wait(lambda: shown.screen.display == before)
    assert (shown.screen.mode, shown.screen.cursor.hidden) == (modes, False)


def test_a_defect_of_the_panel_is_told_and_ends_nothing(show: Callable[..., Show]) -> None:
    shown = show()
    play_iterate(shown)
    shown.draw()
    shown.do("spoil")
    shown.do("advance", 1)
    assert "nonsense" in shown.do("draw")
    assert "the run continues" in "".join(shown.look())
    shown.do("close")
    assert shown.ended() == 0


def test_what_others_write_over_it_is_mended(show: Callable[..., Show]) -> None:
    shown = show()
    play_iterate(shown)
    drawn = shown.draw()
    shown.do("litter", "\n\nsome library warns\n\n")
    assert shown.look() != drawn
    shown.do("advance", 10)
    mended = shown.draw()
    assert [row for row in mended if "library" in row] == []
    assert mended[1] == drawn[1]


def test_no_color_means_none(show: Callable[..., Show]) -> None:
    coloured, plain = show(), show(environment={"NO_COLOR": "1"})
    for shown in (coloured, plain):
        play_iterate(shown)
        shown.draw()
    used = [
        {cell.fg for row in shown.screen.buffer.values() for cell in row.values()} - {"default"}
        for shown in (coloured, plain)
    ]
    assert {"green", "blue"} <= used[0]
    assert used[1] == set()


def test_a_terminal_without_unicode_gets_ascii(show: Callable[..., Show]) -> None:
    shown = show(
        environment={"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    )
    play_iterate(shown)
    rows = shown.draw()
    assert rows[0].startswith("+- iterate - my-task")
    assert "12 / 50 (24%)" in rows[2]
    assert shown.written.isascii()
