"""A run of one agent, composed for real: what happens between its lock and its first process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from sidecar import config, service
from sidecar.agents.reap import reap
from sidecar.catalog.agents import BUILTIN

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_an_abort_that_comes_while_leftovers_are_reaped_prevents_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow_reap(*arguments: object) -> object:
        (tmp_path / ".swissarmyhammer" / ".abort").write_text("not after all")
        return await reap(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(service, "reap", slow_reap)
    born = tmp_path / "born"
    assignment = BUILTIN["command"].assign("command", {"prompt": "", "command": ["touch", str(born)]})
    project = service.Project(str(tmp_path), config.load(str(tmp_path), {}), {"PATH": "/usr/bin:/bin"})
    told: list[object] = []
    with anyio.fail_after(30):
        ended = await service.AgentRun(project, assignment, told.append, told.append).execute()
    assert ended.status == "aborted"
    assert "not after all" in ended.reason
    assert not born.exists()
    assert told == []
    assert not (tmp_path / ".swissarmyhammer" / ".abort").exists()
