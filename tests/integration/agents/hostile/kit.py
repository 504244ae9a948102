"""Programs that do not want to be ended, one function each: `kit.py NAME WORD`.

WORD stands in the command line of every process that comes of it, so that a test finds them all without asking the
code under test. Each writes `ready` to stdout when it has taken up its position.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable


def _say_ready() -> None:
    os.write(1, b"ready\n")


def _deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _wait() -> None:
    while True:
        time.sleep(1000)


def _child(behaviour: Callable[[], None]) -> int:
    """Fork; the child behaves so and never comes back."""
    pid = os.fork()
    if pid == 0:
        try:
            behaviour()
        finally:
            os._exit(0)
    return pid


def _report(read: int) -> None:
    """Wait until somebody below wrote to the pipe."""
    os.read(read, 1)


def ignores_term() -> None:
    """Alone and deaf."""
    _deaf()
    _say_ready()
    _wait()


def deaf_child_in_group() -> None:
    """A deaf child in the same group."""
    read, write = os.pipe()

    def child() -> None:
        _deaf()
        os.write(write, b".")
        _wait()

    _child(child)
    _report(read)
    _say_ready()
    _wait()


def deaf_child_in_session() -> None:
    """A deaf child in a session of its own."""
    read, write = os.pipe()

    def child() -> None:
        os.setsid()
        _deaf()
        os.write(write, b".")
        _wait()

    _child(child)
    _report(read)
    _say_ready()
    _wait()


def _daemon(last: Callable[[], None]) -> None:
    """Fork, new session, fork again; the one between exits."""

    def between() -> None:
        os.setsid()
        _child(last)

    os.waitpid(_child(between), 0)


def double_fork() -> None:
    """A deaf daemon whose parent is gone."""
    read, write = os.pipe()

    def daemon() -> None:
        _deaf()
        os.write(write, b".")
        _wait()

    _daemon(daemon)
    _report(read)
    _say_ready()
    _wait()


def double_fork_empty_environment() -> None:
    """A daemon without any environment: no marker is left in it."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    program = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "os.write(int(sys.argv[2]), b'.'); time.sleep(1000)"
    )

    def daemon() -> None:
        argv = [sys.executable, "-I", "-S", "-c", program, sys.argv[2], str(write)]
        os.execve(sys.executable, argv, {})

    _daemon(daemon)
    _report(read)
    _say_ready()
    _wait()


def respawners() -> None:
    """Three deaf processes, each in its session; whoever misses its parent or its child starts another."""
    read, write = os.pipe()

    def keeper(below: int) -> None:
        os.setsid()
        _deaf()
        os.write(write, b".")
        parent = os.getppid()
        child = _child(lambda: keeper(below - 1)) if below else 0
        while True:
            if child and os.waitpid(child, os.WNOHANG)[0]:
                child = _child(lambda: keeper(below - 1))
            if os.getppid() != parent:
                parent = os.getppid()
                _child(lambda: keeper(0))
            time.sleep(0.001)

    _child(lambda: keeper(2))
    for _ in range(3):
        _report(read)
    _say_ready()
    _wait()


def term_handler_daemonizes() -> None:
    """Answers SIGTERM by leaving a daemon behind."""

    def flee(_number: int, _frame: object) -> None:
        def daemon() -> None:
            _deaf()
            _wait()

        _daemon(daemon)
        os._exit(0)

    signal.signal(signal.SIGTERM, flee)
    _say_ready()
    _wait()


def floods_stdout() -> None:
    """Writes without end and hears nothing."""
    _deaf()
    _say_ready()
    line = b"x" * 8191 + b"\n"
    while True:
        os.write(1, line)


def stopped() -> None:
    """Stops itself: a signal stays pending until it goes on."""
    _say_ready()
    os.kill(os.getpid(), signal.SIGSTOP)
    _wait()


def parent_exits_grandchild_holds_stdout() -> None:
    """Gone at once; a deaf grandchild keeps the pipe."""
    read, write = os.pipe()

    def daemon() -> None:
        _deaf()
        os.write(write, b".")
        _wait()

    _daemon(daemon)
    _report(read)
    _say_ready()


def zombie_maker() -> None:
    """Never waits for its dead children."""
    for _ in range(20):
        _child(lambda: None)
    _deaf()
    _say_ready()
    _wait()


def fork_storm() -> None:
    """Forks on as it is ended, 200 processes in all."""
    _deaf()
    read, write = os.pipe()

    def storm(left: int) -> None:
        if left % 2:
            os.setsid()
        if left > 0:
            _child(lambda: storm(left - 1))
        else:
            os.write(write, b".")
        _wait()

    for _ in range(4):
        _child(lambda: storm(48))
    _report(read)
    _say_ready()
    _wait()


def closes_everything_and_leaves() -> None:
    """No descriptor, another directory, deaf."""
    _deaf()
    os.chdir("/usr")
    os.umask(0)
    _say_ready()
    os.closerange(0, 256)
    _wait()


def first_thread_ends() -> None:
    """Deaf, and by the look of it a zombie: its first thread is gone, another works on."""
    _deaf()
    threading.Thread(target=_wait).start()
    _say_ready()
    if sys.platform == "linux":
        exit_thread = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
        ctypes.CDLL(None).syscall(exit_thread, 0)
    _wait()


def drops_every_mark() -> None:
    """A daemon without environment and with limits of its own: only the kernel knows whose it is."""
    resource.setrlimit(10, (5, resource.getrlimit(10)[1]))
    double_fork_empty_environment()


PROGRAMS = [
    ignores_term,
    deaf_child_in_group,
    deaf_child_in_session,
    double_fork,
    double_fork_empty_environment,
    respawners,
    term_handler_daemonizes,
    floods_stdout,
    stopped,
    parent_exits_grandchild_holds_stdout,
    zombie_maker,
    fork_storm,
    closes_everything_and_leaves,
    first_thread_ends,
]

if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.stdout.write("\n".join(program.__name__ for program in PROGRAMS))
    else:
        {program.__name__: program for program in (*PROGRAMS, drops_every_mark)}[sys.argv[1]]()
