"""The person at the terminal: sees the panel, presses `s`, is asked, and can be lent the terminal for a command.

Panel and key are out of the way while anybody else has the terminal: a person who is asked, a command that was lent it,
and the shell after Ctrl-Z.
"""

from __future__ import annotations

import contextlib
import json
import os
import termios
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.display.terminal import Terminal, Tty, follow, no_job_control
from sidecar.text import clean

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from anyio.abc import TaskStatus

    from sidecar.display.panel import Panel

# `fg` sends no signal to a job that is already running, so in the background there is nothing to wait for but time.
_LOOK_S = 0.5
# A terminal sends an escape sequence in one piece, a person needs longer than this between Escape and the next key.
_ESCAPE_S = 0.1
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


class Seat:
    """Either half may be missing: no panel, or nothing that a key does."""

    def __init__(self, panel: Panel | None = None, on_key: Callable[[], None] | None = None, fd: int = 0) -> None:
        self._panel = panel
        self._on_key = on_key
        self._fd = fd
        self._turn = anyio.Lock()
        self._away = contextlib.ExitStack()
        self._absences = 0
        self._back = anyio.Event()
        self._listening: anyio.CancelScope | None = None
        self._silent = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        async with anyio.create_task_group() as tasks:
            # Before the keyboard, which leaves signals alone that somebody else handles: the panel has to go as well.
            await tasks.start(follow, lambda _: self._absent())
            if self._panel is not None:
                tasks.start_soon(self._panel.run)
            if self._on_key is not None:
                tasks.start_soon(self._listen, self._on_key)
            task_status.started()

    @contextlib.asynccontextmanager
    async def given_away(self) -> AsyncIterator[None]:
        """The terminal is as it was found, nothing is drawn and no key is heard. One at a time."""
        async with self._turn, self._absent():
            yield

    @contextlib.asynccontextmanager
    async def _absent(self) -> AsyncIterator[None]:
        self._absences += 1
        try:
            if self._absences == 1:
                await self._withdraw()
            yield
        finally:
            self._absences -= 1
            if not self._absences:
                self._away.close()
                self._back.set()

    async def _withdraw(self) -> None:
        self._back = anyio.Event()
        if self._listening is not None:
            self._listening.cancel()
            await self._silent.wait()
        if self._panel is not None:
            self._away.enter_context(self._panel.hidden())

    async def _listen(self, on_key: Callable[[], None]) -> None:
        while True:
            if self._absences:
                await self._back.wait()
                continue
            self._silent = anyio.Event()
            try:
                with anyio.CancelScope() as self._listening:
                    await listen(on_key, self._fd)
            finally:
                self._listening = None
                self._silent.set()
            if not self._absences:
                return  # it ended by itself: there is no terminal to listen to, or none any more


async def listen(on_key: Callable[[], None], fd: int = 0) -> None:
    """Call `on_key` for every press of `s` or `S` on the terminal `fd`.

    Returns at once where `fd` is not the terminal that controls this process, and later when that terminal hangs up.
    """
    terminal = Terminal.of(fd)
    if terminal is None:
        return
    keyboard = _Keyboard(terminal)
    try:
        async with anyio.create_task_group() as tasks:
            # First the signals, then the terminal: a Ctrl-Z in between would hand the shell a terminal without echo.
            await tasks.start(follow, keyboard.away)
            try:
                while (presses := await keyboard.presses()) is not None:
                    for _ in range(presses):
                        on_key()
            finally:
                terminal.release()  # and in the reverse order at the end
            tasks.cancel_scope.cancel()
    finally:
        terminal.close()


class _Within(Enum):
    """Where in its input a terminal is: between keys, or inside of an escape sequence."""

    NOTHING = auto()
    ESCAPE = auto()
    CONTROL = auto()  # ESC [ …
    CONTROL_BODY = auto()
    KEYPAD = auto()  # ESC O …, where `s` is the 3 of the numeric keypad
    STRING = auto()  # ESC ] … and its like: the terminal's answer to a question
    STRING_ESCAPE = auto()
    LAST_3 = auto()
    LAST_2 = auto()
    LAST_1 = auto()


_ESC = 0x1B
_AFTER_ESCAPE = {
    ord("["): _Within.CONTROL,
    ord("O"): _Within.KEYPAD,
    **dict.fromkeys(b"]P_^X", _Within.STRING),
}
_AFTER_CONTROL = {ord("M"): _Within.LAST_3, ord("["): _Within.LAST_1}  # a mouse click; a function key on a console
_COUNTDOWN = {_Within.LAST_3: _Within.LAST_2, _Within.LAST_2: _Within.LAST_1, _Within.LAST_1: _Within.NOTHING}


class Keys:
    """Counts presses of `s` in the bytes that a terminal sends, however they are cut into pieces."""

    def __init__(self) -> None:
        self._within = _Within.NOTHING

    @property
    def unfinished(self) -> bool:
        """Whether an escape sequence has begun and not ended."""
        return self._within is not _Within.NOTHING

    def settle(self) -> None:
        """Nothing has followed for a while: it was the key Escape, not the beginning of a sequence."""
        self._within = _Within.NOTHING

    def feed(self, data: bytes) -> int:
        """How many presses of `s` or `S` there are in `data`. The bytes of a UTF-8 character never look like one."""
        presses = 0
        for byte in data:
            presses += byte in b"sS" and self._within is _Within.NOTHING
            self._within = _follow(self._within, byte)
        return presses


class _Keyboard:
    """Reads keys while the terminal is ours, and waits for it while it is not."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self._keys = Keys()
        self._pause = anyio.CancelScope()

    async def presses(self) -> int | None:
        """Wait for input, then say how often `s` was in it; None when the terminal is gone."""
        try:
            if not self.terminal.take():
                await self._wait_for_the_foreground()
                return 0
            await self._wait_for_input()
            data = self.terminal.read()
        except (OSError, termios.error):
            return None
        if data is None:
            self._keys.settle()
            return 0
        return self._keys.feed(data) if data else None

    async def _wait_for_input(self) -> None:
        with anyio.move_on_after(_ESCAPE_S if self._keys.unfinished else None) as self._pause:
            await anyio.wait_readable(self.terminal.fd)

    async def _wait_for_the_foreground(self) -> None:
        # Not for input: what is typed there is for somebody else, and would make us spin for as long as it is unread.
        with anyio.move_on_after(_LOOK_S) as self._pause:
            await anyio.sleep_forever()

    @contextlib.asynccontextmanager
    async def away(self, stops: bool) -> AsyncIterator[None]:
        """Give the terminal back before Ctrl-Z stops us, take it again when we go on."""
        if stops:
            self.terminal.release()
        try:
            yield
        finally:
            # A terminal that is gone is found by whoever reads it.
            with contextlib.suppress(OSError, termios.error):
                self.terminal.take_again()
            self._pause.cancel()  # whatever is waited for: it may be the wrong thing now


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


def _follow(within: _Within, byte: int) -> _Within:
    if within in {_Within.STRING, _Within.STRING_ESCAPE}:
        return _follow_string(within, byte)
    if byte == _ESC:  # a new sequence, also where it cuts off an old one
        return _Within.ESCAPE
    if within is _Within.ESCAPE:
        return _AFTER_ESCAPE.get(byte, _Within.NOTHING)  # anything else is a key together with Alt
    if within is _Within.CONTROL and byte in _AFTER_CONTROL:
        return _AFTER_CONTROL[byte]
    if within in {_Within.CONTROL, _Within.CONTROL_BODY}:
        return _Within.CONTROL_BODY if 0x20 <= byte <= 0x3F else _Within.NOTHING
    if within is _Within.KEYPAD:
        return _Within.KEYPAD if byte in b"0123456789;" else _Within.NOTHING
    return _COUNTDOWN.get(within, _Within.NOTHING)


def _follow_string(within: _Within, byte: int) -> _Within:
    if byte == _ESC:
        return _Within.STRING_ESCAPE
    if within is _Within.STRING_ESCAPE:  # ESC \ ends it, and so does any other sequence
        return _AFTER_ESCAPE.get(byte, _Within.NOTHING)
    return _Within.NOTHING if byte in b"\x07\x18\x1a" else _Within.STRING
