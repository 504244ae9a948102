"""Workspaces: made where they can be used, and listed also where one of them cannot."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sidecar import config
from sidecar.config import Project
from sidecar.errors import InputError, SidecarError
from sidecar.service import workspaces
from sidecar.service.workspaces import WorkspaceStatus


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "project"
    root.mkdir()
    return config.open_project(str(root), {})


def test_none_is_made_outside_of_the_project(project: Project, tmp_path: Path) -> None:
    outside = config.Project(project.root, project.settings, {"SIDECAR_WORKSPACES_DIR": str(tmp_path / "elsewhere")})
    with pytest.raises(InputError, match="have to be inside the project"):
        workspaces.init(outside, "task")
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_in_the_place_of_a_directory_is_told_in_one_line(project: Project, tmp_path: Path) -> None:
    (tmp_path / "project" / ".swissarmyhammer").mkdir()
    (tmp_path / "project" / ".swissarmyhammer" / "workspaces").touch()
    with pytest.raises(SidecarError, match=r"cannot make .*workspaces.*: "):
        workspaces.init(project, "task")


def test_one_that_cannot_be_used_does_not_hide_the_others(project: Project, tmp_path: Path) -> None:
    workspaces.init(project, "good")
    parent = tmp_path / "project" / ".swissarmyhammer" / "workspaces"
    (tmp_path / "outside").mkdir()
    (parent / "astray").symlink_to(tmp_path / "outside")
    (parent / "not a name").mkdir()
    (parent / "file").touch()
    found = [workspaces.summary(project, name, None) for name in workspaces.names(project)]
    assert [(one["name"], bool(one["problem"])) for one in found] == [("astray", True), ("good", False)]
    assert "leads outside the project" in found[0]["problem"]
    assert found[1]["status"]["complete"] is False


@pytest.mark.parametrize(
    ("text", "state"),
    [(None, "missing"), ("", "missing"), ("Do it.", "ready"), (f"<!-- {workspaces.NOT_WRITTEN} -->", "template")],
)
def test_instructions_are_ready_missing_or_a_template(project: Project, text: str | None, state: str) -> None:
    target, _, _ = workspaces.init(project, "task", "something")
    instructions = Path(target.directory) / "INSTRUCTIONS.md"
    instructions.unlink() if text is None else instructions.write_text(text)
    assert workspaces.details(project, "task", None)["instructions"] == state


def read(directory: Path, content: object) -> WorkspaceStatus:
    text = content if isinstance(content, str) else json.dumps(content)
    (directory / ".status.json").write_text(text)
    return workspaces.read_status(str(directory))


def test_everything_that_an_agent_writes_into_the_status_file_is_read(tmp_path: Path) -> None:
    written = {"complete": False, "progress": {"completed": 3, "total": 10}, "worked": True, "summary": "three"}
    found = read(tmp_path, {**written, "phase": "whatever"})
    assert (found.complete, found.completed, found.total, found.percent) == (False, 3, 10, None)
    assert (found.worked, found.summary, found.problem) == (True, "three", "")
    assert found.written_at == os.stat(tmp_path / ".status.json").st_mtime
    assert read(tmp_path, {"complete": True, "progress": 62.5}).percent == 62.5


def test_without_a_status_file_nothing_is_known_and_nothing_is_wrong(tmp_path: Path) -> None:
    assert workspaces.read_status(str(tmp_path)) == WorkspaceStatus()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"complete": tr', "it is not JSON"),
        ("", "it is not JSON"),
        ("[]", "it is no JSON object"),
        ('{"complete": "true"}', "`complete` has to be true or false"),
        ("{}", "`complete` has to be true or false"),
        ('{"complete": true}' + " " * 1024 * 1024, "larger than 1 MiB"),
        ("[" * 100_000, ""),
    ],
)
def test_an_unusable_status_file_is_no_completion_and_says_why(tmp_path: Path, content: str, problem: str) -> None:
    found = read(tmp_path, content)
    assert not found.complete
    assert found.problem
    assert problem in found.problem


def test_a_status_file_that_is_no_regular_file_makes_nobody_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".status.json")
    assert workspaces.read_status(str(tmp_path)).problem == "it is no regular file"
    os.unlink(tmp_path / ".status.json")
    (tmp_path / ".status.json").symlink_to("/dev/zero")
    assert workspaces.read_status(str(tmp_path)).problem == "it is no regular file"


@pytest.mark.parametrize(
    ("content", "mode"),
    [('{"mode": "iterative"}', "iterative"), ('{"mode": "other"}', None), ("[]", None), ("{", None), (None, None)],
)
def test_the_mode_is_what_claude_iterate_wrote_down(tmp_path: Path, content: str | None, mode: str | None) -> None:
    if content is not None:
        (tmp_path / ".metadata.json").write_text(content)
    assert workspaces.written_mode(str(tmp_path)) == mode


def test_wrong_types_in_a_status_file_are_left_out(tmp_path: Path) -> None:
    found = read(
        tmp_path, {"complete": False, "progress": {"completed": "3", "total": True}, "worked": 1, "summary": 2}
    )
    assert (found.completed, found.total, found.percent, found.worked, found.summary) == (None, None, None, None, "")
