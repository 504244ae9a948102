"""Notifications of real runs: to a real server, to a real command, and never at the run's expense."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kit import Project

NOTE = 'cat >> notes; echo "$SIDECAR_NOTIFY_EVENT" >> events'
SECRET = "sk-very-secret-0123456789"


class Server:
    """Keeps what is posted."""

    def __init__(self) -> None:
        self.posts: list[tuple[dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.posts.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/topic"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def notify(flows: Project, *channels: dict[str, Any]) -> None:
    (flows.state / "config.yaml").write_text(yaml.safe_dump({"notify": list(channels)}))


def notes(flows: Project) -> list[dict[str, Any]]:
    path = flows.root / "notes"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_ntfy_is_told_of_a_completed_run_with_the_token_of_a_variable(flows: Project, server: Server) -> None:
    notify(flows, {"type": "ntfy", "url": server.url, "token": "$TOPIC_TOKEN"})
    flows.environment["TOPIC_TOKEN"] = "tk_12345"
    flows.workflow("quick", {"type": "shell_command", "command": "true"})
    assert flows.run("flow", "run", "quick")[0] == 0
    ((headers, body),) = server.posts
    assert headers["Title"] == "quick: completed"
    assert (headers["Priority"], headers["Authorization"]) == ("3", "Bearer tk_12345")
    assert f"run {flows.journalled()[0].run_id}" in body.decode()


def test_a_webhook_is_told_why_a_run_failed_and_never_a_secret(flows: Project, server: Server) -> None:
    flows.environment |= {"SLACK_URL": server.url, "GH_TOKEN": SECRET}
    notify(flows, {"type": "webhook", "url": "$SLACK_URL"})
    flows.workflow("deploy", {"type": "exit", "status": "failed", "message": f"push to <main> with {SECRET} refused"})
    assert flows.run("flow", "run", "deploy")[0] == 2
    ((_, body),) = server.posts
    text = json.loads(body)["text"]
    assert text.startswith("*deploy: failed*\n")
    assert "push to &lt;main&gt; with ******** refused" in text
    assert SECRET not in text


def test_a_command_gets_the_notice_as_json_and_as_variables(flows: Project) -> None:
    notify(flows, {"type": "command", "command": ["sh", "-c", NOTE], "events": ["started", "completed"]})
    flows.workflow("quick", {"type": "shell_command", "command": "true"})
    assert flows.run("flow", "run", "quick")[0] == 0
    assert sorted(flows.lines("events")) in (["completed", "started"], ["completed"], ["started"])
    told = notes(flows)
    assert {note["run_id"] for note in told} == {flows.journalled()[0].run_id}
    assert "quick: completed" in "\n".join(note["title"] + "\n" + note["text"] for note in told)


def test_only_the_events_that_were_asked_for_are_told_and_milestones_every_so_often(flows: Project) -> None:
    channel = {"type": "command", "command": ["sh", "-c", NOTE], "events": ["milestone"], "every": 2}
    notify(flows, channel)
    flows.touch("go")
    assert flows.run("flow", "run", "counting")[0] == 0
    assert [(note["event"], note["done"], note["title"]) for note in notes(flows)] == [
        ("milestone", 2, "counting: 2 iterations done")
    ]


def test_somebody_is_told_when_a_run_waits_for_an_answer(flows: Project) -> None:
    notify(flows, {"type": "command", "command": ["sh", "-c", NOTE]})
    flows.workflow(
        "asking",
        {"id": "ask", "type": "user_input", "prompt": "Which branch?", "state_update": {"path": "raw.branch"}},
        state_schema={"raw": {"branch": "string"}},
    )
    assert flows.run("flow", "run", "asking")[0] == 0
    (note,) = notes(flows)
    assert (note["event"], note["title"]) == ("waiting", "asking: waits for an answer")
    assert f"Which branch?\nTo answer: sidecar answer {flows.journalled()[0].run_id} VALUE" in note["text"]


def test_a_deaf_command_delays_the_end_a_little_and_is_gone_with_it(flows: Project) -> None:
    deaf = "trap '' TERM; touch heard; while :; do sleep 50; done"
    notify(flows, {"type": "command", "command": ["sh", "-c", deaf]})
    flows.workflow("quick", {"type": "shell_command", "command": "true"})
    code, out, _ = flows.run("flow", "run", "quick")
    assert code == 0
    assert "completed" in out
    assert (flows.root / "heard").exists()
    assert flows.tagged() == []


def test_a_server_that_is_not_there_is_told_in_a_line_and_fails_no_run(flows: Project) -> None:
    notify(flows, {"type": "webhook", "url": "http://127.0.0.1:1/secret-path"})
    flows.workflow("quick", {"type": "shell_command", "command": "true"})
    code, _, err = flows.run("flow", "run", "quick")
    assert code == 0
    assert "sidecar: notifications by webhook do not arrive: " in err
    assert "secret-path" not in err


def test_a_run_of_the_daemon_is_told_by_the_settings_that_it_read_last(flows: Project) -> None:
    flows.workflow("quick", {"type": "shell_command", "command": "true"})
    daemon = flows.start("daemon")
    try:
        flows.until((flows.state / "handover.sock").exists)
        notify(flows, {"type": "command", "command": ["sh", "-c", NOTE]})
        daemon.send_signal(1)
        assert daemon.stderr is not None
        while "again" not in daemon.stderr.readline():
            pass
        assert flows.run("flow", "run", "quick", "--detach")[0] == 0
        flows.until(lambda: notes(flows))
    finally:
        daemon.terminate()
        daemon.communicate(timeout=120)
    assert [note["title"] for note in notes(flows)] == ["quick: completed"]
