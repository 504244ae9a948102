"""How much memory a daemon takes: what its journal holds, and how many runs there were, costs it next to nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.kit import sockets
from tests.kit.mcp_client import HELLO

if TYPE_CHECKING:
    from tests.kit import Daemon, Project

MB = 1024 * 1024
AT_ONCE = 5


def _rss(daemon: Daemon) -> int:
    return int(psutil.Process(daemon.process.pid).memory_info().rss)


def test_memory_descriptors_and_threads_stay_what_they_were_over_many_runs(
    project: Project, request: pytest.FixtureRequest
) -> None:
    before_that, count = (500, 1_000) if request.config.getoption("--long") else (100, 200)
    project.workflow("quick", {"id": "a", "type": "shell_command", "command": "true"})
    daemon = project.daemon()
    process = psutil.Process(daemon.process.pid)
    with sockets.connect(project.state / "sidecar.sock") as connection, connection.makefile("rwb") as stream:
        connection.settimeout(60)

        def send(method: str, params: Mapping[str, object], number: int | None = None) -> None:
            numbered = {} if number is None else {"id": number}
            stream.write(
                json.dumps({"jsonrpc": "2.0", **numbered, "method": method, "params": params}).encode() + b"\n"
            )

        def run(first: int, last: int) -> None:
            for begin in range(first, last, AT_ONCE):
                open_ = set(range(begin, min(begin + AT_ONCE, last)))
                for number in open_:
                    send("tools/call", {"name": "flow", "arguments": {"flow_name": "quick"}}, number)
                stream.flush()
                while open_:
                    message = json.loads(stream.readline())
                    open_.discard(message.get("id"))
                    assert not message.get("result", {}).get("isError"), message

        send("initialize", HELLO, 0)
        send("notifications/initialized", {})
        run(1, before_that)
        rss, threads, descriptors = _rss(daemon), process.num_threads(), process.num_fds()
        run(before_that, before_that + count)
        grown = _rss(daemon) - rss
        project.until(lambda: process.num_fds() <= descriptors)
        assert process.num_threads() <= threads
    # The journal's page cache fills up to 2 MB meanwhile, and allocators round up; beyond that, less than 1 KB a run.
    assert grown < 3 * MB + count * 1024, f"{grown / MB:.1f} MB more after {count} runs"
    assert list((project.state / "open").iterdir()) == []
