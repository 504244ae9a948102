from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from sidecar.mcp_server.catalog_watch import watch
from sidecar.mcp_server.connections import Lists

DEADLINE_S = 20


@pytest.mark.anyio
async def test_each_kind_of_file_changes_the_lists_that_it_is_in(tmp_path: Path) -> None:
    heard: list[set[Lists]] = []
    own = tmp_path / ".swissarmyhammer"

    async def until(count: int) -> None:
        while len(heard) < count:  # noqa: ASYNC110 - the files are what is waited for
            await anyio.sleep(0.005)

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, str(tmp_path), heard.append, 0.01)
            await anyio.wait_all_tasks_blocked()
            (own / "prompts").mkdir(parents=True)
            (own / "prompts" / "a.md").touch()
            await until(1)
            (tmp_path / ".aromcp" / "workflows").mkdir(parents=True)
            (tmp_path / ".aromcp" / "workflows" / "a.yml").touch()
            await until(2)
            os.utime(tmp_path / ".aromcp" / "workflows" / "a.yml", (1, 1))
            await until(3)
            (own / "prompts" / "a.md.swp").touch()
            (own / "prompts" / "dangling.md").symlink_to("nowhere")
            (tmp_path / ".aromcp" / "workflows" / "a.yml").unlink()
            await until(4)
            tasks.cancel_scope.cancel()
    assert heard == [{"tools", "prompts"}, {"tools"}, {"tools"}, {"tools"}]
