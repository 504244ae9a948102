"""`sidecar status` where there are many runs, or runs with ids that begin alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.store.db import open_database
from sidecar.store.journal import Journal
from tests.kit import Project


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
    assert "is the beginning of 2 runs" in err
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
