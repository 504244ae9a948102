"""The board with a real watcher: what is written to the files arrives, and what is overdue escalates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from sidecar.model import ulid
from sidecar.signals import files
from sidecar.signals.board import Board, SignalScope
from sidecar.signals.watch import Watcher, source_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    """A board that is kept true; its run's own directory does not exist yet."""
    run_id = ulid.new()
    directories = (str(tmp_path), str(tmp_path / "workspace"), str(tmp_path / "runs" / run_id))
    (tmp_path / "workspace").mkdir()
    board = Board(SignalScope(run_id, directories))
    watcher = Watcher(source_for("auto", print), print, tick_s=600)  # events alone have to do it
    with anyio.fail_after(120):
        async with anyio.create_task_group() as group:
            await group.start(watcher.run)
            await group.start(board.follow, watcher)
            yield board
            group.cancel_scope.cancel()


async def until(board: Board, condition: Callable[[], bool]) -> None:
    while not condition():
        await board.wait_changed()


async def test_a_file_in_each_place_reaches_the_board_by_event(board: Board, tmp_path: Path) -> None:
    (tmp_path / "runs" / board.scope.run_id).mkdir(parents=True)
    for directory in board.scope.directories:
        (tmp_path / directory / ".stop").write_text("enough")
        await until(board, lambda: board.stop is not None)
        (tmp_path / directory / ".stop").unlink()
        await until(board, lambda: board.stop is None)


async def test_the_reason_of_an_abort_arrives_after_the_abort(board: Board, tmp_path: Path) -> None:
    with (tmp_path / ".abort").open("w") as file:
        await until(board, lambda: board.abort is not None)
        assert board.abort
        assert board.abort.reason == "Unknown abort reason"
        file.write("out of money")
    await until(board, lambda: board.abort is not None and board.abort.reason == "out of money")


async def test_a_stop_that_is_overdue_becomes_an_abort_without_any_event(board: Board, tmp_path: Path) -> None:
    files.write(str(tmp_path / "workspace"), "stop", "please", files.new_trailers(timeout_s=0.2))
    await until(board, lambda: board.stop is not None)
    await until(board, lambda: board.abort is not None)


async def test_a_timeout_counts_although_another_stop_is_the_one_that_is_shown(board: Board, tmp_path: Path) -> None:
    (tmp_path / ".stop").write_text("shown")
    await until(board, lambda: board.stop is not None)
    files.write(str(tmp_path / "workspace"), "stop", "please", files.new_trailers(timeout_s=0.2))
    await until(board, lambda: board.abort is not None)
    assert board.abort
    assert board.abort.reason == "please (not stopped within 0.2 s)"


async def test_a_followed_board_lets_its_directories_go(tmp_path: Path) -> None:
    watcher = Watcher(source_for("auto", print), print)
    board = Board(SignalScope(ulid.new(), (str(tmp_path),)))
    async with anyio.create_task_group() as group:
        await group.start(board.follow, watcher)
        group.cancel_scope.cancel()
    (tmp_path / ".stop").touch()
    heard: list[str] = []
    watcher.add(str(tmp_path), heard.append)
    assert heard == [str(tmp_path)]
    assert board.stop is None
