"""`run.log` of a run that goes on for weeks: what is too much goes, the newest stays, and who follows loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar import layout
from sidecar.agents.output import FORMER
from sidecar.engine import run_log
from sidecar.engine.run_log import NAME, RunLog
from sidecar.model import events as kinds
from sidecar.model import ulid
from sidecar.model.events import RunEvent
from sidecar.service import status

RUN = ulid.new()


def test_a_long_log_is_turned_and_read_from_its_beginning_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "MOST_BYTES", 1000)
    directory = tmp_path / ".swissarmyhammer" / "runs" / RUN
    directory.mkdir(parents=True)
    assert str(directory) == layout.run_directory(str(tmp_path), RUN)
    log = RunLog(str(tmp_path), RUN)
    log.add([RunEvent(RUN, kinds.MESSAGE, 0.0, {"text": "message 0."})])
    news = status._new_text(str(directory / NAME))
    followed = "".join(news())
    for number in range(1, 200):
        log.add([RunEvent(RUN, kinds.MESSAGE, 0.0, {"text": f"message {number}."})])
        if number % 10 == 0:
            followed += "".join(news())
    log.close()
    followed += "".join(news())
    assert log.problem is None
    assert followed.count("\n") == 200
    assert all(f"message {number}.\n" in followed for number in range(200))
    assert all((directory / name).stat().st_size < 1100 for name in (NAME, NAME + FORMER))
    # Whoever comes later has both parts, without a hole between them.
    whole = "".join(status._new_text(str(directory / NAME))())
    first = int(whole.split("message ")[1].split(".")[0])
    assert [f"message {n}." in whole for n in range(first, 200)] == [True] * (200 - first)
    assert first < 190


def test_what_comes_just_before_the_turn_is_not_lost_on_who_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / ".swissarmyhammer" / "runs" / RUN
    directory.mkdir(parents=True)
    log = RunLog(str(tmp_path), RUN)
    news = status._new_text(str(directory / NAME))
    is_at = status._is_at

    def write_and_turn_first(path: str, file: int) -> bool:
        """Between the look for more and the look whether it is still the same file."""
        monkeypatch.setattr(status, "_is_at", is_at)
        monkeypatch.setattr(run_log, "MOST_BYTES", 1)
        log.add([RunEvent(RUN, kinds.MESSAGE, 0.0, {"text": "the last of the old"})])
        monkeypatch.undo()
        log.add([RunEvent(RUN, kinds.MESSAGE, 0.0, {"text": "the first of the new"})])
        return is_at(path, file)

    monkeypatch.setattr(status, "_is_at", write_and_turn_first)
    followed = "".join(news())
    log.close()
    assert followed.index("the last of the old") < followed.index("the first of the new")
