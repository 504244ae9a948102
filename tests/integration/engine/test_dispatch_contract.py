"""What everyone who does tasks promises, whoever it is: kept, done, one result, also after either side was restarted.

An implementation is put to these tests by one line in `WORLDS`. This file is also a program: a sender that is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.lowlevel
import pytest

from sidecar.engine.dispatch import Task
from sidecar.engine.dispatch_local import LocalDispatch
from sidecar.errors import NotFound, StepFailed
from sidecar.store.db import open_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from sidecar.engine.dispatch import Dispatch, Result, TaskEvent

    Tell = Callable[[str, dict[str, Any]], None]
    Doer = Callable[[Task, Tell], Awaitable[Any]]

DEADLINE_S = 60


class World(Protocol):
    """An implementation with its surroundings below one directory."""

    def __init__(self, directory: Path) -> None: ...

    def open(self, doers: Mapping[str, Doer], *, limit: int | None = None) -> AbstractAsyncContextManager[Dispatch]:
        """Start it; left, it has been shut down. Once more is a restart: it takes up what was left unfinished."""


class Local:
    """This process does them."""

    def __init__(self, directory: Path) -> None:
        self.root = str(directory)

    @asynccontextmanager
    async def open(self, doers: Mapping[str, Doer], *, limit: int | None = None) -> AsyncIterator[Dispatch]:
        with open_database(self.root) as database:
            async with LocalDispatch(database, doers, limit=limit) as dispatch:
                dispatch.recover(doers)
                yield dispatch


WORLDS: dict[str, type[World]] = {"local": Local}

pytestmark = pytest.mark.anyio


class Limited:
    """A world in which nothing waits for ever."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self._world = WORLDS[name](directory)

    @asynccontextmanager
    async def open(self, doers: Mapping[str, Doer], *, limit: int | None = None) -> AsyncIterator[Dispatch]:
        with anyio.fail_after(DEADLINE_S):
            async with self._world.open(doers, limit=limit) as dispatch:
                yield dispatch


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Limited:
    return Limited(request.param, tmp_path)


class Gate:
    """A doer that notes who came, and lets nobody through until it is opened."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.arrived = anyio.Event()
        self.opened = anyio.Event()

    async def __call__(self, task: Task, tell: Tell) -> Any:
        self.came.append(task.id)
        self.arrived.set()
        await self.opened.wait()
        return {"done": task.id}


async def echo(task: Task, tell: Tell) -> Any:
    return task.content


async def said(dispatch: Dispatch, task_id: str, after: int = 0) -> list[TaskEvent]:
    return [event async for event in dispatch.events(task_id, after)]


async def test_a_task_is_done_with_its_content_and_its_value_is_the_result(world: Limited) -> None:
    async with world.open({"echo": echo}) as dispatch:
        content = {"text": "é", "list": [1, None, {"a": 0.5}]}
        assert await dispatch.submit(Task("T", "echo", content)) in ("queued", "running", "completed")
        result = await dispatch.result("T")
    assert (result.id, result.state, result.value, result.error) == ("T", "completed", content, None)


async def test_the_same_id_again_is_not_done_again_and_says_how_far_it_is(world: Limited) -> None:
    gate = Gate()
    async with world.open({"gate": gate}, limit=1) as dispatch:
        await dispatch.submit(Task("first", "gate"))
        await gate.arrived.wait()
        await dispatch.submit(Task("second", "gate"))
        assert await dispatch.submit(Task("first", "gate", {"other": "content"})) == "running"
        assert await dispatch.submit(Task("second", "gate")) == "queued"
        gate.opened.set()
        assert (await dispatch.result("second")).value == {"done": "second"}
        assert await dispatch.submit(Task("first", "gate")) == "completed"
    assert gate.came == ["first", "second"]


async def test_many_that_submit_one_id_at_once_have_it_done_once(world: Limited) -> None:
    gate = Gate()
    values: list[Any] = []

    async def send(dispatch: Dispatch, number: int) -> None:
        await dispatch.submit(Task("T", "gate", {"from": number}))
        values.append((await dispatch.result("T")).value)

    async with world.open({"gate": gate}) as dispatch, anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(send, dispatch, number)
        await gate.arrived.wait()
        gate.opened.set()
    assert gate.came == ["T"]
    assert values == [{"done": "T"}] * 20


async def test_the_result_can_be_asked_for_before_the_end_by_several_and_again_after_it(world: Limited) -> None:
    gate = Gate()
    heard: list[Result] = []

    async def ask(dispatch: Dispatch) -> None:
        heard.append(await dispatch.result("T"))

    async with world.open({"gate": gate}) as dispatch:
        await dispatch.submit(Task("T", "gate"))
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask, dispatch)
            await gate.arrived.wait()
            assert heard == []
            gate.opened.set()
        assert [result.value for result in heard] == [{"done": "T"}] * 3
        assert await dispatch.result("T") == await dispatch.result("T") == heard[0]
    async with world.open({"gate": gate}) as dispatch:
        assert await dispatch.result("T") == heard[0]
    assert gate.came == ["T"]


async def test_what_is_running_or_queued_when_all_is_shut_down_is_done_after_the_restart(world: Limited) -> None:
    gate = Gate()
    async with world.open({"gate": gate}, limit=1) as dispatch:
        for name in ("first", "second", "third"):
            await dispatch.submit(Task(name, "gate"))
        await gate.arrived.wait()
    assert gate.came == ["first"]
    gate.opened.set()
    async with world.open({"gate": gate}, limit=1) as dispatch:
        for name in ("third", "second", "first"):
            assert (await dispatch.result(name)).value == {"done": name}
    assert gate.came == ["first", "first", "second", "third"]


async def test_a_task_that_fails_because_all_is_shut_down_has_not_failed(world: Limited) -> None:
    arrived = anyio.Event()

    async def breaks(task: Task, tell: Tell) -> Any:
        try:
            arrived.set()
            await anyio.sleep_forever()
        finally:
            raise StepFailed("the agent was ended")

    async with world.open({"echo": breaks}) as dispatch:
        await dispatch.submit(Task("T", "echo", {"n": 1}))
        await arrived.wait()
    async with world.open({"echo": echo}) as dispatch:
        assert (await dispatch.result("T")).value == {"n": 1}


async def test_a_task_that_comes_to_its_end_while_all_is_shut_down_is_not_done_again(world: Limited) -> None:
    came = []
    arrived = anyio.Event()

    async def finishes(task: Task, tell: Tell) -> Any:
        came.append(task.id)
        with anyio.CancelScope(shield=True):
            arrived.set()
            for _ in range(50):
                await anyio.lowlevel.checkpoint()
            return "done after all"

    async with world.open({"slow": finishes}) as dispatch:
        await dispatch.submit(Task("T", "slow"))
        await arrived.wait()
    async with world.open({"slow": finishes}) as dispatch:
        assert (await dispatch.result("T")).value == "done after all"
    assert came == ["T"]


async def test_a_task_is_kept_when_submit_returns_even_if_the_sender_is_killed_then(
    world: Limited, tmp_path: Path
) -> None:
    sender = subprocess.Popen([sys.executable, __file__, world.name, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert sender.stdout is not None
        told = [await anyio.to_thread.run_sync(sender.stdout.readline) for _ in range(2)]
        assert told == ["kept\n", "kept\n"]
    finally:
        sender.send_signal(signal.SIGKILL)
        sender.communicate()
    assert sender.returncode == -signal.SIGKILL
    async with world.open({"wait": echo}) as dispatch:
        for number in (1, 2):
            assert (await dispatch.result(f"T{number}")).value == {"number": number}


async def test_a_queued_task_that_is_cancelled_never_runs(world: Limited) -> None:
    gate = Gate()
    async with world.open({"gate": gate}, limit=1) as dispatch:
        for name in ("first", "second", "third"):
            await dispatch.submit(Task(name, "gate"))
        await gate.arrived.wait()
        assert await dispatch.cancel("second")
        assert (await dispatch.result("second")).state == "cancelled"
        assert not await dispatch.cancel("second")
        gate.opened.set()
        assert (await dispatch.result("third")).state == "completed"
        assert await dispatch.submit(Task("second", "gate")) == "cancelled"
    async with world.open({"gate": gate}) as dispatch:
        assert (await dispatch.result("second")).state == "cancelled"
        assert (await dispatch.result("first")).state == "completed"
    assert gate.came == ["first", "third"]


async def test_a_task_that_is_cancelled_at_once_runs_not_at_all_or_is_over(world: Limited) -> None:
    running: set[str] = set()

    async def noted(task: Task, tell: Tell) -> Any:
        running.add(task.id)
        try:
            await anyio.sleep_forever()
        finally:
            running.discard(task.id)

    async with world.open({"noted": noted}) as dispatch:
        await dispatch.submit(Task("T", "noted"))
        assert await dispatch.cancel("T")
        assert not running
        assert (await dispatch.result("T")).state == "cancelled"


async def test_a_running_task_that_is_cancelled_has_cleaned_up_when_cancel_returns(world: Limited) -> None:
    arrived, told = anyio.Event(), []

    async def tidy(task: Task, tell: Tell) -> Any:
        try:
            arrived.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(50):
                    await anyio.lowlevel.checkpoint()
                told.append("clean")

    async with world.open({"tidy": tidy, "echo": echo}, limit=1) as dispatch:
        await dispatch.submit(Task("T", "tidy"))
        await arrived.wait()
        assert await dispatch.cancel("T")
        assert told == ["clean"]
        result = await dispatch.result("T")
        assert (result.state, result.value, result.error) == ("cancelled", None, None)
        assert not await dispatch.cancel("T")
        await dispatch.submit(Task("next", "echo", {"n": 1}))  # its room is free again
        assert (await dispatch.result("next")).state == "completed"


@pytest.mark.parametrize("manner", ["fails", "completes"])
async def test_cancelled_is_cancelled_however_the_doer_takes_it(world: Limited, manner: str) -> None:
    arrived = anyio.Event()

    async def deaf(task: Task, tell: Tell) -> Any:
        try:
            arrived.set()
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            if manner == "fails":
                raise StepFailed("ended") from None
            return "too late"

    async with world.open({"deaf": deaf}) as dispatch:
        await dispatch.submit(Task("T", "deaf"))
        await arrived.wait()
        assert await dispatch.cancel("T")
        assert (await dispatch.result("T")).state == "cancelled"


async def test_a_completed_task_cannot_be_cancelled(world: Limited) -> None:
    async with world.open({"echo": echo}) as dispatch:
        await dispatch.submit(Task("T", "echo", {"n": 1}))
        await dispatch.result("T")
        assert not await dispatch.cancel("T")
        assert (await dispatch.result("T")).value == {"n": 1}


async def test_events_come_while_the_task_runs_in_order_without_a_gap_and_end_with_it(world: Limited) -> None:
    turn = [anyio.Event() for _ in range(5)]

    async def talks(task: Task, tell: Tell) -> Any:
        for number, event in enumerate(turn):
            await event.wait()
            if number == 2:
                await anyio.wait_all_tasks_blocked()  # the listener has heard everything and waits for more
            tell("said", {"number": number})
            tell("said", {"number": number, "again": True})

    heard: list[TaskEvent] = []
    async with world.open({"talks": talks}) as dispatch:
        await dispatch.submit(Task("T", "talks"))
        turn[0].set()
        async for event in dispatch.events("T"):
            heard.append(event)
            if event.kind == "said" and "again" in event.data and event.data["number"] < 4:
                turn[event.data["number"] + 1].set()  # nothing is told until the one before was heard
        assert [event.seq for event in heard] == list(range(1, len(heard) + 1))
        assert {event.id for event in heard} == {"T"}
        assert [event.data["number"] for event in heard if event.kind == "said"] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
        assert (await dispatch.result("T")).state == "completed"
        assert await said(dispatch, "T") == heard
        for after in range(len(heard) + 1):
            assert await said(dispatch, "T", after) == heard[after:]
    async with world.open({"talks": talks}) as dispatch:
        assert await said(dispatch, "T", 4) == heard[4:]


async def test_events_go_on_after_a_restart_where_they_were_left(world: Limited) -> None:
    told = anyio.Event()

    async def talks(task: Task, tell: Tell) -> Any:
        tell("said", {"word": "one"})
        tell("said", {"word": "two"})
        told.set()
        await anyio.sleep_forever()

    async def ends(task: Task, tell: Tell) -> Any:
        tell("said", {"word": "three"})

    heard: list[TaskEvent] = []
    async with world.open({"talks": talks}) as dispatch:
        await dispatch.submit(Task("T", "talks"))
        await told.wait()
        async for event in dispatch.events("T"):
            heard.append(event)
            if event.data == {"word": "one"}:
                break
    async with world.open({"talks": ends}) as dispatch:
        heard += await said(dispatch, "T", heard[-1].seq)
    assert [event.data["word"] for event in heard if event.kind == "said"] == ["one", "two", "three"]
    assert [event.seq for event in heard] == list(range(1, len(heard) + 1))


async def test_the_events_of_a_cancelled_task_come_to_an_end(world: Limited) -> None:
    gate = Gate()
    async with world.open({"gate": gate}, limit=1) as dispatch:
        await dispatch.submit(Task("running", "gate"))
        await dispatch.submit(Task("queued", "gate"))
        await gate.arrived.wait()
        ended: list[str] = []

        async def listen(task_id: str) -> None:
            await said(dispatch, task_id)
            ended.append(task_id)

        async with anyio.create_task_group() as group:
            for name in ("running", "queued"):
                group.start_soon(listen, name)
            await anyio.wait_all_tasks_blocked()
            assert ended == []
            await dispatch.cancel("queued")
            await dispatch.cancel("running")
    assert sorted(ended) == ["queued", "running"]


async def test_a_failure_is_a_result_with_everything_that_is_known_of_it(world: Limited) -> None:
    async def fails(task: Task, tell: Tell) -> Any:
        if task.content["how"] == "known":
            raise StepFailed("exit code 3", exit_code=3, output=["a", "b"], handle=object())
        if task.content["how"] == "grouped":
            async with anyio.create_task_group():
                raise StepFailed("from a group", exit_code=4)
        raise ZeroDivisionError("one by none")

    async with world.open({"fails": fails}) as dispatch:
        for how in ("known", "grouped", "unknown"):
            await dispatch.submit(Task(how, "fails", {"how": how}))
        results = {how: await dispatch.result(how) for how in ("known", "grouped", "unknown")}
        assert await dispatch.submit(Task("known", "fails")) == "failed"
    assert {result.state for result in results.values()} == {"failed"}
    assert {str(result.value) for result in results.values()} == {"None"}
    assert results["known"].error == {"message": "exit code 3", "exit_code": 3, "output": ["a", "b"]}
    assert results["grouped"].error == {"message": "from a group", "exit_code": 4}
    assert results["unknown"].error is not None
    assert results["unknown"].error["message"] == "one by none"
    async with world.open({"fails": fails}) as dispatch:
        assert await dispatch.result("known") == results["known"]


async def test_a_failure_leaves_the_other_tasks_alone(world: Limited) -> None:
    gate = Gate()

    async def fails(task: Task, tell: Tell) -> Any:
        raise StepFailed("no")

    async with world.open({"gate": gate, "fails": fails}) as dispatch:
        await dispatch.submit(Task("good", "gate"))
        await dispatch.submit(Task("bad", "fails"))
        assert (await dispatch.result("bad")).state == "failed"
        gate.opened.set()
        assert (await dispatch.result("good")).state == "completed"


async def test_a_value_that_is_not_json_is_a_failure_that_says_so(world: Limited) -> None:
    async def odd(task: Task, tell: Tell) -> Any:
        return {"handle": object()}

    async with world.open({"odd": odd}) as dispatch:
        await dispatch.submit(Task("T", "odd"))
        result = await dispatch.result("T")
    assert (result.state, result.value) == ("failed", None)
    assert result.error is not None
    assert "JSON" in result.error["message"]


async def test_what_nobody_submitted_is_not_found(world: Limited) -> None:
    async with world.open({"echo": echo}) as dispatch:
        with pytest.raises(NotFound, match="'nobody'"):
            await dispatch.result("nobody")
        with pytest.raises(NotFound, match="'nobody'"):
            await dispatch.cancel("nobody")
        with pytest.raises(NotFound, match="'nobody'"):
            await said(dispatch, "nobody")


async def test_two_hundred_tasks_with_room_for_three_are_each_done_once_and_three_at_a_time(world: Limited) -> None:
    done: list[str] = []
    now: set[str] = set()
    most = 0

    async def counted(task: Task, tell: Tell) -> Any:
        nonlocal most
        now.add(task.id)
        most = max(most, len(now))
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        now.discard(task.id)
        done.append(task.id)
        return task.id

    names = [f"T.{number}" for number in range(200)]
    async with world.open({"even": counted, "odd": counted}, limit=3) as dispatch:
        for number, name in enumerate(names):
            await dispatch.submit(Task(name, "odd" if number % 2 else "even"))
        assert [(await dispatch.result(name)).value for name in names] == names
    assert sorted(done) == sorted(names)
    assert most == 3


async def submit_and_wait(name: str, directory: str) -> None:
    """A sender that says so when its tasks are kept, and then waits to be killed."""

    async def wait(task: Task, tell: Tell) -> Any:
        await anyio.sleep_forever()

    async with WORLDS[name](Path(directory)).open({"wait": wait}, limit=1) as dispatch:
        for number in (1, 2):
            await dispatch.submit(Task(f"T{number}", "wait", {"number": number}))
            os.write(1, b"kept\n")
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(submit_and_wait, sys.argv[1], sys.argv[2])
