"""One terminal: opened apart from those who share it, taken for single keys, written to, given back as it was found.

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
    from contextlib import AbstractContextManager

    from anyio.abc import TaskStatus

_Setting = list[Any]  # what termios.tcgetattr returns

_USUAL_SIZE = os.terminal_size((80, 24))
_STTY_S = 2.0


def can_show_panel(fd: int, environment: Mapping[str, str]) -> bool:
    """Whether `fd` is a terminal that can move its cursor."""
    return os.isatty(fd) and environment.get("TERM", "dumb") not in ("", "dumb", "unknown")


def open_apart(fd: int, flags: int = 0) -> int:
    """A descriptor of the same terminal that shares nothing with the one given, which the shell has, too."""
    flags |= os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC
    with contextlib.suppress(OSError):  # it has no name in this container, or, after su, another owner
        return os.open(os.ttyname(fd), flags)
    with contextlib.suppress(OSError):
        os.tcgetpgrp(fd)  # fails for everything but the controlling terminal
        return os.open("/dev/tty", flags)
    return os.dup(fd)  # better to wait for it than to have none


class Terminal:
    """Rows are written to it, and keys or lines are read from it. Nobody ever waits for it: not the run, not whoever
    shares the descriptor that it was opened from."""

    def __init__(self, fd: int) -> None:
        # O_NONBLOCK on the descriptor that we were given would be shared with the shell. A terminal that was halted
        # by Ctrl-S, or a connection that hangs, must not hold up a run.
        self.fd = open_apart(fd, os.O_NONBLOCK)
        self._guardian = _Guardian(self.fd)
        self._unwritten = b""
        self._found: _Setting = []
        self._made: _Setting | None = None  # None: the setting is not ours

    @property
    def is_open(self) -> bool:
        return self.fd >= 0

    def close(self) -> None:
        """Give it up as it was found; a second time does nothing."""
        if self.is_open:
            self.release()
            self._guardian.dismiss()
            os.close(self.fd)
            self.fd = -1

    def size(self) -> os.terminal_size:
        """Columns and lines; a terminal that does not know gets the usual."""
        try:
            size = os.get_terminal_size(self.fd)
        except OSError:
            return _USUAL_SIZE
        return size if size.columns and size.lines else _USUAL_SIZE

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

    # --- single keys without echo, while it is ours

    def take(self) -> bool:
        """Make it give single keys, where it is ours to change; whether it does. OSError, termios.error: it is gone, or
        does not control this process."""
        if os.tcgetpgrp(self.fd) != os.getpgrp():
            self.release()
            return False
        if self._made is not None:
            return True
        found = self._guardian.describe_keys()  # before there is anything to undo
        with no_job_control():
            if os.tcgetpgrp(self.fd) != os.getpgrp():  # any more: stty has taken its time
                return False
            self._found = termios.tcgetattr(self.fd)
            termios.tcsetattr(self.fd, termios.TCSANOW, _single_keys(self._found))
            self._made = termios.tcgetattr(self.fd)  # as the driver made it, which may differ from what was asked for
        self._guardian.watch_keys(found)
        return True

    def release(self) -> None:
        """Put back the setting that was found. Whatever is not ours any more is left alone."""
        if self._made is None:
            return
        with contextlib.suppress(termios.error), no_job_control():
            if termios.tcgetattr(self.fd) == self._made:
                termios.tcsetattr(self.fd, termios.TCSANOW, self._found)
        self._made = None
        self._guardian.watch_keys("")

    # --- a screen that is to be put back

    def watch_screen(self, is_ours: bool) -> None:
        """From now on there is a screen to put back if this process is killed; or there is none any more."""
        self._guardian.watch_screen(is_ours)


def _single_keys(setting: _Setting) -> _Setting:
    # Not tty.setcbreak(): what else that changes depends on the version of Python.
    iflag, oflag, cflag, lflag, ispeed, ospeed, characters = setting
    lflag = lflag & ~(termios.ICANON | termios.ECHO) | termios.ISIG
    characters = list(characters)
    characters[termios.VMIN], characters[termios.VTIME] = 1, 0
    return [iflag, oflag, cflag, lflag, ispeed, ospeed, characters]


# --- job control


@contextlib.contextmanager
def no_job_control() -> Iterator[None]:
    """A race for the foreground must not stop us: with these blocked, the kernel answers instead of sending them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN, signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def follow_job_control(
    away: Callable[[], AbstractContextManager[None]], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Until cancelled: stop inside `away()` where Ctrl-Z asks for it, and pass through it when we go on, since after
    SIGSTOP, of which nobody is informed, the shell has changed the terminal."""
    # A signal that somebody else ignores or handles stays theirs; only the main thread can have any.
    ours = [number for number in (signal.SIGTSTP, signal.SIGCONT) if signal.getsignal(number) is signal.SIG_DFL]
    if not ours or threading.current_thread() is not threading.main_thread():
        task_status.started()
        return
    with anyio.open_signal_receiver(*ours) as received:
        task_status.started()
        async for number in received:
            with away():
                if number == signal.SIGTSTP:
                    _stop_by_default_action()


def _stop_by_default_action() -> None:
    """Stop this process as Ctrl-Z would have; returns when it is continued."""
    # Only this process: the terminal has sent the signal to the rest of the group itself. Not SIGSTOP: the default
    # action knows when nobody is left who could continue us, and does nothing then.
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)
    signal.siginterrupt(signal.SIGTSTP, False)  # as the event loop had it, and as signal.signal() has undone it


# --- when this process is killed

# Colours, wrapping, the screen before, the cursor; cleared first: not every terminal has a second screen. Half of an
# escape sequence may stand there by then; the next escape ends it.
LEAVE_SCREEN = b"\033[0m\033[?7h\033[H\033[2J\033[?1049l"
SHOW_CURSOR = b"\033[?25h"

# A line is what there is to put back: `keys` with a setting, in place of the one that stands when the line comes, or
# `screen` with a word; without them nothing. When the pipe ends, the last lines count. Descriptor 2 is the terminal at
# first, as 0 is the pipe and 1 the answers. `printf` is a part of the shell.
_GUARDIAN = """
trap '' HUP INT TERM PIPE
exec 3<&2 2>/dev/null
made= screen=
while read -r what value; do
    case $what in
    keys) found=$value made=; if [ -n "$found" ]; then made=$("$1" -g <&3); echo; fi ;;
    screen) screen=$value ;;
    esac
done
if [ -n "$made" ] && [ "$("$1" -g <&3)" = "$made" ]; then "$1" "$found" <&3; fi
if [ -n "$screen" ]; then printf %s "$2" >&3; fi
"""


class _Guardian:
    """A shell that outlives us for a moment, and gives the terminal back when no code of ours can.

    None runs after SIGKILL, nor after the default action of SIGTERM or SIGHUP, but the kernel closes our end of a
    pipe. This is the one process that is started outside of `sidecar.agents`: it is no part of any run, it has to
    survive whatever ends them, and it is needed where there is no agent yet. Without a shell, or for keys without stty,
    there is none, and the terminal is given back by us or not at all.
    """

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._stty = shutil.which("stty")
        self._process: subprocess.Popen[bytes] | None = None

    def describe_keys(self) -> str:
        """The present setting in stty's own words, which differ between systems; empty where it has none."""
        if self._stty is None:
            return ""
        try:
            described = subprocess.run(  # noqa: S603  a path that PATH led to, and nobody's input
                [self._stty, "-g"],
                stdin=self._terminal,
                capture_output=True,
                timeout=_STTY_S,
                check=True,
                start_new_session=True,
            )
        except (OSError, subprocess.SubprocessError):
            return ""
        self._start()
        return described.stdout.decode(errors="replace").strip()

    def watch_keys(self, found: str) -> None:
        """When we die from now on: put back `found`, if the terminal is still set as it is now. Empty: nothing there is
        ours any more, and whoever makes the very same setting after us is to keep it."""
        self._send(f"keys {found}")
        if found and self._process is not None and self._process.stdout is not None:
            # Until it knows: a moment later it could take somebody else's setting for ours. Not select(), which
            # cannot wait for a descriptor above 1023.
            answer = select.poll()
            answer.register(self._process.stdout, select.POLLIN)
            if answer.poll(_STTY_S * 1000):
                self._process.stdout.read(1)

    def watch_screen(self, is_ours: bool) -> None:
        """When we die from now on: leave the second screen; or leave it alone."""
        if is_ours:
            self._start()
        self._send("screen ours" if is_ours else "screen")

    def dismiss(self) -> None:
        """End it at once: the terminal is given back, and it would find nothing to do."""
        if self._process is not None:
            self._process.kill()
            with self._process:  # closes the pipes and waits
                self._process = None

    def _send(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # somebody has ended it: it was the second line of defence
                self._process.stdin.write(line.encode() + b"\n")

    def _start(self) -> None:
        if self._process is not None:
            return
        restored = os.fsdecode(LEAVE_SCREEN + SHOW_CURSOR)
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(  # noqa: S603  nothing in it comes from outside
                ["/bin/sh", "-c", _GUARDIAN, "sidecar-terminal-guardian", self._stty or "", restored],
                stdin=subprocess.PIPE,  # our end is close-on-exec: while an agent held it, we would not seem dead
                stdout=subprocess.PIPE,
                stderr=self._terminal,
                bufsize=0,
                cwd="/",
                env={},  # with the marker of a run it would be taken for one of its processes
                # A session of its own has no Ctrl-C and no hang-up, and job control does not keep it from the terminal.
                start_new_session=True,
            )
