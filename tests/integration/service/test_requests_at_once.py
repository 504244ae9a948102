"""Several requests for one run that come to a daemon at once."""

from __future__ import annotations

import fcntl
import json
import signal
import socket
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sidecar.service import runs
from sidecar.signals import run_lock
from sidecar.store.db import open_database
from sidecar.store.journal import Journal
from tests.kit import DEADLINE_S, Project, sockets

WORKING = "echo $$ >> begun; until test -e go; do sleep 0.05; done; echo done >> ended"


@pytest.fixture
def working(tmp_path: Path) -> Iterator[Project]:
    """A project whose workflow `work` works until the file `go` is there."""
    found = Project(tmp_path / "project")
    found.workflow("work", {"id": "a", "type": "shell_command", "command": WORKING})
    yield found
    found.close()


def begin_again(project: Project, run_id: str) -> None:
    """As `resume` does before it hands a run over."""
    root = str(project.root)
    with open_database(root) as database, run_lock.RunLock(root, run_id):
        journal = Journal(database)
        runs.begin_again(root, journal, journal.run(run_id), "server")


def unread(connected: socket.socket) -> int:
    """How many bytes the other end has not read yet."""
    return int.from_bytes(fcntl.ioctl(connected, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def test_requests_for_one_run_that_come_at_once_begin_it_once_and_harm_no_other(working: Project) -> None:
    daemon = working.daemon()
    other = working.detached("work")
    working.until_file("begun")
    working.workflow("fails", {"id": "a", "type": "shell_command", "command": "test -e go"})
    run_id = working.detached("fails")
    working.until_status(run_id, "failed")
    begin_again(working, run_id)
    asked = {"run_id": run_id, "feedback": None, "answer": None, "with_changes": False}
    clients = [sockets.connect(working.state / "handover.sock") for _ in range(3)]
    for client in clients:
        client.sendall(json.dumps(asked).encode())
    working.until(lambda: not any(map(unread, clients)))  # the daemon waits for the rest of each
    (working.root / "go").touch()
    daemon.process.send_signal(signal.SIGSTOP)
    working.until(lambda: psutil.Process(daemon.process.pid).status() == psutil.STATUS_STOPPED)
    for client in clients:
        client.sendall(b"\n")
    daemon.process.send_signal(signal.SIGCONT)
    answers = []
    for client in clients:
        client.settimeout(DEADLINE_S)
        with client, client.makefile() as lines:
            answers.append(json.loads(lines.readline() or "null"))
    assert sorted(map(list, answers)) == [["begun"], ["error"], ["error"]]
    assert str(answers).count(f"run {run_id} is already being executed") == 2
    assert working.until_status(run_id, "completed")
    assert working.until_status(other, "completed")
    assert len(working.data(run_id, "run_resumed")) == 1
    assert daemon.end() == 0
