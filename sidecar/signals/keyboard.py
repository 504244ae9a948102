"""The key `s` on a terminal, as a source of requests; every other key, and every escape sequence, is nothing."""

from __future__ import annotations

import contextlib
import termios
from collections.abc import AsyncIterator, Callable
from enum import Enum, auto

import anyio

from sidecar.signals import job_control
from sidecar.signals.terminal import Terminal

# A terminal sends an escape sequence in one piece, a person needs longer than this between Escape and the next key.
_ESCAPE_S = 0.1
# `fg` sends no signal to a job that is already running, so in the background there is nothing to wait for but time.
_LOOK_S = 0.5


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
            await tasks.start(job_control.follow, keyboard.away)
            try:
                while (presses := await keyboard.presses()) is not None:
                    for _ in range(presses):
                        on_key()
            finally:
                terminal.release()  # and in the reverse order at the end
            tasks.cancel_scope.cancel()
    finally:
        terminal.close()


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
