"""The person at the terminal: sees the panel, presses `s`, is asked, and can be lent the terminal for a command."""

from __future__ import annotations

import contextlib
import json
import os
import termios
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.display.terminal import Terminal, follow_job_control, no_job_control, open_apart
from sidecar.text import clean

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from anyio.abc import TaskStatus

    from sidecar.display.panel import Panel

# `fg` sends no signal to a job that is already running, so in the background there is nothing to wait for but time.
_LOOK_S = 0.5
_WRITING_S = 2.0
# Colours, cursor keys, keypad, paste marks, mouse, the second screen, wrapping, the cursor. 1047 and not 1049: where
# there is no second screen, nothing moves.
_AS_FOUND = (
    b"\033[0m\033[?1l\033>\033[?2004l\033[?1000l\033[?1002l\033[?1003l\033[?1006l\033[?1047l\033[?7h\033[?25h\r\n"
)


class TerminalSession:
    """One terminal and the person at it. Panel and key may be missing.

    Both are out of the way while anybody else has the terminal: a person who is asked, a command that was lent it, and
    the shell after Ctrl-Z.
    """

    def __init__(self, panel: Panel | None = None, on_key: Callable[[], None] | None = None, *, fd: int = 0) -> None:
        """`on_key` is called for every press of `s` or `S`."""
        self._panel = panel
        self._on_key = on_key
        self._fd = fd
        self._turn = anyio.Lock()
        self._absences = 0
        self._hidden = contextlib.ExitStack()
        self._keys: Terminal | None = None  # while keys are read
        self._waiting = anyio.CancelScope()  # for a key

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Show the panel and read keys, until cancelled or until there is nothing to show and nothing to read."""
        async with anyio.create_task_group() as tasks:
            # First the signals, then the terminal: a Ctrl-Z in between would hand the shell a terminal without echo.
            await tasks.start(follow_job_control, self._absent)
            task_status.started()
            if self._panel is not None:
                tasks.start_soon(self._panel.run)
            if self._on_key is not None:
                await self._read_keys(self._on_key)
            if self._panel is None:
                tasks.cancel_scope.cancel()

    async def ask(self, question: dict[str, Any], problem: str | None) -> str | None:
        """The line that was typed; None where the terminal is gone, or the person has ended their input (Ctrl-D)."""
        async with self._given_away() as terminal:
            if terminal is None:
                return None
            try:
                return await _answer(terminal, _prompt(question, problem))
            except (OSError, termios.error):
                return None

    async def lend_terminal(self, run: Callable[[int], Awaitable[int]]) -> int | None:
        """Leave the terminal to a command while `run`, which gets a descriptor of it, runs one there: the exit code;
        None where the terminal is gone.

        The command is to be in our process group: Ctrl-C and Ctrl-Z reach both, unless it reads single keys.
        """
        async with self._given_away() as terminal:
            if terminal is None:
                return None
            try:
                await _wait_for_the_foreground(terminal)
                with _kept(terminal):
                    # A command that knows nothing of us waits for its terminal; our own descriptor never does.
                    lent = open_apart(self._fd)
                    try:
                        return await run(lent)
                    finally:
                        os.close(lent)
            except termios.error:
                return None

    @contextlib.asynccontextmanager
    async def _given_away(self) -> AsyncIterator[Terminal | None]:
        """The terminal is as it was found, nothing is drawn and no key is read. One at a time."""
        async with self._turn:
            with self._absent():
                try:
                    terminal = Terminal(self._fd)
                except OSError:
                    yield None
                    return
                try:
                    yield terminal
                finally:
                    terminal.close()

    @contextlib.contextmanager
    def _absent(self) -> Iterator[None]:
        self._absences += 1
        try:
            if self._absences == 1:
                if self._keys is not None:
                    self._keys.release()
                if self._panel is not None:
                    self._hidden.enter_context(self._panel.hidden())
                self._waiting.cancel()
            yield
        finally:
            self._absences -= 1
            if not self._absences:
                self._hidden.close()
                self._waiting.cancel()  # whatever is waited for: it may be the wrong thing now

    # --- the key

    async def _read_keys(self, on_key: Callable[[], None]) -> None:
        """Until the terminal hangs up; not at all where it is none that controls this process."""
        try:
            os.tcgetpgrp(self._fd)
            shared = self._terminal_of_panel()
            terminal = Terminal(self._fd) if shared is None else shared
        except OSError:
            return
        self._keys = terminal
        try:
            while (typed := await self._typed(terminal)) != b"":
                # A terminal sends an escape sequence, such as that of an arrow, in one piece: no letter in it is a key.
                for _ in range(0 if typed is None or b"\x1b" in typed else typed.lower().count(b"s")):
                    on_key()
        finally:
            self._keys = None
            if shared is None:
                terminal.close()
            else:
                terminal.release()

    def _terminal_of_panel(self) -> Terminal | None:
        """The panel's, where it is the same one: then one guardian looks after both."""
        if self._panel is None or not self._panel.terminal.is_open:
            return None
        terminal = self._panel.terminal
        return terminal if os.fstat(terminal.fd).st_rdev == os.fstat(self._fd).st_rdev else None

    async def _typed(self, terminal: Terminal) -> bytes | None:
        """Wait for a key, or for the terminal to be ours: None where there was no key, empty when it is gone."""
        try:
            if self._absences or not terminal.take():
                # Not for input: what is typed there is for somebody else, and would make us spin until it is read.
                with anyio.move_on_after(_LOOK_S) as self._waiting:
                    await anyio.sleep_forever()
                return None
            with anyio.CancelScope() as self._waiting:
                await anyio.wait_readable(terminal.fd)
            return None if self._waiting.cancel_called else terminal.read()
        except (OSError, termios.error):
            return b""


# --- questions


def _prompt(question: dict[str, Any], problem: str | None) -> str:
    lines = [clean(line) for text in (problem or "", str(question.get("prompt", ""))) for line in text.splitlines()]
    choices = question.get("choices")
    if isinstance(choices, list) and choices:
        lines.append("  one of: " + ", ".join(clean(_value(choice)) for choice in choices))
    default = question.get("default")
    offered = f" [{clean(_value(default))}]" if default is not None else ""
    return "\n".join(lines) + f"{offered}: "


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


async def _answer(terminal: Terminal, prompt: str) -> str | None:
    await _wait_for_the_foreground(terminal)
    # What was typed before the question was there is no answer to it.
    termios.tcflush(terminal.fd, termios.TCIFLUSH)
    terminal.write(prompt.encode("utf-8", "replace"))
    while not terminal.write(b""):
        await anyio.wait_writable(terminal.fd)
    try:
        while True:
            await anyio.wait_readable(terminal.fd)
            line = terminal.read()
            if line is not None:
                break
            await _wait_for_the_foreground(terminal)
    except BaseException:
        with contextlib.suppress(OSError):
            terminal.write(b"\n")  # whatever comes next begins a line of its own
        raise
    # What was pasted behind the answer must not be taken for keys.
    with no_job_control():
        termios.tcflush(terminal.fd, termios.TCIFLUSH)
    return line.decode("utf-8", "replace").rstrip("\r\n") if line else None


async def _wait_for_the_foreground(terminal: Terminal) -> None:
    while not terminal.in_foreground():  # noqa: ASYNC110 - see _LOOK_S
        await anyio.sleep(_LOOK_S)


@contextlib.contextmanager
def _kept(terminal: Terminal) -> Iterator[None]:
    """A command may leave the terminal without echo; one that is ended, also its screen, its mouse, its colours."""
    found = termios.tcgetattr(terminal.fd)
    # What was typed before is not for the command, and what is left behind it is no key for us.
    termios.tcflush(terminal.fd, termios.TCIFLUSH)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            terminal.write(_AS_FOUND)
            terminal.finish(_WRITING_S)
        raise
    finally:
        with contextlib.suppress(termios.error), no_job_control():
            termios.tcsetattr(terminal.fd, termios.TCSANOW, found)
            termios.tcflush(terminal.fd, termios.TCIFLUSH)
