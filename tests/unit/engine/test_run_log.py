"""`run.log`: a line an event."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from sidecar import layout
from sidecar.agents.mask import Secrets
from sidecar.engine.run_log import NAME, RunLog, keep_traceback, line
from sidecar.model import events as kinds
from sidecar.model import ulid
from sidecar.model.events import RunEvent

if TYPE_CHECKING:
    from pathlib import Path

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


def test_a_line_tells_what_happened() -> None:
    assert line(event(kinds.STEP_STARTED, step="loop[1]/a", type="agent", attempt=2, task="each.3")) == (
        "2027-01-15T08:00:00.500Z step loop[1]/a: agent, attempt 2 (task each.3)"
    )
    ended = line(event(kinds.RUN_ENDED, status="failed", reason="the limit is reached", limit="max_cost_usd"))
    assert str(ended).endswith(" failed: the limit is reached (limit: max_cost_usd)")


def test_an_event_is_one_line_without_anything_that_a_terminal_would_obey(tmp_path: Path) -> None:
    log, path = log_of(tmp_path)
    log.on_event(event(kinds.MESSAGE, text="two\nlines \033[31mred\a"))
    log.close()
    assert path.read_text() == "2027-01-15T08:00:00.500Z two lines [31mred\n"


def test_a_traceback_is_kept_without_secrets(tmp_path: Path) -> None:
    _, path = log_of(tmp_path)
    keep_traceback(str(tmp_path), RUN, ValueError("401 for hunter2hunter2"), Secrets(["hunter2hunter2"]))
    assert path.read_text().endswith("ValueError: 401 for ********\n")


def test_a_later_start_adds_to_the_log(tmp_path: Path) -> None:
    for _ in range(2):
        log, path = log_of(tmp_path)
        log.on_event(event(kinds.RUN_ENDED, status="stopped"))
        log.close()
        log.close()
    assert len(path.read_text().splitlines()) == 2


def test_a_log_that_cannot_be_written_fails_nobody_and_says_why(tmp_path: Path) -> None:
    _, path = log_of(tmp_path)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    log, _ = log_of(tmp_path)
    log.on_event(event(kinds.MESSAGE, text="hi"))
    log.close()
    assert log.problem is not None
    assert not (tmp_path / "elsewhere").exists()
