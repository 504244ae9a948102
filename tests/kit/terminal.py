"""A command on a terminal of its own: what is on the screen, and keys."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyte

from tests.kit.forking import SIDECAR, Forked
from tests.kit.waiting import DEADLINE_S

# Opens its terminal again, which makes it the controlling one of the new session, and becomes the command.
_ON_A_TERMINAL = "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execvp(sys.argv[1], sys.argv[1:])"
_JOB_SHELL = Path(__file__).parent / "programs" / "job_shell.py"


class TwoScreens(pyte.Screen):
    """pyte knows only one screen; terminals have a second one, which the first survives."""

    def set_mode(self, *modes: int, **kwargs: Any) -> None:
        if 1049 in modes and kwargs.get("private"):
            self.first = {y: dict(line) for y, line in self.buffer.items()}, self.cursor.x, self.cursor.y
        super().set_mode(*modes, **kwargs)

    def reset_mode(self, *modes: int, **kwargs: Any) -> None:
        super().reset_mode(*modes, **kwargs)
        if 1049 in modes and kwargs.get("private"):
            lines, x, y = self.first
            self.buffer.clear()
            for at, line in lines.items():
                self.buffer[at].update(line)
            self.cursor_position(y + 1, x + 1)


class Terminal:
    """One command, the leader of a session that has the terminal."""

    def __init__(
        self,
        argv: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        *,
        columns: int = 120,
        lines: int = 30,
    ) -> None:
        self.master, self.slave = pty.openpty()
        self._open = [self.master, self.slave]
        self.screen = TwoScreens(columns, lines)
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.slave)
        self.stream = pyte.ByteStream(self.screen)
        self.written = b""
        env = {**environment, "TERM": "xterm-256color"}
        streams: dict[str, Any] = {"stdin": self.slave, "stdout": self.slave, "stderr": self.slave}
        self.process: subprocess.Popen[Any]
        if argv[0] == SIDECAR:
            self.process = Forked(list(argv), cwd, env, terminal=True, **streams)
        else:
            words = [sys.executable, "-c", _ON_A_TERMINAL, *argv]
            self.process = subprocess.Popen(words, cwd=cwd, env=env, start_new_session=True, **streams)

    @property
    def text(self) -> str:
        """The screen."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def until(self, condition: Callable[[], object]) -> None:
        """Read the screen until something is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, self.text
            self.read(0.02)

    def shows(self, *texts: str) -> None:
        self.until(lambda: all(text in self.text for text in texts))

    @property
    def printed(self) -> str:
        """All that was ever written to it."""
        return self.written.decode(errors="replace")

    def has_written(self, *texts: str) -> None:
        """On the screen, now or before."""
        self.until(lambda: all(text.encode() in self.written for text in texts))

    def takes_keys(self) -> None:
        """Wait until single keys are read."""
        self.until(lambda: not termios.tcgetattr(self.slave)[3] & termios.ECHO)

    def is_as_before(self) -> bool:
        """Whether the terminal is set as it was found."""
        return termios.tcgetattr(self.slave) == self.before

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self) -> int:
        """The exit code, when it has ended."""
        self.until(lambda: self.process.poll() is not None)
        self.read(0)
        return self.process.returncode

    def read(self, patience_s: float) -> None:
        while select.select([self.master], [], [], patience_s)[0]:
            data = os.read(self.master, 65536)
            self.written += data
            self.stream.feed(data)
            patience_s = 0

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        while self._open:
            os.close(self._open.pop())


class JobShell:
    """A shell with job control on a terminal of its own, one job, the screen, and the keys of the person there."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.keys, self.terminal = pty.openpty()
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = self.setting()
        self.screen = pyte.Screen(80, 24)
        self.stream = pyte.ByteStream(self.screen)
        self.written = b""
        commands, self._commands = os.pipe()
        self._reports, reports = os.pipe()
        self._unread = b""
        self.shell = subprocess.Popen(
            [sys.executable, str(_JOB_SHELL), str(commands)],
            stdin=self.terminal,
            stdout=reports,
            pass_fds=[commands],
            start_new_session=True,
            env=environment,
        )
        os.close(commands)
        os.close(reports)
        self.job = psutil.Process()  # none yet

    def close(self) -> None:
        if self.job.pid != os.getpid():
            with contextlib.suppress(psutil.NoSuchProcess):
                self.job.kill()
        self.shell.kill()
        self.shell.wait()
        for fd in (self.keys, self.terminal, self._commands, self._reports):
            if fd >= 0:
                os.close(fd)

    def start(self, place: str, argv: Sequence[str], first_report: str) -> psutil.Process:
        """A job in the `foreground` or the `background`; returns when it has reported."""
        self.tell("start", place, *argv)
        reports = sorted([self.next_report(), self.next_report()])
        assert reports[1] == first_report
        self.job = psutil.Process(int(reports[0].removeprefix("job ")))
        return self.job

    def tell(self, *words: str) -> None:
        """Have the shell do something: foreground, background, or signal with a number."""
        os.write(self._commands, ("\0".join(words) + "\n").encode())
        if words[0] != "start":
            self.expect("done")

    def expect(self, words: str) -> str:
        """The next report of the shell or the job, which begins with these words."""
        report = self.next_report()
        assert f"{report} ".startswith(f"{words} ")
        return report

    def next_report(self) -> str:
        self.wait(lambda: b"\n" in self._unread)
        line, self._unread = self._unread.split(b"\n", 1)
        return line.decode()

    def has_report(self, *, within_s: float) -> bool:
        return bool(self._unread or select.select([self._reports], [], [], within_s)[0])

    def press(self, keys: bytes) -> None:
        os.write(self.keys, keys)

    def hang_up(self) -> None:
        os.close(self.keys)
        self.keys = -1

    def setting(self) -> list[Any]:
        return termios.tcgetattr(self.terminal)

    def takes_keys(self) -> bool:
        return not self.setting()[3] & termios.ICANON

    def shows(self, text: str) -> bool:
        return any(text in row for row in self.screen.display)

    def wait(self, condition: Callable[[], object]) -> None:
        """Read the screen and the reports until something is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "\n".join([*self.screen.display, self._unread.decode()])
            sources = [self._reports, *([self.keys] if self.keys >= 0 else [])]
            readable = select.select(sources, [], [], 0.02)[0]
            if self._reports in readable:
                more = os.read(self._reports, 4096)
                assert more, "the shell is gone"
                self._unread += more
            if self.keys in readable:
                data = os.read(self.keys, 65536)
                self.written += data
                self.stream.feed(data)
