"""Whoever sits at the terminal: is asked there, and can be lent it for a command of their own."""

from __future__ import annotations

import contextlib
import json
import termios
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.display.cells import clean
from sidecar.display.tty import Tty, no_job_control

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from sidecar.display.seat import Seat

    Execute = Callable[[list[str], str, Mapping[str, str]], Awaitable[int]]

_LOOK_S = 0.5


class TerminalPerson:
    """The person at one terminal.

    `execute` runs a command with the terminal as its three descriptors, in the session and the process group of this
    process, so that Ctrl-C and Ctrl-Z reach both; it gives the exit code, and ends the command where it is cancelled.
    """

    def __init__(self, seat: Seat, *, fd: int = 0, execute: Execute | None = None) -> None:
        self._seat = seat
        self._fd = fd
        self._execute = execute

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

    async def lend_terminal(self, argv: list[str], cwd: str, environment: Mapping[str, str]) -> int | None:
        """Run a command on the terminal itself: its exit code; None where nobody can start it there."""
        if self._execute is None:
            return None
        async with self._seat.given_away():
            tty = Tty(self._fd)
            try:
                with _setting_kept(tty.fd):
                    return await self._execute(argv, cwd, environment)
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
    lines = [f"! {clean(problem)}"] if problem else []
    lines += [clean(line) for line in str(question.get("prompt", "")).splitlines()]
    choices = question.get("choices")
    if isinstance(choices, list) and choices:
        lines.append("  one of: " + ", ".join(clean(_shown(choice)) for choice in choices))
    default = question.get("default")
    offered = f" [{clean(_shown(default))}]" if default is not None else ""
    return "\n".join(lines) + f"{offered}: "


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@contextlib.contextmanager
def _setting_kept(fd: int) -> Iterator[None]:
    """A command that is ended may leave the terminal without echo."""
    found = termios.tcgetattr(fd)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error), no_job_control():
            termios.tcsetattr(fd, termios.TCSANOW, found)
