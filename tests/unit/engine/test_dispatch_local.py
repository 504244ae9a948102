"""What holds for tasks done by this process, besides the contract of everyone who does tasks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from sidecar.engine.dispatch import Task
from sidecar.engine.dispatch_local import LocalDispatch
from sidecar.errors import NotFound, StoreError
from sidecar.store.db import Database
from sidecar.store.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    Tell = Callable[[str, dict[str, Any]], None]

pytestmark = pytest.mark.anyio
DEADLINE_S = 60


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(str(tmp_path / "sidecar.db")) as database:
        yield database


class Doer:
    """Notes what it was given, and holds the tasks whose content says so until they are cancelled."""

    def __init__(self) -> None:
        self.given: list[Task] = []
        self.holds = anyio.Event()

    async def __call__(self, task: Task, tell: Tell) -> Any:
        self.given.append(task)
        if task.content.get("hold"):
            self.holds.set()
            await anyio.sleep_forever()
        return task.content


async def left_unfinished(database: Database, *tasks: Task) -> None:
    """As a process leaves them that ends while it does the first of them."""
    doer = Doer()
    async with LocalDispatch(database, {task.kind: doer for task in tasks}, limit=1) as dispatch:
        await dispatch.submit(Task("blocks", tasks[0].kind, {"hold": True}))
        for task in tasks:
            await dispatch.submit(task)
        await doer.holds.wait()
    Tasks(database).end("blocks", "cancelled")
    assert [task.id for task in doer.given] == ["blocks"]


async def test_a_task_left_unfinished_is_done_when_it_is_submitted_again_with_what_was_kept(database: Database) -> None:
    doer = Doer()
    with anyio.fail_after(DEADLINE_S):
        await left_unfinished(database, Task("T", "do", {"path": ("a", "b")}), Task("U", "do"))
        async with LocalDispatch(database, {"do": doer}) as dispatch:
            assert await dispatch.submit(Task("T", "do", {"other": 1})) == "queued"
            assert (await dispatch.result("T")).value == {"path": ["a", "b"]}
    assert doer.given == [Task("T", "do", {"path": ["a", "b"]})]
    assert [task.task_id for task in Tasks(database).not_ended(["do"])] == ["U"]


async def test_recover_takes_up_the_kinds_that_it_is_given_and_each_task_once(database: Database) -> None:
    doer = Doer()
    kept = [Task("T", "a", {"n": 1}), Task("other", "b"), Task("strange", "c"), Task("S", "a", {"n": 2})]
    with anyio.fail_after(DEADLINE_S):
        await left_unfinished(database, *kept)
        async with LocalDispatch(database, {"a": doer, "b": doer}, limit=1) as dispatch:
            assert dispatch.recover(["a", "c"]) == ["T", "S"]
            assert dispatch.recover(["a"]) == []
            assert await dispatch.submit(kept[0]) in ("queued", "running")
            assert (await dispatch.result("S")).value == {"n": 2}
            assert dispatch.recover(["a"]) == []
    assert doer.given == [kept[0], kept[3]]


async def test_whoever_waits_for_a_task_of_before_hears_when_it_was_done_after_all(database: Database) -> None:
    heard: list[Any] = []
    with anyio.fail_after(DEADLINE_S):
        await left_unfinished(database, Task("T", "do", {"n": 1}))
        async with LocalDispatch(database, {"do": Doer()}) as dispatch, anyio.create_task_group() as group:

            async def ask() -> None:
                heard.append((await dispatch.result("T")).value)

            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            assert heard == []
            dispatch.recover(["do"])
    assert heard == [{"n": 1}]


async def test_a_task_of_before_that_is_cancelled_is_never_taken_up(database: Database) -> None:
    doer = Doer()
    with anyio.fail_after(DEADLINE_S):
        await left_unfinished(database, Task("T", "do"))
        async with LocalDispatch(database, {"do": doer}) as dispatch:
            assert await dispatch.cancel("T")
            assert dispatch.recover(["do"]) == []
            assert (await dispatch.result("T")).state == "cancelled"
    assert doer.given == []


async def test_a_queued_task_that_another_process_has_cancelled_does_not_run_and_harms_nobody(
    database: Database,
) -> None:
    doer = Doer()
    with anyio.fail_after(DEADLINE_S):
        async with LocalDispatch(database, {"do": doer}, limit=1) as dispatch:
            await dispatch.submit(Task("first", "do", {"hold": True}))
            await dispatch.submit(Task("second", "do"))
            await doer.holds.wait()
            with Database(database.path) as other:
                Tasks(other).end("second", "cancelled")
            await dispatch.submit(Task("third", "do", {"n": 3}))
            await dispatch.cancel("first")
            assert (await dispatch.result("third")).value == {"n": 3}
            assert (await dispatch.result("second")).state == "cancelled"
    assert [task.id for task in doer.given] == ["first", "third"]


async def test_a_sender_that_is_cancelled_leaves_its_task_alone(database: Database) -> None:
    doer = Doer()
    with anyio.fail_after(DEADLINE_S):
        async with LocalDispatch(database, {"do": doer}) as dispatch:

            async def send() -> None:
                await dispatch.submit(Task("T", "do", {"hold": True}))
                await dispatch.result("T")

            async with anyio.create_task_group() as group:
                group.start_soon(send)
                await doer.holds.wait()
                group.cancel_scope.cancel()
            await anyio.wait_all_tasks_blocked()
            assert await dispatch.submit(Task("T", "do")) == "running"


async def test_a_kind_that_nobody_does_is_refused_and_not_kept(database: Database) -> None:
    async with LocalDispatch(database, {"do": Doer()}) as dispatch:
        with pytest.raises(NotFound, match=r"'dance'; known kinds: do"):
            await dispatch.submit(Task("T", "dance"))
    assert Tasks(database).find("T") is None


def test_room_for_none_is_refused(database: Database) -> None:
    with pytest.raises(ValueError, match="room for 0"):
        LocalDispatch(database, {}, limit=0)


async def test_content_that_is_not_json_is_refused_and_not_kept(database: Database) -> None:
    async with LocalDispatch(database, {"do": Doer()}) as dispatch:
        with pytest.raises(StoreError, match="JSON only"):
            await dispatch.submit(Task("T", "do", {"handle": object()}))
    assert Tasks(database).find("T") is None


async def test_a_doer_that_was_cancelled_by_nobody_here_has_failed_and_the_others_go_on(database: Database) -> None:
    async def stray(task: Task, tell: Tell) -> Any:
        raise anyio.get_cancelled_exc_class()()

    with anyio.fail_after(DEADLINE_S):
        async with LocalDispatch(database, {"stray": stray, "do": Doer()}) as dispatch:
            await dispatch.submit(Task("T", "stray"))
            result = await dispatch.result("T")
            assert (result.state, result.error) == ("failed", {"message": "it was cancelled from outside"})
            await dispatch.submit(Task("U", "do", {"n": 1}))
            assert (await dispatch.result("U")).value == {"n": 1}


async def test_an_error_of_whoever_uses_it_comes_out_as_it_is(database: Database) -> None:
    doer = Doer()

    async def use() -> None:
        async with LocalDispatch(database, {"do": doer}) as dispatch:
            await dispatch.submit(Task("T", "do", {"hold": True}))
            await doer.holds.wait()
            raise ZeroDivisionError

    with anyio.fail_after(DEADLINE_S), pytest.raises(ZeroDivisionError):
        await use()
    assert [task.task_id for task in Tasks(database).not_ended(["do"])] == ["T"]


async def test_it_can_be_cancelled_from_outside_and_its_tasks_are_left_unfinished(database: Database) -> None:
    doer = Doer()
    with anyio.fail_after(DEADLINE_S):
        with anyio.CancelScope() as scope:
            async with LocalDispatch(database, {"do": doer}, limit=1) as dispatch:
                for name in ("T", "U"):
                    await dispatch.submit(Task(name, "do", {"hold": True}))
                await doer.holds.wait()
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
    assert [task.id for task in doer.given] == ["T"]
    assert [task.task_id for task in Tasks(database).not_ended(["do"])] == ["T", "U"]


async def listen(events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass


async def test_those_who_wait_from_outside_hear_that_it_is_closed(database: Database) -> None:
    doer = Doer()
    heard: list[str] = []
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as group, LocalDispatch(database, {"do": doer}) as dispatch:
            await dispatch.submit(Task("T", "do", {"hold": True}))

            async def ask(wait: Callable[[], Any]) -> None:
                with pytest.raises(StoreError) as closed:
                    await wait()
                heard.append(closed.value.kind)

            group.start_soon(ask, lambda: dispatch.result("T"))
            group.start_soon(ask, lambda: listen(dispatch.events("T")))
            await doer.holds.wait()
            await anyio.wait_all_tasks_blocked()
        for wait in (lambda: dispatch.submit(Task("U", "do")), lambda: dispatch.result("T")):
            await ask(wait)
        with pytest.raises(StoreError):
            dispatch.recover(["do"])
    assert heard == ["closed"] * 4


@pytest.mark.parametrize("moment", ["begin", "end"])
async def test_a_journal_that_is_lost_ends_everything_with_its_own_error(database: Database, moment: str) -> None:
    opened = anyio.Event()
    cleaned: list[str] = []

    async def wait(task: Task, tell: Tell) -> Any:
        await opened.wait()

    async def forever(task: Task, tell: Tell) -> Any:
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append(task.id)

    async def use() -> None:
        async with LocalDispatch(database, {"wait": wait, "forever": forever}) as dispatch:
            await dispatch.submit(Task("U", "forever"))
            await anyio.wait_all_tasks_blocked()
            await dispatch.submit(Task("T", "wait"))
            if moment == "end":
                await anyio.wait_all_tasks_blocked()
            os.rename(database.path, database.path + ".away")
            opened.set()
            await anyio.sleep_forever()

    with anyio.fail_after(DEADLINE_S), pytest.raises(StoreError) as lost:
        await use()
    assert lost.value.kind == "removed"
    assert cleaned == ["U"]
