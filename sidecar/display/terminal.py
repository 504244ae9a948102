"""One terminal: opened apart from those who share it, taken for single keys, given back as it was found.

It belongs to whoever is in its foreground. It is changed only while that is us, and a setting is undone only while it
is still the one that was made here; both rules together make it safe to look again at any time.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import termios
import threading
import time
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskStatus

_Setting = list[Any]  # what termios.tcgetattr returns
_SIZE = os.terminal_size((80, 24))
_STTY_S = 2.0


def can_show_panel(fd: int, environment: Mapping[str, str]) -> bool:
    """Whether `fd` is a terminal that can move its cursor."""
    return os.isatty(fd) and environment.get("TERM", "dumb") not in ("", "dumb", "unknown")


class Tty:
    """Where rows are written to, and lines are read from."""

    def __init__(self, fd: int) -> None:
        # O_NONBLOCK on the descriptor that we were given would be shared with the shell. A terminal that was halted
        # by Ctrl-S, or a connection that hangs, must not hold up a run.
        flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            self.fd = os.open(os.ttyname(fd), flags)
        except OSError:  # it has no name in this container, or, after su, another owner; better to wait than no panel
            self.fd = os.dup(fd)
        self._unwritten = b""

    def size(self) -> os.terminal_size:
        """Columns and lines; a terminal that does not know gets the usual."""
        try:
            size = os.get_terminal_size(self.fd)
        except OSError:
            return _SIZE
        return size if size.columns and size.lines else _SIZE

    def in_foreground(self) -> bool:
        """Whether it is ours to write to. One that does not control this process is never anybody else's."""
        try:
            return os.tcgetpgrp(self.fd) == os.getpgrp()
        except OSError:
            return True

    def write(self, data: bytes) -> bool:
        """Write what can be written now and remember the rest; whether all of it is out. OSError: it is gone."""
        self._unwritten += data
        while self._unwritten:
            try:
                with no_job_control():
                    written = os.write(self.fd, self._unwritten)
            except BlockingIOError:
                return False
            self._unwritten = self._unwritten[written:]
        return True

    def finish(self, within_s: float) -> bool:
        """Wait until all of it is out, but not longer than that."""
        deadline = time.monotonic() + within_s
        writable = select.poll()
        writable.register(self.fd, select.POLLOUT)
        while not self.write(b""):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            writable.poll(left_s * 1000)
        return True

    def read(self) -> bytes | None:
        """What was typed; empty at its end, None where there is nothing for us."""
        try:
            with no_job_control():
                return os.read(self.fd, 4096)
        except BlockingIOError:
            return None
        except OSError:  # EIO, from the background too
            return b"" if self.in_foreground() else None

    @property
    def is_open(self) -> bool:
        return self.fd >= 0

    def close(self) -> None:
        """Give it up; a second time does nothing."""
        if self.is_open:
            os.close(self.fd)
            self.fd = -1


class Terminal:
    """The controlling terminal: single keys without echo while we have it, the setting that was found otherwise."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._guardian = _Guardian(fd)
        self._found: _Setting = []
        self._made: _Setting | None = None  # None: nothing here is ours

    @classmethod
    def of(cls, fd: int) -> Terminal | None:
        """The terminal that `fd` is, or None where it is none, or none that we could have the foreground of."""
        # Opened a second time: reads must not block the loop when another process was faster, and O_NONBLOCK on
        # the descriptor that we were given would be shared with the shell and with everything that it started.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            os.tcgetpgrp(fd)  # fails for everything but the controlling terminal
            with contextlib.suppress(OSError):  # it has no name in this container, or, after su, another owner
                return cls(os.open(os.ttyname(fd), flags))
            return cls(os.open("/dev/tty", flags))
        except OSError:
            return None

    def take(self) -> bool:
        """Make it give single keys, where it is ours to change; say whether it is."""
        if not self._in_foreground():
            self.release()
            return False
        if self._made is None:
            self._change()
        return self._made is not None

    def take_again(self) -> None:
        """The same after a time in which others may have changed it: the shell after SIGSTOP, for one."""
        if self._made is not None and termios.tcgetattr(self.fd) != self._made:
            self._forget()
        self.take()

    def release(self) -> None:
        """Put back the setting that was found. Whatever is not ours any more is left alone."""
        if self._made is None:
            return
        with contextlib.suppress(termios.error), no_job_control():
            if termios.tcgetattr(self.fd) == self._made:
                termios.tcsetattr(self.fd, termios.TCSANOW, self._found)
        self._forget()

    def close(self) -> None:
        self.release()
        self._guardian.dismiss()
        os.close(self.fd)

    def read(self) -> bytes | None:
        """What was typed; empty when the terminal is gone, None when there is nothing for us."""
        try:
            with no_job_control():
                return os.read(self.fd, 4096)
        except BlockingIOError:
            return None
        except OSError:  # EIO, from the background too
            if self._in_foreground():
                raise
            return None

    def _change(self) -> None:
        self._guardian.start()  # before there is anything to undo
        found = self._guardian.describe()
        with no_job_control():
            if not self._in_foreground():  # still: stty has taken its time
                return
            self._found = termios.tcgetattr(self.fd)
            termios.tcsetattr(self.fd, termios.TCSANOW, _single_keys(self._found))
            self._made = termios.tcgetattr(self.fd)  # as the driver made it, which may differ from what was asked for
        self._guardian.watch(found)

    def _forget(self) -> None:
        self._made = None
        self._guardian.rest()

    def _in_foreground(self) -> bool:
        return os.tcgetpgrp(self.fd) == os.getpgrp()


@contextlib.contextmanager
def no_job_control() -> Iterator[None]:
    """A race for the foreground must not stop us: with these blocked, the kernel answers instead of sending them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN, signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def follow(
    away: Callable[[bool], AbstractAsyncContextManager[None]],
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Until cancelled: stop inside `away(True)` where the terminal asks for it, and pass through `away(False)` when we
    go on, since after SIGSTOP, of which nobody is told, the shell has changed the terminal."""
    # A signal that somebody else ignores or handles stays theirs; only the main thread can have any.
    ours = [number for number in (signal.SIGTSTP, signal.SIGCONT) if signal.getsignal(number) is signal.SIG_DFL]
    if not ours or threading.current_thread() is not threading.main_thread():
        task_status.started()
        return
    with anyio.open_signal_receiver(*ours) as received:
        task_status.started()
        async for number in received:
            stops = number == signal.SIGTSTP
            async with away(stops):
                if stops:
                    _stop_by_default_action()


class ScreenGuardian:
    """The same for a screen: writes what puts it back, when whoever had it is gone without a word."""

    def __init__(self, terminal: int, farewell: bytes) -> None:
        self._terminal = terminal
        self._farewell = os.fsdecode(farewell)
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self) -> None:
        """From now on there is something to put back."""
        if self._process is None:
            with contextlib.suppress(OSError):  # without a shell there is none
                self._process = _shell_beside(
                    self._terminal, _SCREEN_GUARDIAN, "sidecar-screen-guardian", self._farewell
                )

    def dismiss(self) -> None:
        """It is put back."""
        if self._process is not None:
            self._process.kill()
            with self._process:
                self._process = None


# A line is a setting to put back, from the one that is made when the line comes; an empty line is nothing to do. When
# the pipe ends, the last line counts. Descriptor 2 is the terminal at first, as 0 is the pipe and 1 the answers.
_GUARDIAN = """
trap '' HUP INT TERM PIPE
exec 3<&2 2>/dev/null
made=
while read -r line; do
    found=$line made=
    if [ -n "$found" ]; then made=$("$1" -g <&3); echo; fi
done
if [ -n "$made" ] && [ "$("$1" -g <&3)" = "$made" ]; then "$1" "$found" <&3; fi
"""
# Ends with the pipe. `printf` is a part of the shell.
_SCREEN_GUARDIAN = """
trap '' HUP INT TERM PIPE
while read -r line; do :; done
printf %s "$1" >&2
"""


def _single_keys(setting: _Setting) -> _Setting:
    # Not tty.setcbreak(): what else that changes depends on the version of Python.
    iflag, oflag, cflag, lflag, ispeed, ospeed, characters = setting
    lflag = lflag & ~(termios.ICANON | termios.ECHO) | termios.ISIG
    characters = list(characters)
    characters[termios.VMIN], characters[termios.VTIME] = 1, 0
    return [iflag, oflag, cflag, lflag, ispeed, ospeed, characters]


class _Guardian:
    """A shell that outlives us for a moment, and gives the terminal back when no code of ours can.

    None runs after SIGKILL, nor after the default action of SIGTERM or SIGHUP, but the kernel closes our end of a
    pipe. This is the one process that is started outside of `sidecar.agents`: it is no part of any run, it has to
    survive whatever ends them, and it is needed where there is no agent yet.
    """

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._stty = shutil.which("stty")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Have it wait. Without a shell or stty there is none, and the terminal is given back by us or not at all."""
        if self._process is None and self._stty is not None:
            with contextlib.suppress(OSError):
                self._process = self._spawn(self._stty)

    def describe(self) -> str:
        """The present setting in stty's own words, which differ between systems; empty where it has none."""
        if self._process is None or self._stty is None:
            return ""
        try:
            told = subprocess.run(  # noqa: S603  a path that PATH led to, and nobody's input
                [self._stty, "-g"],
                stdin=self._terminal,
                capture_output=True,
                timeout=_STTY_S,
                check=True,
                start_new_session=True,
            )
        except (OSError, subprocess.SubprocessError):
            return ""
        return told.stdout.decode(errors="replace").strip()

    def watch(self, found: str) -> None:
        """When we die from now on: put back `found`, if the terminal is still set as it is now."""
        self._tell(found)
        if found and self._process is not None and self._process.stdout is not None:
            # Until it knows: a moment later it could take somebody else's setting for ours. Not select(), which
            # cannot wait for a descriptor above 1023.
            answer = select.poll()
            answer.register(self._process.stdout, select.POLLIN)
            if answer.poll(_STTY_S * 1000):
                self._process.stdout.read(1)

    def rest(self) -> None:
        """Nothing there is ours any more. Whoever makes the very same setting after us is to keep it."""
        self._tell("")

    def dismiss(self) -> None:
        """End it at once: the terminal is given back, and it would find nothing to do."""
        if self._process is not None:
            self._process.kill()
            with self._process:  # closes the pipes and waits
                self._process = None

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # somebody has ended it: it was the second line of defence
                self._process.stdin.write(line.encode() + b"\n")

    def _spawn(self, stty: str) -> subprocess.Popen[bytes]:
        return _shell_beside(self._terminal, _GUARDIAN, "sidecar-keyboard-guardian", stty)


def _shell_beside(terminal: int, script: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A shell whose input ends when we do, with the terminal as its descriptor 2."""
    return subprocess.Popen(  # noqa: S603  nothing in it comes from outside
        ["/bin/sh", "-c", script, *arguments],
        stdin=subprocess.PIPE,  # our end is close-on-exec: while an agent held it, we would not seem dead
        stdout=subprocess.PIPE,
        stderr=terminal,
        bufsize=0,
        cwd="/",
        env={},  # with the marker of a run it would be taken for one of its processes
        # A session of its own has no Ctrl-C and no hang-up, and job control does not keep it from the terminal.
        start_new_session=True,
    )


def _stop_by_default_action() -> None:
    """Stop this process as Ctrl-Z would have; returns when it is continued."""
    # Only this process: the terminal has sent the signal to the rest of the group itself. Not SIGSTOP: the default
    # action knows when nobody is left who could continue us, and does nothing then.
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)
    signal.siginterrupt(signal.SIGTSTP, False)  # as the event loop had it, and as signal.signal() has undone it
