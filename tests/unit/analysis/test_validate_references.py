"""What a workflow relies on: other workflows, and what of them does not hold where they are included."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.analysis import validate
from sidecar.catalog import workflows
from sidecar.state.script import Script


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("error_handling: {on_error: retry_workflow}", "`on_error: retry`"),
        (
            "limits: {max_duration: 5m, max_iterations: 3}",
            "`max_duration`, `max_iterations` of 'part' hold for a run of its own only",
        ),
    ],
)
def test_what_does_not_hold_for_an_included_workflow_is_warned_of(tmp_path: Path, part: str, told: str) -> None:
    directory = tmp_path / ".swissarmyhammer" / "workflows"
    directory.mkdir(parents=True)
    (directory / "part.yaml").write_text(f"{part}\nsteps: [{{id: a, type: user_message, message: a}}]\n")
    (directory / "whole.yaml").write_text("steps:\n  - {id: in, type: include_workflow, workflow: part}\n")
    with Script(worker=False) as script:
        found = validate.check(str(tmp_path), workflows.find(str(tmp_path), "whole"), script)
        alone = validate.check(str(tmp_path), workflows.find(str(tmp_path), "part"), script)
    assert [(one.severity, one.line) for one in found] == [("warning", 2)]
    assert told in found[0].message
    assert alone == []
