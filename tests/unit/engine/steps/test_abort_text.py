"""The text `ABORT ERROR`: where the reason is, and what follows from it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from sidecar import config, layout
from sidecar.engine.steps.agent import abort_line_reason, apply_abort_line
from sidecar.engine.steps.context import Context, RunServices
from sidecar.errors import SignalError, StepFailed
from sidecar.model import ulid
from sidecar.signals import files


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("ABORT ERROR: the disk is full", "the disk is full"),
        ("I tried.\n\nABORT ERROR - no such branch.\n\n  \n", "no such branch"),
        ("I tried.\r\nABORT ERROR\r\n", "the agent answered ABORT ERROR"),
        ("ABORT ERROR one\nABORT ERROR: two", "two"),
        ("ABORT ERROR " + "x" * 1000, "x" * 500),
        ("ABORT ERROR: first\nbut then it went well", None),
        ("I tried.\nthey mention ABORT ERROR as deprecated", None),
        ("I tried.\n`ABORT ERROR` is only quoted here", None),
        ("I tried.\n    ABORT ERROR: in an example", None),
        ("one\fABORT ERROR: two", None),
        ("abort error: lower case is no mark", None),
        ("an ERROR, but no ABORT", None),
        ("", None),
    ],
)
def test_only_a_last_line_that_begins_with_the_mark_asks_for_an_abort(answer: str, reason: str | None) -> None:
    assert abort_line_reason(answer) == reason


@dataclass
class Step:
    """A step of a run in a project of its own, as far as this needs one."""

    root: str
    run_id: str = field(default_factory=ulid.new)
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def directory(self) -> str:
        return layout.run_directory(self.root, self.run_id)

    def context(self, **settings: Any) -> Context:
        nothing = cast("Any", None)
        return Context(
            services=RunServices(
                root=self.root,
                run_id=self.run_id,
                workspace=None,
                environment={},
                settings=config.load(self.root, {}, **settings),
            ),
            view=nothing,
            key="step",
            attempt=1,
            task_id=None,
            additions=(),
            cost_remaining_usd=None,
            start=nothing,
            log_path=nothing,
            emit=lambda kind, data: self.told.append((kind, data)),
            spend=nothing,
        )


@pytest.fixture
def step(tmp_path: Path) -> Step:
    step = Step(str(tmp_path))
    os.makedirs(step.directory)
    return step


@pytest.mark.anyio
async def test_an_abort_that_somebody_takes_back_leaves_a_failed_step(step: Step) -> None:
    async def take_back() -> None:
        while (found := files.read(step.directory, "abort")) is None:  # noqa: ASYNC110 - a file gives no event
            await anyio.sleep(0.005)
        files.clear(found)

    failure: StepFailed | None = None
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_back)
            try:
                await apply_abort_line(step.context(), "ABORT ERROR: no")
            except StepFailed as error:
                failure = error
    assert "cancelled: no" in str(failure)


@pytest.mark.anyio
async def test_an_abort_that_cannot_be_written_is_an_error_of_the_step(step: Step) -> None:
    os.rmdir(step.directory)
    with pytest.raises(SignalError):
        await apply_abort_line(step.context(), "ABORT ERROR: no")
