"""`stop` and `abort` with words that no command line can hold, and with a workspace that changes meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sidecar.cli import stop_abort
from sidecar.signals import files
from tests.kit import read_signal


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = Path(os.path.realpath(tmp_path)) / "project"
    (project / ".swissarmyhammer").mkdir(parents=True)
    return project


def test_a_reason_of_a_megabyte_is_cut_and_keeps_its_trailers(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    assert stop_abort.main("abort", ["why " * 262_144], {}) == 0  # more than one argument of a process may have
    assert capsys.readouterr().err == ""
    found = read_signal(project / ".swissarmyhammer", "abort")
    assert found.reason.startswith("why why ")
    assert found.reason.endswith("longer than a signal file may be]")
    assert "Signal-Id" in found.trailers


def test_a_name_with_a_nul_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stop_abort.main("stop", ["my-task\0", "--project", str(project)], {}) == 1
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "not a workspace name: 'my-task\\x00'; one has letters, digits, - and _ only\n")


def test_a_workspace_that_is_swapped_for_a_link_while_it_is_stopped_leads_nowhere(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = project / "outside"
    outside.mkdir()
    inside = project / "inside"
    workspace = inside / ".swissarmyhammer" / "workspaces" / "w"
    workspace.mkdir(parents=True)
    new_trailers = files.new_trailers

    def swap_first(**given: Any) -> files.Trailers:
        """Between the look at the workspace and the write into it."""
        workspace.rename(inside / "aside")
        workspace.symlink_to(outside)
        return new_trailers(**given)

    monkeypatch.setattr(files, "new_trailers", swap_first)
    assert stop_abort.main("stop", ["w", "--project", str(inside)], {}) == 1
    assert f"it leads outside the project, to {outside}" in capsys.readouterr().err
    assert list(outside.iterdir()) == []
