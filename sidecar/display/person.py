"""Whoever sits at the terminal: is asked there, and can be lent it for a command of their own."""

from __future__ import annotations

import contextlib
import json
import os
import termios
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.display.cells import clean
from sidecar.display.tty import Tty, no_job_control

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from sidecar.display.seat import Seat

_LOOK_S = 0.5
_WRITING_S = 2.0
# Colours, cursor keys, keypad, paste marks, mouse, the second screen, wrapping, the cursor. 1047 and not 1049: where
# there is no second screen, nothing moves.
_AS_FOUND = (
    b"\033[0m\033[?1l\033>\033[?2004l\033[?1000l\033[?1002l\033[?1003l\033[?1006l\033[?1047l\033[?7h\033[?25h\r\n"
)


class TerminalPerson:
    """The person at one terminal."""

    def __init__(self, seat: Seat, *, fd: int = 0) -> None:
        self._seat = seat
        self._fd = fd

    async def ask(self, question: dict[str, Any], problem: str | None) -> str | None:
        """The line that was typed; None where the terminal is gone, or the person has ended their input (Ctrl-D)."""
        async with self._seat.given_away():
            try:
                tty = Tty(self._fd)
            except OSError:
                return None
            try:
                return await _asked(tty, _prompt(question, problem))
            except (OSError, termios.error):
                return None
            finally:
                tty.close()

    async def lend_terminal(self, run: Callable[[int], Awaitable[int]]) -> int | None:
        """Leave the terminal to a command while `run`, which gets a descriptor of it, runs one there: the exit code;
        None where the terminal is gone.

        The command is to be in our process group: Ctrl-C and Ctrl-Z reach both, unless it reads single keys.
        """
        async with self._seat.given_away():
            try:
                tty = Tty(self._fd)
            except OSError:
                return None
            try:
                await _wait_for_the_foreground(tty)
                with _kept(tty), _opened_to_wait(self._fd) as terminal:
                    return await run(terminal)
            except termios.error:
                return None
            finally:
                tty.close()


async def _asked(tty: Tty, prompt: str) -> str | None:
    await _wait_for_the_foreground(tty)
    # What was typed before the question was there is no answer to it.
    termios.tcflush(tty.fd, termios.TCIFLUSH)
    tty.write(prompt.encode("utf-8", "replace"))
    while not tty.write(b""):
        await anyio.wait_writable(tty.fd)
    try:
        while True:
            await anyio.wait_readable(tty.fd)
            line = tty.read()
            if line is not None:
                break
            await _wait_for_the_foreground(tty)
    except BaseException:
        with contextlib.suppress(OSError):
            tty.write(b"\n")  # whatever comes next begins a line of its own
        raise
    # What was pasted behind the answer must not be taken for keys.
    with no_job_control():
        termios.tcflush(tty.fd, termios.TCIFLUSH)
    return line.decode("utf-8", "replace").rstrip("\r\n") if line else None


async def _wait_for_the_foreground(tty: Tty) -> None:
    while not tty.in_foreground():  # noqa: ASYNC110 - `fg` sends nothing to a job that is running already
        await anyio.sleep(_LOOK_S)


def _prompt(question: dict[str, Any], problem: str | None) -> str:
    told = [*(problem or "").splitlines(), *str(question.get("prompt", "")).splitlines()]
    lines = [clean(line) for line in told]
    choices = question.get("choices")
    if isinstance(choices, list) and choices:
        lines.append("  one of: " + ", ".join(clean(_shown(choice)) for choice in choices))
    default = question.get("default")
    offered = f" [{clean(_shown(default))}]" if default is not None else ""
    return "\n".join(lines) + f"{offered}: "


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@contextlib.contextmanager
def _opened_to_wait(fd: int) -> Iterator[int]:
    """The terminal for a command that knows nothing of us. Ours never waits, and those who share it would not, too."""
    try:
        terminal = os.open(os.ttyname(fd), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # as with `Tty`
        terminal = os.dup(fd)
    try:
        yield terminal
    finally:
        os.close(terminal)


@contextlib.contextmanager
def _kept(tty: Tty) -> Iterator[None]:
    """A command may leave the terminal without echo; one that is ended, also its screen, its mouse, its colours."""
    found = termios.tcgetattr(tty.fd)
    # What was typed before is not for the command, and what is left behind it is no key for us.
    termios.tcflush(tty.fd, termios.TCIFLUSH)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            tty.write(_AS_FOUND)
            tty.finish(_WRITING_S)
        raise
    finally:
        with contextlib.suppress(termios.error), no_job_control():
            termios.tcsetattr(tty.fd, termios.TCSANOW, found)
            termios.tcflush(tty.fd, termios.TCIFLUSH)
