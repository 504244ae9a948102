"""`sidecar status` where there are many runs, or runs with ids that begin alike."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sidecar.service.status import describe_all
from sidecar.store.db import Database, open_database
from sidecar.store.journal import Journal
from tests.kit import Project, ids


@pytest.fixture
def flows(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_beginning_has_to_be_long_enough_and_of_one_run_only(flows: Project) -> None:
    ids = ["01M7HN" + "0" * 19 + end for end in "AB"]  # made here: two real starts may lie either side of a new prefix
    with open_database(str(flows.root)) as database:
        for run_id in ids:
            Journal(database).create(run_id, workflow="counting", definition="{}", inputs={})
    code, _, err = flows.run("status", ids[0][:6])
    assert code == 2
    assert "could be any of 2 runs" in err
    assert flows.run("status", ids[0][:3])[0] == 2
    assert flows.json("status", ids[1].lower(), "--json")["runs"][0]["run_id"] == ids[1]


def test_programs_get_the_newest_200_too_unless_they_ask_for_more_or_fewer(flows: Project) -> None:
    ids = [f"01M7HN{number:020}" for number in range(210)]
    with open_database(str(flows.root)) as database, database.transaction():
        for run_id in ids:
            Journal(database).create(run_id, workflow="counting", definition="{}", inputs={})
    ids.reverse()

    def shown(*arguments: str) -> list[str]:
        return [run["run_id"] for run in flows.json("status", "--json", *arguments)["runs"]]

    assert shown() == ids[:200]
    assert shown("--all") == ids
    assert shown("--limit", "3") == ids[:3]
    assert shown("--limit", "205") == ids[:205]
    assert shown("--limit", "9" * 30) == ids
    code, out, _ = flows.run("status", "--limit", "3")
    assert (code, [line.split()[0] for line in out.splitlines()[1:-1]]) == (0, ids[:3])
    assert out.splitlines()[-1] == "and older ones: --all, or --limit N"
    for wrong in ("0", "-1", "many"):
        code, _, err = flows.run("status", "--limit", wrong)
        assert (code, "has to be a whole number of at least 1" in err) == (2, True)


def test_a_list_of_many_runs_takes_as_many_queries_as_of_few(flows: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[str] = []
    rows = Database.rows

    def counted(database: Database, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        queries.append(sql)
        return rows(database, sql, values)

    monkeypatch.setattr(Database, "rows", counted)
    taken = []
    with open_database(str(flows.root)) as database:
        journal = Journal(database)
        for _ in range(2):
            with database.transaction():
                for _ in range(30):
                    run_id = journal.create(ids.new_id(), workflow="counting", definition="{}", inputs={}).run_id
                    journal.begin(run_id)
                    journal.append(run_id, "usage", {"cost_usd": 0.5, "tokens": 3, "task": "each.1"})
                    journal.append(run_id, "usage", {"cost_usd": 0.25, "tokens": 4, "task": None})
                    journal.append(run_id, "iteration", {"iteration": 2, "task": None})
                    journal.append(run_id, "iteration", {"iteration": 7, "task": "each.1"})
                    journal.append(run_id, "step_started", {"step": "own", "task": None})
                    journal.append(run_id, "step_started", {"step": "of a task", "task": "each.1"})
                    journal.end(run_id, "paused", data={"waits": {"prompt": "Go on?", "step": "own"}})
            queries.clear()
            found = describe_all(database, str(flows.root))
            taken.append(len(queries))
    assert len(found) == 60
    assert taken[0] == taken[1]
    keys = ("step", "iteration", "cost_usd", "tokens", "waiting")
    assert [found[0][key] for key in keys] == ["own", 2, 0.75, 7, None]
    assert found[0]["needs"] == {"kind": "answer", "prompt": "Go on?", "step": "own"}


def test_a_look_at_runs_imports_nothing_that_would_execute_one(flows: Project) -> None:
    flows.workflow("counting", {"id": "one", "type": "shell_command", "command": "true"})
    assert flows.run("flow", "run", "counting", "-q")[0] == 0
    look = "import sys; from sidecar.cli.main import main; main(['status', '--json']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=flows.root, env=flows.environment, capture_output=True, text=True, check=True
    )
    packages = {".".join(name.split(".")[:2]) for name in done.stdout.splitlines()[-1].split()}
    assert "counting" in done.stdout
    assert not packages & {"sidecar.engine", "sidecar.state", "sidecar.agents", "pydantic", "yaml", "anyio", "asyncio"}
