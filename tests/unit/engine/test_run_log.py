"""`run.log`: a line an event."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sidecar import layout
from sidecar.agents.output import Secrets
from sidecar.engine.run_log import NAME, RunLog, keep_traceback, line
from sidecar.model import events as kinds
from sidecar.model import ulid
from sidecar.model.events import RunEvent

RUN = ulid.new()


def event(kind: str, **data: Any) -> RunEvent:
    return RunEvent(RUN, kind, 1_800_000_000.5, data)


def log_of(root: Path) -> tuple[RunLog, Path]:
    directory = layout.run_directory(str(root), RUN)
    os.makedirs(directory, exist_ok=True)
    return RunLog(str(root), RUN), root / ".swissarmyhammer" / "runs" / RUN / NAME


@pytest.mark.parametrize(
    "kind", sorted(value for name, value in vars(kinds).items() if name.isupper() and isinstance(value, str))
)
def test_every_kind_of_event_has_a_line_whatever_it_holds_but_for_what_agents_print(kind: str) -> None:
    if kind in (kinds.AGENT_OUTPUT, kinds.ACTIVITY, kinds.EVALUATED, kinds.ERROR_HANDLED, kinds.TURN_ENDED):
        assert line(event(kind)) is None
    else:
        told = line(event(kind))
        assert told is not None
        assert told.startswith("2027-01-15T08:00:00.500Z ")


def test_an_event_is_one_line_without_anything_that_a_terminal_would_obey(tmp_path: Path) -> None:
    log, path = log_of(tmp_path)
    log.add([event(kinds.MESSAGE, text="two\nlines \033[31mred\a")])
    log.close()
    assert path.read_text() == "2027-01-15T08:00:00.500Z two lines [31mred\n"


def test_a_traceback_is_kept_without_secrets(tmp_path: Path) -> None:
    _, path = log_of(tmp_path)
    keep_traceback(str(tmp_path), RUN, ValueError("401 for hunter2hunter2"), Secrets(["hunter2hunter2"]))
    assert path.read_text().endswith("ValueError: 401 for ********\n")


def test_a_log_that_cannot_be_written_fails_nobody_and_says_why(tmp_path: Path) -> None:
    _, path = log_of(tmp_path)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    log, _ = log_of(tmp_path)
    log.add([event(kinds.MESSAGE, text="hi")])
    log.close()
    assert log.problem is not None
    assert not (tmp_path / "elsewhere").exists()
