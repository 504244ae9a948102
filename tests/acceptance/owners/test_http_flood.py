"""Another user at the HTTP port of a daemon, without the token; and a daemon that runs out of descriptors."""

from __future__ import annotations

import json
import re
import resource
import socket
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.kit import sockets

if TYPE_CHECKING:
    from tests.kit import Daemon, Project

DEADLINE_S = 20.0
TOKEN = "0123456789abcdef"
HALF = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\nX: "
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sets the limits of another process")


def serve_http(project: Project) -> tuple[Daemon, int]:
    (project.state / "config.yaml").write_text(f"http_token: {TOKEN}\n")
    project.workflow("short", {"id": "a", "type": "shell_command", "command": "true"})
    daemon = project.daemon("--http", "127.0.0.1:0")
    found = re.search(r"http://127\.0\.0\.1:(\d+)/mcp", daemon.printed)
    assert found
    return daemon, int(found[1])


def limit_descriptors(daemon: Daemon, most: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (most, hard))


def authorised(port: int) -> int:
    """The status that somebody with the token gets."""
    headers = {
        "Authorization": f"Bearer {TOKEN}",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
    }
    request = urllib.request.Request(f"http://127.0.0.1:{port}/mcp", json.dumps(INITIALIZE).encode(), headers)
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return int(answer.status)


def ended(connection: socket.socket) -> bool:
    """Whether the server ended it, in time; what it said before does not matter."""
    connection.settimeout(DEADLINE_S)
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_half_sent_requests_keep_nobody_out_and_cost_no_descriptors(project: Project) -> None:
    daemon, port = serve_http(project)
    limit_descriptors(daemon, 1024)
    with ExitStack() as stack:
        for number in range(1300):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), DEADLINE_S))
            one.sendall(HALF)
            if number % 400 == 399:
                assert authorised(port) == 200
        assert authorised(port) == 200
        assert psutil.Process(daemon.process.pid).num_fds() < 512
        project.output("flow", "run", "short", "--detach")
        project.until(lambda: project.only_run()["status"] == "completed")
    assert daemon.process.poll() is None
    assert len(daemon.printed) < 20_000


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        HALF,
        # Refused for its missing token before its body is there.
        b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nhalf",
    ],
    ids=["nothing", "half of the headers", "half of a body"],
)
def test_a_request_that_is_never_finished_is_ended(project: Project, sent: bytes) -> None:
    _, port = serve_http(project)
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as slow:
        slow.sendall(sent)
        assert ended(slow)


def test_refused_handshakes_of_clients_that_hang_up_leave_room_for_sessions(project: Project) -> None:
    _, port = serve_http(project)
    body = json.dumps({**INITIALIZE, "params": {}}).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    for _ in range(1500):
        with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as hasty:
            hasty.sendall(head.encode() + body)
            assert hasty.recv(4096).startswith(b"HTTP/1.1 200 OK")
    assert authorised(port) == 200


def test_out_of_descriptors_a_connection_is_ended_and_never_the_daemon(project: Project) -> None:
    daemon, port = serve_http(project)
    own = project.state
    process = psutil.Process(daemon.process.pid)
    limit_descriptors(daemon, process.num_fds() + 5)
    with ExitStack() as stack:
        for path in (own / "sidecar.sock", own / "handover.sock"):
            for _ in range(20):
                stack.enter_context(sockets.connect(path))
        for path in (own / "sidecar.sock", own / "handover.sock"):
            with sockets.connect(path) as late:
                assert ended(late), "it is told so, and does not wait for ever"
        with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as late:
            assert ended(late)
        # A run that the daemon cannot take is refused in words, or goes to a process of its own.
        handed = project.start("flow", "run", "short", "--detach")
        handed.wait(DEADLINE_S)
        assert handed.stderr is not None
        assert "Traceback" not in handed.stderr.read()
        assert daemon.process.poll() is None
    limit_descriptors(daemon, 1024)
    project.until(lambda: process.num_fds() < 100)
    assert authorised(port) == 200
    project.output("flow", "run", "short", "--detach")
    project.until(lambda: project.last().status == "completed")
    assert daemon.printed.count("cannot accept a connection (MCP)") == 1
    assert len(daemon.printed) < 20_000


def test_a_request_whose_id_nobody_can_use_is_refused_and_not_accepted(project: Project) -> None:
    _, port = serve_http(project)
    headers = {
        "Authorization": f"Bearer {TOKEN}",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
    }
    url = f"http://127.0.0.1:{port}/mcp"
    opened = urllib.request.Request(url, json.dumps(INITIALIZE).encode(), headers)
    with urllib.request.urlopen(opened, timeout=DEADLINE_S) as answer:
        headers["Mcp-Session-Id"] = answer.headers["Mcp-Session-Id"]
    for given in (None, 1.5, True, [1]):
        asked = json.dumps({"jsonrpc": "2.0", "id": given, "method": "tools/list"}).encode()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, asked, headers), timeout=DEADLINE_S)
        with refused.value as error:
            assert error.code == 400
            assert json.load(error)["error"] == {
                "code": -32600,
                "message": "the id of a request is a string or an integer",
            }
