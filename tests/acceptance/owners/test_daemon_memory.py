"""How much memory a daemon takes: what its journal holds, and how many runs there were, costs it next to nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from sidecar.agents import socket_path
from sidecar.model import ulid
from sidecar.store.db import open_database
from sidecar.store.journal import Journal

if TYPE_CHECKING:
    from tests.acceptance.owners.conftest import Daemon, Project

MB = 1024 * 1024
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "by hand", "version": "1"}}
AT_ONCE = 5


def _rss(daemon: Daemon) -> int:
    return int(psutil.Process(daemon.process.pid).memory_info().rss)


def _remember(root: Path, count: int) -> None:
    """Runs that were stopped long enough ago for nobody to hold them, each with the environment of its client."""
    environment = {f"VARIABLE_{number}": "x" * 100 for number in range(60)}
    with open_database(str(root)) as database, database.transaction():
        journal = Journal(database)
        for _ in range(count):
            run_id = ulid.new()
            details = {"detached": True, "environment": environment}
            journal.create(run_id, "old", definition="{}", inputs={}, details=details)
            journal.begin(run_id)
            journal.end(run_id, "stopped")


def test_what_the_journal_remembers_costs_no_memory(project: Project) -> None:
    daemon = project.daemon()
    bare = _rss(daemon)
    assert daemon.end() == 0
    _remember(project.root, 3_000)
    daemon = project.daemon()  # by now it has looked for runs to abort, to resume and to forget
    more = _rss(daemon) - bare
    # The journal's page cache is 2 MB at most. What is remembered is 20 MB, and twice that as Python has it.
    assert more < 8 * MB, f"{more / MB:.1f} MB more"


def test_memory_descriptors_and_threads_stay_what_they_were_over_many_runs(
    project: Project, request: pytest.FixtureRequest
) -> None:
    before_that, count = (500, 1_000) if request.config.getoption("--long") else (100, 200)
    project.workflow("quick", {"id": "a", "type": "shell_command", "command": "true"})
    daemon = project.daemon()
    process = psutil.Process(daemon.process.pid)
    with socket_path.connect(str(project.own / "sidecar.sock")) as connection, connection.makefile("rwb") as stream:
        connection.settimeout(60)

        def send(method: str, params: Mapping[str, object], number: int | None = None) -> None:
            numbered = {} if number is None else {"id": number}
            stream.write(
                json.dumps({"jsonrpc": "2.0", **numbered, "method": method, "params": params}).encode() + b"\n"
            )

        def run(first: int, last: int) -> None:
            for begin in range(first, last, AT_ONCE):
                open_ = set(range(begin, min(begin + AT_ONCE, last)))
                for number in open_:
                    send("tools/call", {"name": "flow", "arguments": {"flow_name": "quick"}}, number)
                stream.flush()
                while open_:
                    message = json.loads(stream.readline())
                    open_.discard(message.get("id"))
                    assert not message.get("result", {}).get("isError"), message

        send("initialize", HELLO, 0)
        send("notifications/initialized", {})
        run(1, before_that)
        rss, threads, descriptors = _rss(daemon), process.num_threads(), process.num_fds()
        run(before_that, before_that + count)
        grown = _rss(daemon) - rss
        project.until(lambda: process.num_fds() <= descriptors)
        assert process.num_threads() <= threads
    # The journal's page cache fills up to 2 MB meanwhile, and allocators round up; beyond that, less than 1 KB a run.
    assert grown < 3 * MB + count * 1024, f"{grown / MB:.1f} MB more after {count} runs"
    assert list((project.own / "open").iterdir()) == []
