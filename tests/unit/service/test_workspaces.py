"""Workspaces: made where they can be used, and listed also where one of them cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar import config
from sidecar.config import Project
from sidecar.errors import InputError, SidecarError
from sidecar.service import workspaces


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
