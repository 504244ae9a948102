"""Clients that stop reading, die, talk nonsense, come in hundreds or come back: the run goes on, and nothing leaks."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from tests.kit.mcp_client import HELLO, SocketClient

if TYPE_CHECKING:
    from tests.acceptance.mcp.conftest import House

MB = 1024 * 1024
MOST_THREADS = 8  # a few that files are read in stay for a while


class Work:
    """A run of many steps that works until it is let go, and is then to complete."""

    def __init__(self, house: House, name: str) -> None:
        self.house = house
        self.name = name
        wait = f"echo $$ > {name}.begun; until test -e {name}.go; do sleep 0.05; done"
        house.project.workflow(
            name,
            {"id": "wait", "type": "shell_command", "command": wait},
            {
                "id": "many",
                "type": "foreach",
                "items": "{{ [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] }}",
                "body": [{"id": "one", "type": "shell_command", "command": f"echo {{{{ item }}}} >> {name}.done"}],
            },
        )

    def run_id(self) -> str:
        self.house.project.until((self.house.root / f"{self.name}.begun").exists)
        (run,) = [run for run in self.house.project.runs() if run["workflow"] == self.name]
        assert run["status"] == "running"
        return str(run["run_id"])

    def goes_on(self) -> None:
        """It gets to its end, whatever became of whoever started it, and somebody new finds it."""
        run_id = self.run_id()
        (self.house.root / f"{self.name}.go").touch()
        self.house.project.until_status(run_id, "completed")
        assert (self.house.root / f"{self.name}.done").read_text().split() == [str(n) for n in range(1, 11)]
        with self.house.connected() as other:
            other.hello().call(1, "workflow_status", {"workflow_id": run_id})
            (run,) = other.answer(1)["result"]["structuredContent"]["runs"]
        assert run["status"] == "completed"
        assert len(self.house.project.data(run_id, "run_ended")) == 1


@pytest.fixture
def work(house: House, unique: str) -> Work:
    return Work(house, unique)


@pytest.fixture
def nothing_leaks(house: House) -> Iterator[None]:
    """Descriptors, threads and children of the daemon are no more than they were."""

    def held() -> tuple[int, int, int]:
        threads = max(house.process.num_threads(), MOST_THREADS)
        return house.process.num_fds(), threads, len(house.process.children(recursive=True))

    house.project.workflow("warm", {"id": "a", "type": "shell_command", "command": "echo {{ 1 + 1 }}"})
    with house.connected() as first:  # whatever is made for the first run is made now
        first.hello().call(1, "flow", {"flow_name": "warm"})
        first.answer(1)
        first.call(2, "workflow_test_transformation", {"transform": "input", "input": 1})
        first.answer(2)
    before: list[tuple[int, int, int]] = []

    def is_quiet() -> bool:
        before.append(held())
        return len(before) > 1 and before[-1] == before[-2]

    house.project.until(is_quiet)
    yield

    def is_given_back() -> bool:
        return all(now <= then for now, then in zip(held(), before[-1], strict=True))

    house.project.until(is_given_back)


@pytest.mark.usefixtures("nothing_leaks")
def test_a_client_that_stops_reading(house: House, work: Work) -> None:
    with house.connected() as deaf:
        deaf.hello()
        deaf.call(1, "flow", {"flow_name": work.name}, progressToken="p")
        work.run_id()
        # It asks and asks, until nobody takes what it sends, and never reads an answer.
        deaf.connection.settimeout(0.5)
        sent = 0
        try:
            while sent < 1_000_000:
                deaf.request(sent + 2, "tools/list", {})
                sent += 1
        except TimeoutError:
            pass
        assert 10 < sent < 1_000_000
        rss = house.process.memory_info().rss
        work.goes_on()  # while the deaf one is still connected
        assert house.process.memory_info().rss < rss + 50 * MB


@pytest.mark.usefixtures("nothing_leaks")
@pytest.mark.parametrize("way", ["the client at the socket", "`sidecar serve`"])
def test_a_client_that_dies_in_the_middle_of_its_call(house: House, work: Work, way: str) -> None:
    call = {"name": "flow", "arguments": {"flow_name": work.name}, "_meta": {"progressToken": 1}}
    if way == "`sidecar serve`":
        process = house.project.start("serve", stdin=subprocess.PIPE)
        assert process.stdin is not None
        for number, (method, params) in enumerate((("initialize", HELLO), ("tools/call", call))):
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
        work.run_id()
        process.send_signal(signal.SIGKILL)
        process.wait(120)
    else:
        with house.connected() as dying:
            dying.hello().request(1, "tools/call", call)
            work.run_id()
            reset = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
            dying.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    work.goes_on()


GARBAGE = [
    bytes(range(256)) * 20,
    b"[" * 50_000,
    b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": ' + b'{"a":' * 5_000 + b"}",
    b'{"jsonrpc": "2.0", "id": {"a": 1}, "method": 5}',
    b'{"jsonrpc": "2.0", "result": {}, "id": 99}',
    b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 12345}}',
    b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]',
    b"null",
    b'"\xed\xa0\x80"',
    b"\r\n\r\n\0\0",
]


@pytest.mark.usefixtures("nothing_leaks")
def test_a_client_that_sends_garbage(house: House, work: Work) -> None:
    with house.connected() as good:
        good.hello().call(1, "flow", {"flow_name": work.name})
        work.run_id()
        for number, garbage in enumerate(GARBAGE, start=10):
            with house.connected() as bad:
                bad.connection.sendall(garbage + b"\n")
                # It is not thrown out for that: what it says next is understood.
                bad.hello().call(number, "workflow_status", {})
                assert not bad.answer(number)["result"].get("isError")
            good.connection.sendall(garbage + b"\n")  # nor does its own run suffer
        (house.root / f"{work.name}.go").touch()
        assert good.answer(1)["result"]["structuredContent"]["status"] == "completed"
    assert "Traceback" not in house.daemon.printed


@pytest.mark.usefixtures("nothing_leaks")
def test_two_hundred_connections_at_once(house: House, work: Work) -> None:
    with ExitStack() as stack:
        everybody: list[SocketClient] = [stack.enter_context(house.connected()) for _ in range(200)]
        everybody[0].hello().call(1, "flow", {"flow_name": work.name})
        work.run_id()
        for number, each in enumerate(everybody[1:], start=1000):
            each.hello().call(number, "workflow_test_transformation", {"transform": "input", "input": number})
        for number, each in enumerate(everybody[1:], start=1000):
            assert each.answer(number)["result"]["structuredContent"]["output"] == number
        work.goes_on()


@pytest.mark.usefixtures("nothing_leaks")
@pytest.mark.anyio
async def test_a_client_that_comes_back_finds_its_run_and_is_obeyed(house: House, work: Work, era: str) -> None:
    async with house.client(era) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(client.call_tool, "flow", {"flow_name": work.name, "detach": True})
        run_id = await house.until(work.run_id)
    for _ in range(5):
        async with house.client(era, "stdio") as client:
            found = (await client.call_tool("workflow_status", {"workflow_id": run_id})).structured_content or {}
            assert found["runs"][0]["status"] == "running"
    async with house.client(era) as client:
        await client.call_tool("abort", {"reason": "it came back", "run_id": run_id})
        ended = await house.until(lambda: house.project.data(run_id, "run_ended"))
    assert [(one["status"], one["reason"]) for one in ended] == [("aborted", "it came back")]


def _calls(house: House, by_hand: SocketClient, count: int, run_id: str) -> None:
    """Of several tools, a good one and a bad one among them, twenty at a time."""
    shapes: list[tuple[str, dict[str, Any]]] = [
        ("workflow_test_transformation", {"transform": "input + 1", "input": 1}),
        ("workflow_status", {"workflow_id": run_id}),
        ("workflow_state_read", {"workflow_id": run_id}),
        ("workflow_get_info", {"workflow": "no-such-workflow"}),
    ]
    for begin in range(0, count, 20):
        by_hand.received.clear()
        numbers = range(begin + 100, begin + 120)
        for number in numbers:
            by_hand.call(number, *shapes[number % len(shapes)])
        for number in numbers:
            if not any(message.get("id") == number for message in by_hand.received):
                by_hand.answer(number)
        assert len([message for message in by_hand.received if "id" in message]) == 20


@pytest.mark.usefixtures("nothing_leaks")
def test_memory_stays_flat_over_many_calls(house: House, unique: str, request: pytest.FixtureRequest) -> None:
    count = 10_000 if request.config.getoption("--long") else 600
    house.project.workflow(unique, {"id": "a", "type": "agent", "prompt": "x"})
    with house.connected() as by_hand:
        by_hand.hello().call(1, "workflow_start", {"workflow": unique})
        run_id = by_hand.answer(1)["result"]["structuredContent"]["workflow_id"]
        _calls(house, by_hand, 400, run_id)  # caches and pools have their size after these
        before = house.process.memory_info().rss
        _calls(house, by_hand, count, run_id)
        grown = house.process.memory_info().rss - before
    assert grown < 8 * MB, f"{grown / MB:.1f} MB more after {count} calls"


def test_a_run_is_forgotten_by_the_server_when_it_is_over(house: House, unique: str) -> None:
    """Tasks and descriptors of finished runs: a socket, a lock, a log and a watch each."""
    house.project.workflow(unique, {"id": "a", "type": "shell_command", "command": "true"})
    with house.connected() as by_hand:
        by_hand.hello()
        for number in range(1, 4):
            by_hand.call(number, "flow", {"flow_name": unique})
            by_hand.answer(number)
        before = house.process.num_fds()
        for number in range(10, 25):
            by_hand.call(number, "flow", {"flow_name": unique})
        for number in range(10, 25):
            if not any(message.get("id") == number for message in by_hand.received):
                by_hand.answer(number)
        house.project.until(lambda: house.process.num_fds() <= before)
    assert not list(house.state.glob("runs/*/mcp.sock"))
