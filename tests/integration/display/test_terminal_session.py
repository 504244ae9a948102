"""Panel, keys and questions on one terminal, under a shell with job control; the test sits at the other end."""

from __future__ import annotations

import os
import signal
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.kit import JobShell

_PROGRAM = Path(__file__).parent / "programs" / "sitting.py"
_ENTER, _LEAVE = b"\033[?1049h", b"\033[?1049l"


class Desk(JobShell):
    """A terminal with a panel on it."""

    def sit_down(self, *arguments: str) -> None:
        self.start("foreground", [sys.executable, str(_PROGRAM), *arguments], "ready")

    def shows_panel(self) -> bool:
        return self.written.count(_ENTER) > self.written.count(_LEAVE)

    def wait_for_the_panel(self) -> None:
        self.wait(lambda: self.shows_panel() and self.takes_keys() and self.shows("▶ RUNNING"))


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk({**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"})
    try:
        yield desk
    finally:
        desk.close()


def test_the_panel_is_shown_and_the_key_is_heard(desk: Desk) -> None:
    desk.sit_down("nothing")
    desk.wait_for_the_panel()
    assert len(desk.job.children()) == 1  # one guardian looks after the screen and the keys
    desk.press(b"s")
    desk.expect("press")


def test_ctrl_c_gives_the_terminal_back(desk: Desk) -> None:
    desk.sit_down("nothing")
    desk.wait_for_the_panel()
    desk.press(b"\x03")
    desk.expect("interrupted")
    desk.expect("over")
    desk.expect("ended 0")
    desk.wait(lambda: not desk.shows_panel() and desk.setting() == desk.before)


def test_ctrl_z_takes_the_panel_away_and_fg_brings_it_back(desk: Desk) -> None:
    desk.sit_down("nothing")
    desk.wait_for_the_panel()
    desk.press(b"\x1a")
    desk.expect(f"stopped {int(signal.SIGTSTP)}")
    desk.wait(lambda: not desk.shows_panel())
    assert desk.setting() == desk.before
    desk.tell("foreground")
    desk.tell("signal", str(int(signal.SIGCONT)))
    desk.wait_for_the_panel()
    desk.press(b"s")
    desk.expect("press")


def test_continued_in_the_background_it_leaves_the_screen_to_others(desk: Desk) -> None:
    desk.sit_down("nothing")
    desk.wait_for_the_panel()
    desk.press(b"\x1a")
    desk.expect(f"stopped {int(signal.SIGTSTP)}")
    desk.wait(lambda: not desk.shows_panel())
    written = len(desk.written)
    desk.tell("signal", str(int(signal.SIGCONT)))
    desk.wait(lambda: desk.job.status() == psutil.STATUS_SLEEPING)
    three_beats = time.monotonic() + 0.8  # nothing can be waited for where nothing is to happen
    desk.wait(lambda: time.monotonic() > three_beats)
    assert len(desk.written) == written
    desk.tell("foreground")
    desk.wait_for_the_panel()


def test_a_stop_that_nobody_can_catch_is_survived_too(desk: Desk) -> None:
    desk.sit_down("nothing")
    desk.wait_for_the_panel()
    desk.tell("signal", str(int(signal.SIGSTOP)))
    desk.expect(f"stopped {int(signal.SIGSTOP)}")
    termios.tcsetattr(desk.terminal, termios.TCSANOW, desk.before)  # as shells do
    desk.stream.feed(b"\033[2J")
    desk.tell("foreground")
    desk.tell("signal", str(int(signal.SIGCONT)))
    desk.wait_for_the_panel()
    desk.press(b"s")
    desk.expect("press")


def test_a_question_takes_the_panels_place_until_it_is_answered(desk: Desk) -> None:
    desk.sit_down("ask")
    desk.wait(lambda: desk.shows("Which branch?"))
    assert desk.shows("one of: main, dev [main]:")
    assert b"\033[31m" not in desk.written
    assert not desk.shows_panel()
    assert desk.setting() == desk.before
    desk.press(b"s\xc3\xa9\r")  # no key, but the beginning of an answer
    desk.expect("answer 'sé'")
    desk.wait(lambda: desk.shows("there is no such branch"))
    desk.press(b"\r")
    desk.expect("answer ''")
    desk.wait_for_the_panel()
    desk.press(b"s")
    desk.expect("press")


def test_what_is_pasted_behind_an_answer_is_neither_the_next_answer_nor_a_key(desk: Desk) -> None:
    desk.sit_down("ask")
    desk.wait(lambda: desk.shows("Which branch?"))
    desk.press(b"main\rss\rss\r")
    desk.expect("answer 'main'")
    desk.wait(lambda: desk.shows("there is no such branch"))
    desk.press(b"dev\rs\r")
    desk.expect("answer 'dev'")
    desk.wait_for_the_panel()
    desk.press(b"\x03")
    desk.expect("interrupted")  # and no press before it


def test_what_was_typed_before_a_question_is_no_answer_to_it(desk: Desk) -> None:
    desk.sit_down("ask-late")
    desk.press(b"typed ahead\r")
    desk.wait(lambda: desk.shows("Late?: "))
    desk.press(b"now\r")
    desk.expect("answer 'now'")


def test_ctrl_d_is_no_answer(desk: Desk) -> None:
    desk.sit_down("ask")
    desk.wait(lambda: desk.shows("Which branch?"))
    desk.press(b"\x04")
    desk.expect("answer None")


def test_ctrl_c_at_a_question_ends_it_and_leaves_the_terminal_as_it_was(desk: Desk) -> None:
    desk.sit_down("ask")
    desk.wait(lambda: desk.shows("Which branch?"))
    desk.press(b"\x03")
    desk.expect("interrupted")
    desk.expect("over")
    desk.expect("ended 0")
    desk.wait(lambda: not desk.shows_panel() and desk.setting() == desk.before)


def test_two_questions_at_once_are_asked_one_after_the_other(desk: Desk) -> None:
    desk.sit_down("ask-both")
    desk.wait(lambda: desk.shows("First?: "))
    assert not desk.shows("Second?")
    desk.press(b"one\r")
    desk.expect("answer 'one'")
    desk.wait(lambda: desk.shows("Second?: "))
    desk.press(b"two\r")
    desk.expect("answer 'two'")


def test_a_command_has_the_terminal_to_itself_and_may_leave_it_as_it_likes(desk: Desk) -> None:
    desk.sit_down("lend", "sh", "-c", "printf 'name? '; read name; stty -echo; echo hello $name; exit 3")
    desk.wait(lambda: desk.shows("name? "))
    assert not desk.shows_panel()
    desk.press(b"boss\r")
    desk.expect("lent 3")
    desk.wait(lambda: b"hello boss" in desk.written)
    desk.wait_for_the_panel()
    desk.press(b"\x03")
    desk.expect("interrupted")
    desk.expect("over")
    desk.wait(lambda: desk.setting() == desk.before)


def test_a_command_is_given_nothing_that_was_typed_before_it_was_there(desk: Desk) -> None:
    desk.sit_down("lend-late", "sh", "-c", "printf 'name? '; read name; echo hello $name")
    desk.press(b"typed ahead\r")
    desk.wait(lambda: desk.shows("name? "))
    desk.press(b"boss\r")
    desk.expect("lent 0")
    assert b"hello boss" in desk.written


def test_ctrl_z_stops_a_command_and_us_and_fg_brings_both_back(desk: Desk) -> None:
    desk.sit_down("lend", "sh", "-c", "printf 'name? '; read name; echo hello $name")
    desk.wait(lambda: desk.shows("name? "))
    desk.press(b"\x1a")
    desk.expect(f"stopped {int(signal.SIGTSTP)}")
    desk.tell("foreground")
    desk.tell("signal", str(int(signal.SIGCONT)))
    desk.press(b"boss\r")
    desk.expect("lent 0")
    desk.wait(lambda: b"hello boss" in desk.written)
    desk.wait_for_the_panel()


def test_a_command_that_is_ended_leaves_neither_its_screen_nor_its_settings(desk: Desk) -> None:
    desk.sit_down("lend", "sh", "-c", "stty raw -echo; printf '\\033[?1049h\\033[?25l\\033[31min raw'; read _")
    desk.wait(lambda: desk.shows("in raw"))
    desk.job.send_signal(signal.SIGINT)  # Ctrl-C is a byte like any other now
    desk.expect("interrupted")
    desk.expect("over")
    desk.wait(lambda: desk.setting() == desk.before)
    for undone in (b"\033[0m", b"\033[?1047l", b"\033[?25h"):
        desk.wait(lambda undone=undone: undone in desk.written[desk.written.rindex(b"in raw") :])  # type: ignore[misc]
