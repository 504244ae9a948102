"""Lists are remembered as long as nothing changes, and no longer."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from sidecar.catalog import listing

if TYPE_CHECKING:
    from pathlib import Path

LONG_AGO = time.time() - 1000


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(listing, "_SETTLED_S", -1000)  # nothing is too new


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are really read."""
    found: list[str] = []
    real = listing.quick_heading

    def heading(path: str) -> dict[str, Any] | None:
        found.append(os.path.basename(path))
        return real(path)

    monkeypatch.setattr(listing, "quick_heading", heading)
    return found


def define(root: Path, name: str, text: str) -> Path:
    path = root / ".swissarmyhammer" / "workflows" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def named(root: Path, name: str) -> dict[str, object]:
    rows, _ = listing.rows(str(root), "project")
    return next(row for row in rows if row["name"] == name)


def test_a_row_says_what_the_workflow_says(tmp_path: Path) -> None:
    text = "description: Builds.\nversion: '2'\ninputs:\n  n: {type: integer, default: 3, choices: [3, 4]}\nsteps: []\n"
    path = define(tmp_path, "build", text)
    parameter = {"name": "n", "type": "integer", "required": False, "description": "", "default": 3, "choices": [3, 4]}
    row = {"name": "build", "description": "Builds.", "source": "project", "parameters": [parameter]}
    for _ in range(2):
        assert named(tmp_path, "build") == row | {"version": "2", "path": str(path)}


def test_what_has_not_changed_is_not_read_again(tmp_path: Path, reads: list[str]) -> None:
    define(tmp_path, "one", "steps: []\n")
    define(tmp_path, "two", "steps: []\n")
    listing.rows(str(tmp_path), "project")
    assert reads == ["one.yaml", "two.yaml"]
    define(tmp_path, "two", "description: Another.\nsteps: []\n")
    assert named(tmp_path, "two")["description"] == "Another."
    assert reads == ["one.yaml", "two.yaml", "two.yaml"]


def test_a_change_that_leaves_size_and_time_alone_is_seen(tmp_path: Path) -> None:
    path = define(tmp_path, "one", "description: a\nsteps: []\n")
    os.utime(path, (LONG_AGO, LONG_AGO))
    assert named(tmp_path, "one")["description"] == "a"
    path.write_text("description: b\nsteps: []\n")
    os.utime(path, (LONG_AGO, LONG_AGO))
    assert named(tmp_path, "one")["description"] == "b"


def test_a_file_that_changed_just_now_is_not_trusted(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_SETTLED_S", 1000)
    define(tmp_path, "one", "steps: []\n")
    listing.rows(str(tmp_path), "project")
    listing.rows(str(tmp_path), "project")
    assert reads == ["one.yaml", "one.yaml"]


def test_a_broken_file_is_told_every_time_and_hides_no_other(tmp_path: Path) -> None:
    define(tmp_path, "broken", "stepz: []\n")
    define(tmp_path, "whole", "steps: []\n")
    for _ in range(2):
        rows, problems = listing.rows(str(tmp_path), "project")
        assert [row["name"] for row in rows] == ["whole"]
        assert "broken.yaml:1: " in problems[0]


def test_a_file_with_many_mistakes_takes_one_line_of_a_list(tmp_path: Path) -> None:
    define(tmp_path, "broken", "stepz: []\nlimit: 3\ninput: {}\n")
    _, problems = listing.rows(str(tmp_path), "project")
    assert [problem.partition(" (")[2] for problem in problems] == ["and 3 more: sidecar validate broken)"]


def test_another_sidecar_reads_for_itself(tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    define(tmp_path, "one", "steps: []\n")
    listing.rows(str(tmp_path), "project")
    monkeypatch.setattr("sidecar.__version__", "99")
    listing.rows(str(tmp_path), "project")
    assert reads == ["one.yaml", "one.yaml"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"made_by": 1}', b"\xff"])
def test_a_memory_that_is_damaged_is_as_if_it_were_not(tmp_path: Path, content: bytes) -> None:
    define(tmp_path, "one", "steps: []\n")
    listing.rows(str(tmp_path))
    (memory,) = (tmp_path / "cache" / "sidecar").iterdir()
    memory.write_bytes(content)
    assert named(tmp_path, "one")["name"] == "one"


def test_without_a_place_to_remember_lists_are_made_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    define(tmp_path, "one", "steps: []\n")
    assert named(tmp_path, "one")["name"] == "one"


def test_what_is_gone_is_forgotten_and_a_part_of_the_list_forgets_nothing(tmp_path: Path, reads: list[str]) -> None:
    path = define(tmp_path, "one", "steps: []\n")
    listing.rows(str(tmp_path))
    count = len(reads)
    listing.rows(str(tmp_path), "project")
    listing.rows(str(tmp_path))
    assert len(reads) == count
    path.unlink()
    listing.rows(str(tmp_path))
    (memory,) = (tmp_path / "cache" / "sidecar").iterdir()
    assert "one.yaml" not in memory.read_text()
    assert memory.stat().st_mode & 0o077 == 0
