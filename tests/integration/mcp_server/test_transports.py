"""The same server over standard input and output, the unix socket, the byte pump, and HTTP."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from sidecar import sockets
from sidecar.errors import SidecarError
from sidecar.mcp_server import http as streamable_http
from sidecar.mcp_server import streams
from sidecar.sockets import Listener
from tests.kit import DEADLINE_S, eventually

if TYPE_CHECKING:
    from tests.integration.mcp_server.conftest import Served

PUMP = "import sys; from sidecar.cli.serve import pump, reach; sys.exit(pump(reach(sys.argv[1])))"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


def _environment() -> dict[str, str]:
    return dict(os.environ)


@pytest.mark.anyio
async def test_standard_input_and_output_serve_both_eras(stdio_command: list[str], root: Path, era: str) -> None:
    command, *arguments = stdio_command
    parameters = StdioServerParameters(command=command, args=arguments, env=_environment(), cwd=root)
    with anyio.fail_after(DEADLINE_S):
        async with Client(parameters, mode=era) as client:
            assert len((await client.list_tools()).tools) > 20
            seen: list[float] = []

            async def progress(progress: float, total: float | None, message: str | None) -> None:
                seen.append(progress)

            result = await client.call_tool("flow", {"flow_name": "build"}, progress_callback=progress)
            assert (result.structured_content or {})["status"] == "completed"
            large = await client.call_tool("workflow_test_transformation", {"transform": "x", "input": "y" * 1_000_000})
            assert len((large.structured_content or {})["output"]) == 1_000_000
    assert seen == sorted(seen)
    assert seen[-1] == 100


def test_standard_output_carries_the_protocol_only_and_the_end_of_input_ends_the_server(
    stdio_command: list[str], root: Path
) -> None:
    with subprocess.Popen(
        stdio_command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"this is no JSON\n\n" + json.dumps(INITIALIZE).encode() + b"\n")
        process.stdin.flush()
        overdue = threading.Timer(DEADLINE_S, process.kill)  # a line that never comes is an empty one then
        overdue.start()
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        refusal = {"code": -32700, "message": "not a JSON-RPC message"}
        assert lines[0] == {"jsonrpc": "2.0", "id": None, "error": refusal}
        assert lines[1]["result"]["serverInfo"]["name"] == "sidecar"
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0
        assert process.stdout.read() == b""
        assert b"this must not reach the client" in process.stderr.read()
        overdue.cancel()


def test_a_file_as_standard_input_is_read_to_its_end(stdio_command: list[str], root: Path) -> None:
    requests = root / "requests"
    requests.write_text(json.dumps(INITIALIZE) + "\n")
    with requests.open() as file:
        done = subprocess.run(stdio_command, cwd=root, stdin=file, capture_output=True, timeout=DEADLINE_S, check=True)
    assert json.loads(done.stdout)["id"] == 1


@pytest.mark.anyio
async def test_the_pump_carries_both_eras_to_the_socket(served: Served, era: str) -> None:
    parameters = StdioServerParameters(
        command=sys.executable, args=["-c", PUMP, str(served.path)], env=_environment(), cwd=os.getcwd()
    )
    with anyio.fail_after(DEADLINE_S):
        async with Client(parameters, mode=era) as client:
            for size in (1, 2_000_000):
                arguments = {"transform": "x", "input": "y" * size}
                result = await client.call_tool("workflow_test_transformation", arguments)
                assert len((result.structured_content or {})["output"]) == size


def _pumping(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PUMP, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=os.getcwd()
    )


def test_the_pump_ends_with_its_client_and_fails_without_its_server(tmp_path: Path) -> None:
    with sockets.bind(str(tmp_path / "s")) as listening:
        listening.settimeout(DEADLINE_S)
        with _pumping(tmp_path / "s") as process:
            served, _ = listening.accept()
            assert process.stdin is not None
            process.stdin.write(b"last words")
            process.stdin.close()
            with served:
                heard = b""
                while data := served.recv(100):
                    heard += data
                assert heard == b"last words"
            assert process.wait(DEADLINE_S) == 0
        with _pumping(tmp_path / "s") as process:
            listening.accept()[0].close()
            assert process.wait(DEADLINE_S) == 1


def test_the_pump_passes_a_request_on_though_its_output_is_full(tmp_path: Path) -> None:
    with sockets.bind(str(tmp_path / "s")) as listening:
        listening.settimeout(DEADLINE_S)
        with _pumping(tmp_path / "s") as process:
            served, _ = listening.accept()
            with served:
                served.settimeout(0.3)
                with pytest.raises(TimeoutError):  # nobody reads the pump's output
                    served.sendall(b"x" * 10_000_000)
                served.settimeout(DEADLINE_S)
                assert process.stdin is not None
                process.stdin.write(b"hello")
                process.stdin.flush()
                assert served.recv(5) == b"hello"
            process.kill()


def test_the_pump_imports_nothing_heavy() -> None:
    code = f"import sys; sys.argv = ['', '']; import sidecar.cli.serve; print(*sorted(sys.modules))  # {PUMP}"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"mcp", "anyio", "asyncio", "pydantic", "yaml", "json", "subprocess", "argparse"} & set(loaded)


@pytest.mark.anyio
async def test_a_path_longer_than_a_socket_address_is_bound_and_reached(served: Served, tmp_path: Path) -> None:
    directory = tmp_path.joinpath(*["a-rather-long-name-of-a-directory"] * 6)
    directory.mkdir(parents=True)
    path = directory / "mcp.sock"
    assert len(str(path)) > 107
    async with anyio.create_task_group() as tasks:
        await tasks.start(streams.listen, str(path), served.server.serve)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        parameters = StdioServerParameters(
            command=sys.executable, args=["-c", PUMP, str(path)], env=_environment(), cwd=os.getcwd()
        )
        with anyio.fail_after(DEADLINE_S):
            async with Client(parameters, mode="legacy") as client:
                assert not (await client.call_tool("workflow_list")).is_error
        tasks.cancel_scope.cancel()
    assert not path.exists()


def test_a_dead_socket_is_replaced_and_anything_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    sockets.bind(str(path)).close()
    assert path.exists()
    with pytest.raises(ConnectionRefusedError):
        sockets.connect(str(path))
    with sockets.bind(str(path)), sockets.connect(str(path)):
        pass
    path.unlink()
    path.write_text("precious")
    with pytest.raises(SidecarError, match="not a socket is in the way"), Listener(str(path)):
        pass
    assert path.read_text() == "precious"


def test_a_socket_that_somebody_else_put_there_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Listener(str(path)):
        path.unlink()
        theirs = sockets.bind(str(path))
    assert path.exists()
    theirs.close()


GARBAGE = [
    b"\x00\xff\xfe\n",
    b"{}\n[]\nnull\n1\n",
    b'{"jsonrpc":"2.0","id":1}\n',
    b'{"jsonrpc":"1.0","id":1,"method":"ping"}\n',
    b'{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}\n',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}\n',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":5}}\n',
    b'{"jsonrpc":"2.0","id":1,"method":"nobody/knows"}\n',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"x"}}\n',
    b'{"jsonrpc":"2.0","id":99,"result":{}}\n',
    b"[" * 100_000 + b"\n",
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"abort","arguments":' + b"[" * 100_000 + b"\n",
    b"x" * 100_000,
]


@pytest.mark.anyio
@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
async def test_garbage_on_one_connection_is_nobody_elses_affair(
    served: Served, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with await anyio.connect_unix(served.path) as stream:
        await stream.send(json.dumps(INITIALIZE).encode() + b"\n")
        await stream.send(garbage)
        await stream.send(b'\n{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        await stream.send(b'{"jsonrpc":"2.0","id":"last","method":"tools/list"}\n')
        heard = b""
        with anyio.fail_after(DEADLINE_S):
            while b'"last"' not in heard:
                heard += await stream.receive()
    assert b"Traceback" not in heard
    async with served.client("legacy") as client:
        assert not (await client.call_tool("workflow_list")).is_error
    assert "a connection failed" not in caplog.text


@pytest.mark.anyio
async def test_what_not_every_reader_takes_is_taken_and_given_without_harm(served: Served) -> None:
    def call(number: int, **arguments: Any) -> bytes:
        params = {"name": "workflow_test_transformation", "arguments": arguments}
        request = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        return json.dumps(request).encode() + b"\n"

    async with await anyio.connect_unix(served.path) as stream:
        await stream.send(json.dumps(INITIALIZE).encode() + b"\n")
        await stream.send(call(2, transform="x", input={"a": "\ud83d", "\udc00": ["b"]}))
        await stream.send(call(3, transform="half", input={}))
        await stream.send(call(4, transform="odd", input={}))
        heard = b""
        with anyio.fail_after(DEADLINE_S):
            while heard.count(b"\n") < 4:
                heard += await stream.receive()
    answers = {message["id"]: message["result"] for message in map(json.loads, heard.splitlines())}
    assert answers[2]["structuredContent"]["output"] == {"a": "?", "?": ["b"]}
    assert answers[3]["structuredContent"]["output"] == {"?": 1}
    assert answers[4]["structuredContent"]["output"] == [None, None]
    for number in (3, 4):
        assert json.loads(answers[number]["content"][0]["text"]) == answers[number]["structuredContent"]


@pytest.mark.anyio
async def test_a_line_without_end_is_refused_without_keeping_it(served: Served) -> None:
    async with await anyio.connect_unix(served.path) as stream:
        for _ in range(20):
            await stream.send(b"x" * 2**20)
        await stream.send(b"\n" + json.dumps(INITIALIZE).encode() + b"\n")
        heard = b""
        with anyio.fail_after(DEADLINE_S):
            while b'"serverInfo"' not in heard:
                heard += await stream.receive()
    assert b"16 MiB at most" in heard


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


@pytest.mark.anyio
async def test_two_hundred_connections_are_served_and_nothing_of_them_stays(served: Served) -> None:
    import asyncio

    await anyio.lowlevel.checkpoint()
    before, tasks_before = _descriptors(), len(asyncio.all_tasks())

    async def one(number: int) -> None:
        async with served.client("legacy" if number % 2 else "2026-07-28") as client:
            arguments = {"transform": "x", "input": number}
            result = await client.call_tool("workflow_test_transformation", arguments)
            assert (result.structured_content or {})["output"] == number, "answers are not mixed up"

    with anyio.fail_after(120):
        for begin in range(0, 200, 50):
            async with anyio.create_task_group() as tasks:
                for number in range(begin, begin + 50):
                    tasks.start_soon(one, number)
    await eventually(lambda: _descriptors() <= before and len(asyncio.all_tasks()) <= tasks_before)


@asynccontextmanager
async def over_http(served: Served, token: str | None = None, host: str = "127.0.0.1") -> AsyncIterator[str]:
    async with anyio.create_task_group() as tasks:

        async def listen(*, task_status: Any) -> None:
            await streamable_http.listen(served.server, host, 0, token, task_status=task_status)

        port = await tasks.start(listen)
        yield f"http://127.0.0.1:{port}/mcp"
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_http_serves_both_eras(served: Served, era: str) -> None:
    async with over_http(served) as url:
        seen: list[float] = []

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            seen.append(progress)

        with anyio.fail_after(DEADLINE_S):
            async with Client(url, mode=era) as client:
                result = await client.call_tool("flow", {"flow_name": "build"}, progress_callback=progress)
                assert (result.structured_content or {})["status"] == "completed"
                assert seen[-1] == 100
                refused = await client.call_tool("abort", {})
                assert refused.is_error
                assert len((await client.list_tools()).tools) > 20


@pytest.mark.anyio
async def test_http_takes_a_cancelled_request_of_the_handshake_era_for_an_abort(served: Served) -> None:
    async with over_http(served) as url, Client(url, mode="legacy") as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "flow", {"flow_name": "build", "parameters": {"hold": True}})
            await eventually(lambda: bool(served.service.runs))
            tasks.cancel_scope.cancel()
        await eventually(lambda: bool(served.service.called("abort")))


@pytest.mark.anyio
async def test_a_stateless_http_request_that_is_dropped_ends_no_run(served: Served) -> None:
    async with over_http(served) as url, Client(url, mode="2026-07-28") as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "flow", {"flow_name": "build", "parameters": {"hold": True}})
            await eventually(lambda: bool(served.service.runs))
            tasks.cancel_scope.cancel()
        assert not (await client.call_tool("workflow_list")).is_error
        (served.root / "release").touch()
        await eventually(lambda: all(run.status == "completed" for run in served.service.runs.values()))
    assert served.service.called("abort") == []


@pytest.mark.anyio
async def test_a_session_over_http_hears_of_new_workflows(served: Served) -> None:
    heard: list[str] = []

    async def on_message(message: Any) -> None:
        heard.append(type(message).__name__)

    async with over_http(served) as url, Client(url, mode="legacy", message_handler=on_message) as client:
        await client.list_tools()
        number = 0
        with anyio.fail_after(DEADLINE_S):
            while "ToolListChangedNotification" not in heard:  # the stream for it opens in its own time
                number += 1
                (served.root / ".swissarmyhammer" / "workflows" / f"new-{number}.yaml").write_text("steps: []")
                await anyio.sleep(0.3)


@pytest.mark.anyio
async def test_every_handshake_promises_what_is_announced(served: Served) -> None:
    """A client need not listen to what the server did not say it would announce."""
    async with over_http(served) as url, Client(url, mode="legacy") as by_http, served.client("legacy") as by_socket:
        for client in (by_http, by_socket):
            offered = client.server_capabilities
            for announced in (offered.tools, offered.prompts, offered.resources):
                assert announced is not None
                assert announced.list_changed


@pytest.mark.anyio
async def test_http_lets_nobody_in_without_the_token(served: Served) -> None:
    async with over_http(served, token="s3cret") as url:
        async with httpx2.AsyncClient() as http:
            for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
                refused = await http.post(url, json=INITIALIZE, headers=given)
                assert refused.status_code == 401
                assert refused.headers["WWW-Authenticate"] == "Bearer"
        async with (
            httpx2.AsyncClient(headers={"Authorization": "Bearer s3cret"}) as http,
            Client(streamable_http_client(url, http_client=http), mode="legacy") as client,
        ):
            assert not (await client.call_tool("workflow_list")).is_error


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:80"}, 421),
        ({"Host": "[::1"}, 421),
        ({"Host": "[::1]evil.example"}, 421),
        ({"Host": "[127.0.0.1]"}, 421),
        ({"Host": "127.0.0.1:80:evil.example"}, 421),
        ({"Host": "localhost:evil.example"}, 421),
        ({"Host": "localhost@evil.example"}, 421),
        ({"Host": "[::1]"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "127.0.0.1:80"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost"}, 200),
    ],
)
async def test_http_is_called_by_its_own_name_and_by_no_page_from_elsewhere(
    served: Served, headers: dict[str, str], status: int
) -> None:
    async with over_http(served) as url, httpx2.AsyncClient() as http:
        accept = {"Accept": "application/json, text/event-stream"}
        answer = await http.post(url, json=INITIALIZE, headers={**accept, **headers})
    assert answer.status_code == status


@pytest.mark.anyio
async def test_http_keeps_no_session_of_a_handshake_that_it_refused(served: Served) -> None:
    async with over_http(served) as url, httpx2.AsyncClient(headers={"Accept": "text/event-stream, */*"}) as http:
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        refused = await http.post(url, json={**INITIALIZE, "params": {}})
        assert "error" in refused.text
        later = await http.post(url, json=ping, headers={"mcp-session-id": refused.headers["mcp-session-id"]})
        assert later.status_code == 404
        accepted = await http.post(url, json=INITIALIZE)
        later = await http.post(url, json=ping, headers={"mcp-session-id": accepted.headers["mcp-session-id"]})
        assert later.status_code == 200


@pytest.mark.anyio
async def test_http_keeps_nothing_of_stateless_requests_whatever_session_they_name(served: Served) -> None:
    import asyncio

    async with over_http(served) as url:
        for number in range(20):
            named = httpx2.AsyncClient(headers={"mcp-session-id": f"made-up-{number}"})
            if number == 10:
                before = len(asyncio.all_tasks())
            async with (
                named as http,
                Client(streamable_http_client(url, http_client=http), mode="2026-07-28") as client,
            ):
                result = await client.call_tool("flow", {"flow_name": "no-such-workflow"})
                assert result.is_error
        await eventually(lambda: len(asyncio.all_tasks()) <= before)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("limit", "begun"),
    [
        ("HEADERS_S", b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "),
        ("BODY_S", b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n"),
    ],
    ids=["headers", "body"],
)
async def test_http_ends_a_request_that_takes_too_long_though_a_byte_comes_now_and_then(
    served: Served, monkeypatch: pytest.MonkeyPatch, limit: str, begun: bytes
) -> None:
    monkeypatch.setattr(streamable_http, limit, 0.3)
    async with over_http(served) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        async with await anyio.connect_tcp("127.0.0.1", port) as slow:

            async def trickle() -> None:
                await slow.send(begun)
                while True:
                    await slow.send(b"x")
                    await anyio.sleep(0.02)

            with anyio.fail_after(DEADLINE_S), pytest.raises(anyio.BrokenResourceError):
                await trickle()
        # One that is finished within its time is answered, also after another one on the same connection.
        async with httpx2.AsyncClient(headers={"Accept": "text/event-stream, */*"}) as http:
            for _ in range(2):
                assert (await http.post(url, json=INITIALIZE)).status_code == 200


@pytest.mark.anyio
async def test_http_refuses_a_body_that_is_too_large(served: Served) -> None:
    async with over_http(served) as url, httpx2.AsyncClient() as http:
        answer = await http.post(url, content=b"x" * 5_000_000, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


@pytest.mark.anyio
async def test_http_beyond_this_machine_needs_a_token_and_then_checks_names_too(served: Served) -> None:
    with anyio.fail_after(DEADLINE_S), pytest.raises(SidecarError, match="needs a token"):
        await streamable_http.listen(served.server, "0.0.0.0", 0)
    async with over_http(served, token="t", host="0.0.0.0") as url, httpx2.AsyncClient() as http:
        bearer = {"Authorization": "Bearer t", "Accept": "application/json, text/event-stream"}
        foreign = await http.post(url, json=INITIALIZE, headers={**bearer, "Host": "evil.example"})
        assert foreign.status_code == 421
        by_address = await http.post(url, json=INITIALIZE, headers=bearer)
        assert by_address.status_code == 200


@pytest.mark.anyio
async def test_an_http_port_that_is_taken_is_an_error_in_words(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SidecarError, match=f"cannot listen on 127.0.0.1:{port}"):
            await streamable_http.listen(served.server, "127.0.0.1", port)
