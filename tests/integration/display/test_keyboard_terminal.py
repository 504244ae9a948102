"""The keyboard on real terminals: a shell with job control runs a listener, and the test sits at the other end."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.kit import JobShell

_PROGRAMS = Path(__file__).parent / "programs"
_LISTENER = [sys.executable, str(_PROGRAMS / "listener.py")]
_DEADLINE_S = 120.0
_LFLAG = 3
_CTRL_C, _CTRL_D, _CTRL_Z = b"\x03", b"\x04", b"\x1a"


class Desk(JobShell):
    """A terminal with a listener on it."""

    def __init__(self, environment: dict[str, str]) -> None:
        super().__init__(environment)
        self.guardians: list[psutil.Process] = []

    def close(self) -> None:
        super().close()
        wait_until(lambda: all(map(is_gone, self.guardians)), "the guardian has ended")

    def begin(self, press: str = "report", *circumstances: str, place: str = "foreground") -> psutil.Process:
        return self.start(place, [*_LISTENER, press, *circumstances], "started")

    def listen(self, press: str = "report", *circumstances: str) -> None:
        """Start a listener in the foreground, and wait until it has the terminal."""
        job = self.begin(press, *circumstances)
        self.wait_until_taken()
        self.guardians = job.children()

    def press_s(self) -> None:
        """Until it is read: what is read in one piece with an escape sequence is taken for a part of that."""
        for patience_s in (0.2, 1.0, 3.0):
            self.press(b"s")
            if self.has_report(within_s=patience_s):
                return

    def wait_until_taken(self) -> None:
        self.wait(self.takes_keys)

    def wait_until_restored(self) -> None:
        self.wait(lambda: self.setting() == self.before)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"never true: {what}"
        time.sleep(0.005)


def is_gone(process: psutil.Process) -> bool:
    """Not running; who reaps an orphan, and when, is a matter of the machine."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def path() -> str:
    return os.environ["PATH"]


@pytest.fixture
def desk(path: str) -> Iterator[Desk]:
    desk = Desk({**os.environ, "PATH": path})
    try:
        yield desk
    finally:
        desk.close()


def test_s_and_capital_s_call_back_once_each(desk: Desk) -> None:
    desk.listen()
    desk.press(b"s")
    desk.expect("press")
    desk.press(b"S")
    desk.expect("press")


def test_keys_that_arrive_in_one_piece_are_each_a_press(desk: Desk) -> None:
    desk.listen()
    desk.press("xsßS".encode())
    desk.expect("press")
    desk.expect("press")


def test_everything_else_is_ignored(desk: Desk) -> None:
    desk.listen()
    keys = (b"x\r\t\x00\x7f", b"\x1b[A\x1b[1;5s", b"\x1bOs", b"\x1bs", "ßéş".encode(), _CTRL_D)
    for others in keys:
        desk.press(others)
        desk.press_s()
        desk.expect("press")
    desk.tell("signal", str(int(signal.SIGTERM)))
    desk.expect("ended")  # and no press before it


def test_s_after_the_escape_key_is_a_press(desk: Desk) -> None:
    desk.listen()
    desk.press(b"\x1b")
    desk.press_s()
    desk.expect("press")


def test_the_terminal_loses_line_editing_and_echo_and_nothing_else(desk: Desk) -> None:
    desk.listen()
    expected = desk.before
    expected[_LFLAG] &= ~(termios.ICANON | termios.ECHO)
    # Without line editing, Python shows these two as numbers.
    for index in (termios.VMIN, termios.VTIME):
        expected[6][index] = ord(expected[6][index])
    assert desk.setting() == expected
    assert not fcntl.fcntl(desk.terminal, fcntl.F_GETFL) & os.O_NONBLOCK


def test_ctrl_c_is_still_an_interrupt(desk: Desk) -> None:
    desk.listen()
    desk.press(_CTRL_C)
    while not (report := desk.next_report()).startswith("ended"):
        assert not report.startswith("press")
    assert report in {f"ended {-signal.SIGINT}", "ended 1"}
    assert desk.setting() == desk.before


def test_an_owner_that_handles_interrupts_itself_goes_on_doing_so(desk: Desk) -> None:
    desk.listen("report", "own-signals")
    desk.expect("handling")
    desk.press(_CTRL_C)
    desk.expect(f"handled {int(signal.SIGINT)}")
    desk.tell("signal", str(int(signal.SIGTERM)))
    desk.expect(f"handled {int(signal.SIGTERM)}")
    desk.press(b"s")
    desk.expect("press")


def test_cancelling_restores_the_terminal_and_leaves_no_process(desk: Desk) -> None:
    desk.listen("cancel", "wait")
    assert len(desk.guardians) == 1
    desk.press(b"s")
    desk.expect("press")
    desk.expect("returned children 0")
    desk.expect(str(signal.SIG_DFL))
    assert desk.setting() == desk.before


def test_an_exception_in_the_callback_restores_the_terminal(desk: Desk) -> None:
    desk.listen("raise")
    desk.press(b"s")
    desk.expect("press")
    desk.expect("ended 1")
    assert desk.setting() == desk.before


def test_os_abort_restores_the_terminal(desk: Desk) -> None:
    desk.listen("abort")
    desk.press(b"s")
    desk.expect("press")
    desk.expect(f"ended {-signal.SIGABRT}")
    desk.wait_until_restored()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGQUIT])
def test_a_deadly_signal_restores_the_terminal(desk: Desk, number: signal.Signals) -> None:
    desk.listen()
    desk.tell("signal", str(int(number)))
    desk.expect(f"ended {-number}")
    desk.wait_until_restored()
    wait_until(lambda: all(map(is_gone, desk.guardians)), "the guardian has ended")


def test_ctrl_c_does_not_end_the_guardian(desk: Desk) -> None:
    desk.listen("report", "own-signals")
    desk.expect("handling")
    desk.press(_CTRL_C)
    desk.expect("handled")
    desk.tell("signal", str(int(signal.SIGKILL)))
    desk.expect("ended")
    desk.wait_until_restored()


def test_a_child_that_outlives_a_killed_owner_does_not_keep_the_terminal(desk: Desk) -> None:
    desk.listen("spawn")
    desk.press(b"s")
    desk.expect("press")
    child = psutil.Process(int(desk.expect("spawned").split()[1]))
    desk.tell("signal", str(int(signal.SIGKILL)))
    desk.expect("ended")
    desk.wait_until_restored()
    assert not is_gone(child)
    child.kill()


def test_a_polite_signal_does_not_end_the_guardian(desk: Desk) -> None:
    desk.listen()
    desk.press(b"s")
    desk.expect("press")
    (guardian,) = desk.guardians
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        guardian.send_signal(number)
    desk.tell("signal", str(int(signal.SIGKILL)))
    desk.expect("ended")
    desk.wait_until_restored()


def test_a_setting_that_the_shell_has_made_meanwhile_is_left_alone(desk: Desk) -> None:
    desk.listen()
    desk.press(b"s")
    desk.expect("press")
    desk.tell("signal", str(int(signal.SIGSTOP)))
    desk.expect("stopped")
    of_the_shell = desk.setting()
    of_the_shell[0] &= ~termios.ICRNL
    termios.tcsetattr(desk.terminal, termios.TCSANOW, of_the_shell)
    desk.tell("signal", str(int(signal.SIGKILL)))
    desk.expect("ended")
    wait_until(lambda: all(map(is_gone, desk.guardians)), "the guardian has ended")
    assert desk.setting() == of_the_shell


def test_the_same_setting_made_by_somebody_else_is_left_alone(desk: Desk) -> None:
    desk.listen()
    taken = desk.setting()
    desk.press(_CTRL_Z)
    desk.expect("stopped")
    termios.tcsetattr(desk.terminal, termios.TCSANOW, taken)
    desk.tell("signal", str(int(signal.SIGKILL)))
    desk.expect("ended")
    wait_until(lambda: all(map(is_gone, desk.guardians)), "the guardian has ended")
    assert desk.setting() == taken


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(desk: Desk) -> None:
    desk.listen()
    for _ in range(2):  # the second time finds what the first has left of the signal's handling
        desk.press(_CTRL_Z)
        desk.expect(f"stopped {int(signal.SIGTSTP)}")
        assert desk.setting() == desk.before
        desk.tell("foreground")
        desk.tell("signal", str(int(signal.SIGCONT)))
        desk.wait_until_taken()
        desk.press(b"s")
        desk.expect("press")
    desk.tell("signal", str(int(signal.SIGKILL)))
    desk.expect("ended")
    desk.wait_until_restored()


def test_what_was_set_while_it_was_suspended_is_what_it_gives_back(desk: Desk) -> None:
    desk.listen("cancel")
    desk.press(_CTRL_Z)
    desk.expect("stopped")
    changed = desk.setting()
    changed[0] &= ~termios.IXON
    termios.tcsetattr(desk.terminal, termios.TCSANOW, changed)
    desk.tell("foreground")
    desk.tell("signal", str(int(signal.SIGCONT)))
    desk.wait_until_taken()
    desk.press(b"s")
    desk.expect("press")
    desk.expect("returned")
    assert desk.setting() == changed


def test_a_stop_that_nobody_can_catch_is_survived_too(desk: Desk) -> None:
    desk.listen("cancel")
    desk.tell("signal", str(int(signal.SIGSTOP)))
    desk.expect("stopped")
    termios.tcsetattr(desk.terminal, termios.TCSANOW, desk.before)  # as a shell does that looks after its terminal
    desk.tell("foreground")
    desk.tell("signal", str(int(signal.SIGCONT)))
    desk.wait_until_taken()
    desk.press(b"s")
    desk.expect("press")
    desk.expect("returned")
    assert desk.setting() == desk.before


def test_an_ignored_ctrl_z_stays_ignored(desk: Desk) -> None:
    desk.listen("cancel", "no-suspend", "wait")
    desk.press(_CTRL_Z)
    desk.press(b"s")
    desk.expect("press")
    desk.expect("returned")
    desk.expect(str(signal.SIG_IGN))


def test_continued_in_the_background_it_leaves_the_terminal_to_others(desk: Desk) -> None:
    desk.listen()
    desk.press(_CTRL_Z)
    desk.expect("stopped")
    desk.tell("signal", str(int(signal.SIGCONT)))
    wait_for_looks(desk.job)
    assert desk.setting() == desk.before
    desk.tell("foreground")
    desk.wait_until_taken()
    desk.press(b"s")
    desk.expect("press")


def test_started_in_the_background_it_waits_and_takes_up_when_brought_to_the_foreground(desk: Desk) -> None:
    desk.begin(place="background")
    desk.press(b"for the shell\n")
    wait_for_looks(desk.job)
    assert desk.job.status() != psutil.STATUS_STOPPED
    assert desk.setting() == desk.before
    assert os.read(desk.terminal, 100) == b"for the shell\n"
    desk.tell("foreground")
    desk.wait_until_taken()
    desk.press(b"s")
    desk.expect("press")


def test_moved_to_the_background_without_a_signal_it_gives_the_terminal_back(desk: Desk) -> None:
    desk.listen()
    desk.tell("background")
    desk.press(b"x")  # from now on its reads would be stopped
    desk.wait_until_restored()
    assert desk.job.status() != psutil.STATUS_STOPPED
    desk.tell("foreground")
    desk.wait_until_taken()
    desk.press(b"s")
    desk.expect("press")


def test_in_the_background_unread_input_does_not_make_it_spin(desk: Desk) -> None:
    desk.begin(place="background")
    desk.press(b"for the shell\n")

    def sleeps_most_of_the_time() -> bool:
        before, since = desk.job.cpu_times(), time.monotonic()
        wait_for_looks(desk.job)
        after, elapsed_s = desk.job.cpu_times(), time.monotonic() - since
        return after.user + after.system - before.user - before.system < elapsed_s / 4

    # Not at once: the first looks may fall into the time in which it is still starting.
    wait_until(sleeps_most_of_the_time, "it sleeps most of the time")


def wait_for_looks(process: psutil.Process) -> None:
    """Until it has slept and woken a few times."""
    start = process.num_ctx_switches().voluntary
    wait_until(lambda: process.num_ctx_switches().voluntary >= start + 3, "it has looked")


def test_a_terminal_that_hangs_up_ends_it_quietly(desk: Desk) -> None:
    desk.listen("report", "no-hangup")
    desk.hang_up()
    desk.expect("returned children 0")
    desk.expect(str(signal.SIG_DFL))
    desk.expect("ended 0")


def test_a_terminal_that_hangs_up_in_the_background_ends_it_quietly(desk: Desk) -> None:
    desk.begin("report", "no-hangup", place="background")
    wait_for_looks(desk.job)
    desk.hang_up()
    desk.expect("returned children 0")


def test_an_end_of_input_ends_it_quietly(desk: Desk) -> None:
    desk.listen()
    termios.tcsetattr(desk.terminal, termios.TCSANOW, desk.before)  # with line editing, Ctrl-D is the end
    desk.press(_CTRL_D)
    desk.expect("returned children 0")
    assert desk.setting() == desk.before


def test_a_terminal_that_controls_somebody_else_is_left_alone(desk: Desk) -> None:
    desk.begin("report", "foreign-terminal")
    desk.expect("returned children 0")
    assert desk.setting() == desk.before


def test_a_terminal_that_is_not_the_input_is_left_alone(desk: Desk) -> None:
    desk.begin("report", "other-input")
    desk.expect("returned children 0")
    assert desk.setting() == desk.before


@pytest.mark.parametrize("path", ["/nowhere"])
def test_without_stty_it_works_and_has_no_guardian(desk: Desk) -> None:
    desk.listen("cancel")
    assert desk.guardians == []
    desk.press(b"s")
    desk.expect("press")
    desk.expect("returned")
    assert desk.setting() == desk.before


@pytest.mark.parametrize("source", ["", "</dev/null", "<&-"], ids=["pipe", "null", "closed"])
def test_without_a_terminal_it_returns_at_once_and_reads_nothing(source: str) -> None:
    script = f'exec 3<&0; "$@" {source}; cat <&3'
    done = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *_LISTENER, "report"],
        input="s for the next one",
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["started", "returned children 0", str(signal.SIG_DFL), "s for the next one"]
