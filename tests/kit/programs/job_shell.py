"""A shell with job control and nothing else: it runs one job on its terminal and does as it is told.

Like the plainest of shells it never repairs the terminal, so whatever a job leaves behind can be seen.
Commands come in on the descriptor that is its argument, reports go to standard output, both as lines.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios

jobs: list[subprocess.Popen[bytes]] = []


def report(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def give_terminal_to(group: int) -> None:
    # Blocked only for the moment: a job would inherit it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    os.tcsetpgrp(0, group)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(place: str, *argv: str) -> None:
    def take_place() -> None:
        os.setpgid(0, 0)
        if place == "foreground":
            give_terminal_to(os.getpid())

    jobs.append(subprocess.Popen(argv, preexec_fn=take_place))  # noqa: PLW1509  there are no threads here
    report("job", jobs[-1].pid)


def obey(line: str) -> None:
    word, *rest = line.split("\0")
    if word == "start":
        start(*rest)
        return
    job = jobs[-1]
    if word == "foreground":
        give_terminal_to(job.pid)
    elif word == "background":
        give_terminal_to(os.getpgrp())
    report("done")  # before a signal, whose own report would race with it
    if word == "signal":
        os.killpg(job.pid, int(rest[0]))


def look_at(job: subprocess.Popen[bytes]) -> None:
    pid, status = os.waitpid(job.pid, os.WNOHANG | os.WUNTRACED)
    if not pid:
        return
    with contextlib.suppress(OSError):  # it may have hung up
        give_terminal_to(os.getpgrp())
    if os.WIFSTOPPED(status):
        report("stopped", os.WSTOPSIG(status))
    else:
        job.returncode = os.waitstatus_to_exitcode(status)
        report("ended", job.returncode)


signal.signal(signal.SIGHUP, lambda *_: None)  # a function, because a job would inherit SIG_IGN
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
commands = os.fdopen(int(sys.argv[1]), buffering=1)
while True:
    if select.select([commands], [], [], 0.01)[0]:
        line = commands.readline()
        if not line:
            break
        obey(line.rstrip("\n"))
    for job in jobs:
        if job.returncode is None:
            look_at(job)
