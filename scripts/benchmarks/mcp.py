"""What MCP costs: the start of `serve`, a call, many clients, a daemon without work, and one with much."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import psutil

from benchmarks.report import Figure

_DEADLINE_S = 60.0
_MANY_S = 600.0  # an answer that is late is not lost
_HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
_INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
_SIDECAR = str(Path(sys.executable).with_name("sidecar"))
# The SDK's own way to write a server, as its documentation shows it.
_ECHO = """
from mcp.server import MCPServer
server = MCPServer("echo")

@server.tool()
async def echo(value: int) -> int:
    return value

server.run("stdio")
"""


def measure(*, quick: bool) -> list[Figure]:
    """On a project of its own, below the working directory: journals are synced to a real disk there."""
    with tempfile.TemporaryDirectory(dir=os.getcwd(), prefix=".bench-") as root:
        own = Path(root) / ".swissarmyhammer"
        (own / "workflows").mkdir(parents=True)
        (own / "workflows" / "quick.yaml").write_text("steps: [{id: a, type: shell_command, command: 'true'}]\n")
        for number in range(100):
            (own / "workspaces" / f"ws-{number}").mkdir(parents=True)
        alone = _starts(root, "without a daemon", rounds=3 if quick else 10)
        with _daemon(root) as daemon:
            idle = _idle(daemon, 5.0 if quick else 30.0)
            started = _starts(root, "with a daemon", rounds=10 if quick else 40, limit=4)
            call = _call(root, 300 if quick else 3_000)
            evaluated = _evaluated(root, 30 if quick else 300)
            many = anyio.run(_many, str(own / "sidecar.sock"), 50, 20 if quick else 100)
            runs = _runs(daemon, str(own / "sidecar.sock"), 100 if quick else 1_000, 50 if quick else 500)
        return [started, alone, call, evaluated, *many, *idle, runs]


class _Client:
    """A client by hand: its own cost is a line of JSON."""

    def __init__(self, root: str, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.request(0, "initialize", _HELLO)

    def request(self, number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(_line({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        stdin.flush()
        for line in stdout:
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == number:
                return message
        raise RuntimeError("the server went away")

    def initialized(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(_line(_INITIALIZED))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


@contextmanager
def _daemon(root: str) -> Iterator[psutil.Process]:
    path = Path(root) / "daemon.log"
    with path.open("w") as log:
        process = subprocess.Popen([_SIDECAR, "daemon"], cwd=root, stdout=log, stderr=log)
    deadline = time.monotonic() + _DEADLINE_S
    try:
        while "is process" not in path.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the daemon is not ready: {path.read_text()}")
            time.sleep(0.05)
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_DEADLINE_S)


def _starts(root: str, how: str, rounds: int, limit: float | None = None) -> Figure:
    """Alternating, so that a noisy moment hits both alike."""
    bare, serve = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-c", "pass"], check=True)
        bare.append((time.perf_counter() - begin) * 1e3)
        begin = time.perf_counter()
        client = _Client(root, [_SIDECAR, "serve"])
        serve.append((time.perf_counter() - begin) * 1e3)
        client.close()
    name = f"mcp: serve {how}, to the answer of initialize"
    return Figure(name, median(serve), "ms", "python -I -c pass", median(bare), limit)


def _call(root: str, rounds: int) -> Figure:
    """One after the other, over standard input and output; ours goes through the pump and the daemon's socket. The
    tool is one that has next to nothing to do: there is no run yet."""
    with ExitStack() as stack:
        clients = {
            "ours": ([_SIDECAR, "serve"], "workflow_status", {}),
            "theirs": ([sys.executable, "-c", _ECHO], "echo", {"value": 1}),
        }
        taken: dict[str, list[float]] = {name: [] for name in clients}
        connected: dict[str, _Client] = {}
        for name, (command, _, _) in clients.items():
            connected[name] = _Client(root, command)
            stack.callback(connected[name].close)
            connected[name].initialized()
        for number in range(1, rounds + 50):
            for name, (_, tool, arguments) in clients.items():
                begin = time.perf_counter()
                answer = connected[name].request(number, "tools/call", {"name": tool, "arguments": arguments})
                if number >= 50:  # the first ones find cold caches
                    taken[name].append((time.perf_counter() - begin) * 1e3)
                assert not answer["result"].get("isError"), answer
    return Figure(
        "mcp: trivial tool call over stdio",
        median(taken["ours"]),
        "ms",
        "SDK's echo server",
        median(taken["theirs"]),
        1.5,
    )


def _evaluated(root: str, rounds: int) -> Figure:
    """A call with work in it: a world of JavaScript is made and thrown away for each."""
    client = _Client(root, [_SIDECAR, "serve"])
    try:
        client.initialized()
        taken = []
        params = {"name": "workflow_test_transformation", "arguments": {"transform": "input", "input": 1}}
        for number in range(1, rounds + 1):
            begin = time.perf_counter()
            client.request(number, "tools/call", params)
            taken.append((time.perf_counter() - begin) * 1e3)
    finally:
        client.close()
    return Figure("mcp: workflow_test_transformation over stdio", median(taken), "ms")


async def _many(path: str, clients: int, calls: int) -> list[Figure]:
    """Each asks for a number of its own, several at a time, and has to get that very number, once."""
    wrong = 0

    async def one(client: int) -> None:
        nonlocal wrong
        async with await anyio.connect_unix(path) as stream:
            await stream.send(_line({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": _HELLO}))
            await stream.send(_line(_INITIALIZED))
            wanted = {number: client * 1_000_000 + number for number in range(1, calls + 1)}
            for number, value in wanted.items():
                params = {"name": "workflow_test_transformation", "arguments": {"transform": "input", "input": value}}
                await stream.send(_line({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}))
            got: list[tuple[int, Any]] = []
            rest = b""
            with anyio.move_on_after(_MANY_S):
                while len(got) < calls:
                    *lines, rest = (rest + await stream.receive()).split(b"\n")
                    messages = [message for message in map(json.loads, lines) if message.get("id")]
                    got += [(each["id"], each["result"]["structuredContent"]["output"]) for each in messages]
            wrong += len(set(wanted.items()) ^ set(got)) + len(got) - len(set(got))

    begin = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for client in range(1, clients + 1):
            tasks.start_soon(one, client)
    taken_s = time.perf_counter() - begin
    name = f"mcp: {clients} clients, {clients * calls:,} calls"
    return [
        Figure(f"{name}: lost or mixed up", wrong, "", limit=0),
        Figure(f"{name}: each", taken_s / (clients * calls) * 1e3, "ms"),
    ]


def _idle(daemon: psutil.Process, for_s: float) -> list[Figure]:
    time.sleep(2.0)  # what it does once, at its start, is done
    before = daemon.cpu_times()
    time.sleep(for_s)
    after = daemon.cpu_times()
    used = (after.user + after.system - before.user - before.system) / for_s * 100
    return [
        Figure("mcp: idle daemon, 100 workspaces, no run: CPU", used, "%", limit=0.2, note=f"over {for_s:g} s"),
        Figure("mcp: idle daemon, 100 workspaces, no run: memory", _mb(daemon), "MB", limit=90),
    ]


def _runs(daemon: psutil.Process, path: str, count: int, before_that: int) -> Figure:
    """Runs of one short command, five at a time; those before fill the journal's page cache, which has a limit."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_DEADLINE_S)
        connection.connect(path)
        with connection.makefile("rwb") as stream:
            stream.write(_line({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": _HELLO}))
            stream.write(_line(_INITIALIZED))

            def some(first: int, last: int) -> None:
                for begin in range(first, last, 5):
                    numbers = set(range(begin, begin + 5))
                    for number in numbers:
                        params = {"name": "flow", "arguments": {"flow_name": "quick"}}
                        stream.write(_line({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}))
                    stream.flush()
                    while numbers:
                        message = json.loads(stream.readline())
                        numbers.discard(message.get("id"))
                        assert not message.get("result", {}).get("isError"), message

            some(1, before_that)
            before = _mb(daemon)
            some(before_that + 1, before_that + count)
            after = _mb(daemon)
    note = f"{before:.1f} MB before, {after:.1f} MB after"
    grown_kb = (after - before) * 1024 / count
    return Figure(f"mcp: memory of a daemon, grown over {count:,} runs", grown_kb, "KB/run", limit=1, note=note)


def _mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss / 2**20)
