"""What the journal holds costs a daemon next to no memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sidecar.model import ulid
from sidecar.store.db import open_database
from sidecar.store.journal import Journal
from tests.kit import Daemon, Project

MB = 1024 * 1024


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    found = Project(tmp_path / "project")
    yield found
    found.close()


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
