"""What a workflow relies on: other workflows, and what of them does not hold where they are included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.catalog import workflows
from sidecar.engine import validate
from sidecar.state.script import Script

if TYPE_CHECKING:
    from pathlib import Path


def test_another_round_of_an_included_workflow_is_warned_of(tmp_path: Path) -> None:
    directory = tmp_path / ".swissarmyhammer" / "workflows"
    directory.mkdir(parents=True)
    (directory / "part.yaml").write_text(
        "error_handling: {on_error: retry_workflow}\nsteps: [{id: a, type: user_message, message: a}]\n"
    )
    (directory / "whole.yaml").write_text("steps:\n  - {id: in, type: include_workflow, workflow: part}\n")
    with Script(worker=False) as script:
        found = validate.check(str(tmp_path), workflows.find(str(tmp_path), "whole"), script)
        alone = validate.check(str(tmp_path), workflows.find(str(tmp_path), "part"), script)
    assert [(one.severity, one.line) for one in found] == [("warning", 2)]
    assert "`on_error: retry`" in found[0].message
    assert alone == []


def test_limits_of_an_included_workflow_are_warned_of(tmp_path: Path) -> None:
    directory = tmp_path / ".swissarmyhammer" / "workflows"
    directory.mkdir(parents=True)
    (directory / "part.yaml").write_text(
        "limits: {max_duration: 5m, max_iterations: 3}\nsteps: [{id: a, type: user_message, message: a}]\n"
    )
    (directory / "whole.yaml").write_text("steps:\n  - {id: in, type: include_workflow, workflow: part}\n")
    with Script(worker=False) as script:
        found = validate.check(str(tmp_path), workflows.find(str(tmp_path), "whole"), script)
        alone = validate.check(str(tmp_path), workflows.find(str(tmp_path), "part"), script)
    assert [(one.severity, one.line) for one in found] == [("warning", 2)]
    assert "`max_duration`, `max_iterations` of 'part' hold for a run of its own only" in found[0].message
    assert alone == []
