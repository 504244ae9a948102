"""No client holds up another, or an abort: what one connection may have in flight, and what its end leaves."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit import DEADLINE_S
from tests.kit.mcp_client import HELLO

if TYPE_CHECKING:
    from tests.acceptance.mcp.conftest import House

MB = 1024 * 1024


def requests(*calls: tuple[str, dict[str, Any]]) -> bytes:
    """A conversation by somebody who waits for nothing: hello, and the requests from 1 on."""
    messages = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        *(
            {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            for number, (method, params) in enumerate(calls, start=1)
        ),
    ]
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


def call(tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "tools/call", {"name": tool, "arguments": arguments}


def test_a_client_that_never_reads_costs_no_more_memory_however_much_it_asks(own_house: House) -> None:
    with own_house.connected() as first:
        first.hello().request(1, "tools/list", {})
        first.answer(1)
    before = own_house.process.memory_info().rss
    asked = requests(*[("tools/list", {"_meta": {"x": "y" * 100}})] * 8000)
    with own_house.connected() as deaf, own_house.connected() as other:
        other.hello()
        deaf.connection.setblocking(False)
        sent = calls = 0
        is_stuck = False
        while sent < len(asked) and not is_stuck:
            try:
                sent += deaf.connection.send(asked[sent : sent + 65536])
            except BlockingIOError:  # others are served meanwhile: in as many turns, the deaf one could be read from
                for _ in range(400):
                    calls += 1
                    other.call(calls, "workflow_status", {})
                    assert not other.answer(calls)["result"].get("isError")
                is_stuck = is_full(deaf.connection)
        assert sent < len(asked), "reading stops"
        assert own_house.process.memory_info().rss < before + 40 * MB


def is_full(connection: socket.socket) -> bool:
    """Whether nothing can be sent now."""
    return not select.select([], [connection], [], 0)[1]


def test_a_client_that_asks_much_and_reads_gets_every_answer(own_house: House) -> None:
    with own_house.connected() as busy:
        busy.hello()
        numbers = range(1, 1000)

        def ask() -> None:
            for number in numbers:
                busy.call(number, "workflow_get_info", {"workflow": "no-such-workflow"})

        asking = threading.Thread(target=ask)
        asking.start()
        while len([message for message in busy.received if message.get("id")]) < len(numbers):
            busy.answer_any()
        asking.join(DEADLINE_S)
        assert {message["id"] for message in busy.received if "id" in message} == {0, *numbers}


def test_requests_that_are_taken_back_leave_room_for_others(own_house: House) -> None:
    """One that was cancelled is never answered, and must not count as in flight for ever."""
    wait = "until test -e let-go; do sleep 0.05; done"
    own_house.project.workflow("wait", {"id": "a", "type": "shell_command", "command": wait})
    with own_house.connected() as fickle:
        fickle.hello()
        for number in range(1, 201):
            fickle.call(number, "flow", {"flow_name": "wait", "parameters": {}, "dry_run": number > 3})
            fickle.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
        fickle.call(1000, "workflow_status", {})
        assert "result" in fickle.answer(1000)
        (own_house.root / "let-go").touch()


@pytest.mark.parametrize("served_by", ["the daemon", "itself"])
def test_what_is_in_flight_at_the_end_of_input_is_answered(own_house: House, served_by: str) -> None:
    own_house.project.workflow("slow", {"id": "a", "type": "shell_command", "command": "sleep 2; echo done"})
    if served_by == "itself":
        own_house.daemon.end()
    process = own_house.project.start("serve", stdin=subprocess.PIPE)
    out, err = process.communicate(
        requests(
            call("workflow_get_info", workflow="slow"),
            call("flow", flow_name="slow"),
            call("workflow_test_transformation", transform="input + 1", input=1),
        ).decode(),
        timeout=DEADLINE_S,
    )
    answers = {message.get("id"): message for message in map(json.loads, out.splitlines())}
    assert answers[1]["result"]["structuredContent"]["name"] == "slow"
    assert answers[2]["result"]["structuredContent"]["status"] == "completed", err
    assert answers[3]["result"]["structuredContent"]["output"] == 2
    assert process.returncode == 0


def test_the_last_request_needs_no_line_break(own_house: House) -> None:
    process = own_house.project.start("serve", stdin=subprocess.PIPE)
    asked = requests(call("workflow_get_info", workflow="iterate")).decode().removesuffix("\n")
    out, _ = process.communicate(asked, timeout=DEADLINE_S)
    answers = {message.get("id"): message for message in map(json.loads, out.splitlines())}
    assert answers[1]["result"]["structuredContent"]["name"] == "iterate"


def test_a_server_whose_client_is_gone_waits_for_no_run(own_house: House) -> None:
    own_house.daemon.end()
    wait = "touch begun; until test -e let-go; do sleep 0.05; done"
    own_house.project.workflow("wait", {"id": "a", "type": "shell_command", "command": wait})
    process = own_house.project.start("serve", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(requests(call("flow", flow_name="wait")).decode())
    process.stdin.flush()
    own_house.project.until((own_house.root / "begun").exists)
    process.stdin.close()
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 0
    assert own_house.project.only_run()["status"] == "running"
    (own_house.root / "let-go").touch()
    own_house.project.until(lambda: own_house.project.only_run()["status"] == "completed")


BAD_IDS = ["null", "1.5", "true", "[1]", '{"a": 1}', "1e400"]


@pytest.mark.parametrize("given", BAD_IDS)
@pytest.mark.parametrize("method", ["initialize", "tools/list", "no/such"])
def test_an_id_that_is_neither_a_string_nor_an_integer_is_an_error(house: House, given: str, method: str) -> None:
    with house.connected() as client:
        client.connection.sendall(
            b'{"jsonrpc": "2.0", "id": %s, "method": "%s", "params": %s}\n'
            % (given.encode(), method.encode(), json.dumps(HELLO).encode())
        )
        error = client.answer(None)["error"]
        assert error == {"code": -32600, "message": "the id of a request is a string or an integer"}
        client.hello().call(1, "workflow_status", {})
        assert "result" in client.answer(1)


@pytest.mark.parametrize("nested", [b"[" * 50_000 + b"]" * 50_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000])
def test_deep_nesting_is_refused_with_its_reason(house: House, nested: bytes) -> None:
    with house.connected() as client:
        client.hello()
        client.connection.sendall(
            b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "workflow_test_transformation", '
            b'"arguments": {"transform": "1", "input": %s}}}\n' % nested
        )
        error = client.answer(None)["error"]
        assert error["code"] == -32600
        assert "nested more than" in error["message"]
        client.call(8, "workflow_status", {})
        assert "result" in client.answer(8)


@pytest.mark.parametrize("depth", [50, 90, 120, 190, 210, 300, 600])
def test_nesting_is_either_carried_or_refused_in_words(house: House, depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    with house.connected() as client:
        client.hello()
        client.call(1, "workflow_test_transformation", {"transform": "input", "input": value})
        first = client.answer(1)
        if "error" in first:
            assert "nested more than" in first["error"]["message"]
        else:
            assert first["result"]["structuredContent"]["output"] == value


BOMB = "let n = 0; while (true) { n++ } return n"


def test_expressions_of_one_client_delay_no_abort_and_nobody_else(own_house: House) -> None:
    own_house.project.workflow("wait", {"id": "a", "type": "shell_command", "command": "touch begun; sleep 600"})
    with own_house.connected() as bomber, own_house.connected() as other:
        other.hello().call(1, "flow", {"flow_name": "wait"})
        own_house.project.until((own_house.root / "begun").exists)
        bomber.hello()
        for number in range(1, 41):
            bomber.call(number, "workflow_test_transformation", {"transform": BOMB, "input": 1})
        bomber.answer_any()  # they are being evaluated
        own_house.abort_by_file(b"enough")
        assert other.answer(1)["result"]["structuredContent"]["reason"] == "enough"
        other.call(2, "workflow_test_transformation", {"transform": "input + 1", "input": 1})
        assert other.answer(2)["result"]["structuredContent"]["output"] == 2
        bomber.call(100, "workflow_status", {})
        bomber.answer(100)
        assert len(bomber.received) < 35, "most of them are still to be evaluated"


FIRST = "  - {id: first, type: conditional, condition: '{{ 1 == 1 }}', then: [{id: end, type: exit}]}\n"


def large_workflow(steps: int) -> str:
    """About a mebibyte for 12,000 steps, which takes seconds to read."""
    return (
        "description: large\nsteps:\n"
        + FIRST
        + "".join(
            f"  - id: s{number}\n    type: user_message\n    message: 'hello {number} {{{{ 1 + 1 }}}}'\n"
            for number in range(steps)
        )
    )


def test_plans_for_one_client_delay_no_abort_and_nobody_else(own_house: House) -> None:
    own_house.project.workflow("wait", {"id": "a", "type": "shell_command", "command": "touch begun; sleep 600"})
    (own_house.state / "workflows" / "large.yaml").write_text(large_workflow(1_000).replace(FIRST, ""))
    with own_house.connected() as planner, own_house.connected() as other:
        other.hello().call(1, "flow", {"flow_name": "wait"})
        own_house.project.until((own_house.root / "begun").exists)
        planner.hello()
        for number in range(1, 31):
            planner.call(number, "workflow_explain_plan", {"workflow": "large"})
        planner.call(50, "workflow_status", {})
        planner.answer(50)  # all of them were read
        own_house.abort_by_file(b"enough")
        assert other.answer(1)["result"]["structuredContent"]["reason"] == "enough"
        other.call(2, "workflow_test_transformation", {"transform": "input + 1", "input": 1})
        assert other.answer(2)["result"]["structuredContent"]["output"] == 2
        planner.call(100, "workflow_status", {})
        planner.answer(100)
        assert len(planner.received) < 25, "most of them are still to be made"


LARGE = large_workflow(3_000)
# Quick to read; a plan looks at each condition, which takes 250 ms.
SLOW = "description: slow\nsteps:\n" + "".join(
    FIRST.replace("1 == 1", "(() => { while (true) {} })()").replace("id: ", f"id: s{number}-") for number in range(8)
)


@pytest.mark.parametrize(
    ("content", "tool", "arguments"),
    [
        (LARGE, "workflow_list", {}),
        (LARGE, "workflow_get_info", {"workflow": "large"}),
        (LARGE, "workflow_explain_plan", {"workflow": "large"}),
        (SLOW, "workflow_explain_plan", {"workflow": "large"}),
        (LARGE, "flow", {"flow_name": "large", "dry_run": True}),
        (SLOW, "flow", {"flow_name": "large", "dry_run": True}),
        (LARGE, "flow", {"flow_name": "large"}),
    ],
    ids=["list", "info", "plan", "slow plan", "dry run", "slow dry run", "run"],
)
def test_the_first_look_at_a_large_workflow_holds_up_nobody(
    own_house: House, content: str, tool: str, arguments: dict[str, Any]
) -> None:
    with own_house.connected() as reader, own_house.connected() as other:
        reader.hello()
        other.hello().call(0, "workflow_status", {})
        other.answer(0)
        for name in ("large", *(f"large-{number}" for number in range(5) if tool == "workflow_list")):
            (own_house.state / "workflows" / f"{name}.yaml").write_text(content)
        began = time.monotonic()
        reader.call(1, tool, arguments)
        answered = threading.Event()

        def read() -> None:
            reader.answer(1)
            answered.set()

        reading = threading.Thread(target=read)
        reading.start()
        waits_s: list[float] = []
        while not answered.is_set():
            asked = time.monotonic()
            other.call(len(waits_s) + 1, "workflow_status", {})
            other.answer(len(waits_s) + 1)
            waits_s.append(time.monotonic() - asked)
        reading.join()
        assert max(waits_s) < (time.monotonic() - began) / 3, "others are answered while the file is read"
        assert not reader.received[-1]["result"].get("isError")


def test_a_file_of_too_many_values_is_refused_where_they_become_too_many(own_house: House) -> None:
    """And not after all of them were read, which takes ten seconds."""
    file = own_house.state / "workflows" / "many.yaml"
    file.write_text("steps:\n" + "- 1\n" * 260_000)
    said, _ = own_house.project.start("validate", "many").communicate(timeout=DEADLINE_S)
    assert "many.yaml:99999: more than 100000 values" in said
