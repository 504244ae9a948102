"""Notifications beside a run: a real owner, a real server, and one that never answers."""

from __future__ import annotations

import base64
import json
import re
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from sidecar import config
from sidecar.engine.owner import Owner
from sidecar.model import events as kinds
from sidecar.model import ulid
from sidecar.model.events import RunEvent
from sidecar.notify.notices import notifications

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio
BURST = 5


class Inbox:
    """What a server got, as it came."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.logins: list[str | None] = []
        self.url = ""

    async def holds(self, count: int) -> None:
        with anyio.fail_after(30):
            while len(self.texts) < count:  # noqa: ASYNC110 - a thread of the server's fills it
                await anyio.sleep(0.01)


@contextmanager
def serving(code: int = 200) -> Iterator[Inbox]:
    inbox = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            inbox.logins.append(self.headers["Authorization"])
            inbox.texts.append(json.loads(body)["text"])
            self.send_response(code)
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    inbox.url = f"http://127.0.0.1:{server.server_address[1]}/secret-path"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield inbox
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Reports:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str) -> None:
        self.lines.append(text)


def owner_with(root: Path, *notify: dict[str, Any]) -> tuple[Owner, Reports]:
    settings = config.Settings.model_validate({"notify": notify, "containment": "auto"})
    reports = Reports()
    return Owner(str(root), settings, {"PATH": "/usr/bin:/bin"}, reports), reports


def completed() -> RunEvent:
    return RunEvent(ulid.new(), kinds.RUN_ENDED, 1.0, {"status": "completed"})


async def test_what_is_too_much_is_summed_up_and_nothing_is_lost(tmp_path: Path) -> None:
    with serving() as inbox:
        owner, _ = owner_with(tmp_path, {"type": "webhook", "url": inbox.url})
        async with owner, notifications(owner) as on_event:
            for number in range(BURST):
                on_event(completed())
                await inbox.holds(number + 1)
            for _ in range(15):
                on_event(completed())
                await anyio.sleep(0.03)  # time enough to send it at once, for somebody who would
        assert BURST < len(inbox.texts) < 2 * BURST
        counts = [re.match(r"\*(\d+) notices", text) for text in inbox.texts]
        assert sum(int(count.group(1)) if count else 1 for count in counts) == BURST + 15


async def test_a_server_that_never_answers_holds_up_neither_a_run_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in ("notices._DELIVERY_S", "channels._POST_TIMEOUT_S"):
        monkeypatch.setattr(f"sidecar.notify.{where}", 600)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        owner, _ = owner_with(tmp_path, {"type": "webhook", "url": url})
        async with owner:
            with anyio.move_on_after(60) as patience:
                async with notifications(owner) as on_event:
                    for _ in range(300):
                        on_event(completed())
            assert not patience.cancel_called


async def test_a_way_that_does_not_work_is_reported_once_without_its_address(tmp_path: Path) -> None:
    with serving(code=500) as inbox:
        owner, reports = owner_with(tmp_path, {"type": "webhook", "url": inbox.url})
        async with owner, notifications(owner) as on_event:
            on_event(completed())
            await inbox.holds(1)
            on_event(completed())
            await inbox.holds(2)
    assert [line for line in reports.lines if "notif" in line] == [
        "notifications by webhook do not arrive: HTTP 500 Internal Server Error"
    ]


@pytest.mark.parametrize(
    ("channel", "why"),
    [
        (
            {"type": "command", "command": ["sh", "-c", "echo no such phone >&2; exit 3"]},
            "exited with 3: no such phone",
        ),
        ({"type": "command", "command": ["./nothing-there"]}, "No such file"),
        ({"type": "webhook", "url": "$NOT_SET"}, "the variable NOT_SET is not set"),
        ({"type": "desktop"}, "there is neither"),
    ],
)
async def test_whoever_cannot_be_told_is_reported_with_the_reason(
    tmp_path: Path, channel: dict[str, Any], why: str
) -> None:
    owner, reports = owner_with(tmp_path, channel)
    owner.environment = {"PATH": "/usr/bin:/bin"} if channel["type"] == "command" else {"PATH": str(tmp_path)}
    async with owner, notifications(owner) as on_event:
        on_event(completed())
    assert [why in line for line in reports.lines] == [True]


async def test_a_name_and_password_in_an_address_log_in_there(tmp_path: Path) -> None:
    with serving() as inbox:
        url = inbox.url.replace("//", "//bot:pass%20word@")
        owner, reports = owner_with(tmp_path, {"type": "webhook", "url": url})
        async with owner, notifications(owner) as on_event:
            on_event(completed())
            await inbox.holds(1)
    assert inbox.logins == ["Basic " + base64.b64encode(b"bot:pass word").decode()]
    assert reports.lines == []


@pytest.mark.parametrize(
    "address",
    ["http://bot:hidden@127.0.0.1:0x1/", "http://127.0.0.1:1/hidden topic", "http://[hidden/", "http://hidden:x/"],
)
async def test_an_address_that_cannot_be_called_is_not_quoted(tmp_path: Path, address: str) -> None:
    owner, reports = owner_with(tmp_path, {"type": "webhook", "url": address})
    async with owner, notifications(owner) as on_event:
        on_event(completed())
    assert reports.lines == ["notifications by webhook do not arrive: the address is not one that can be called"]


async def test_a_redirection_is_not_followed(tmp_path: Path) -> None:
    with serving(code=302) as inbox:
        owner, reports = owner_with(tmp_path, {"type": "webhook", "url": inbox.url})
        async with owner, notifications(owner) as on_event:
            on_event(completed())
            await inbox.holds(1)
    assert "HTTP 302" in "\n".join(reports.lines)


async def test_settings_that_are_read_again_hold_from_then_on(tmp_path: Path) -> None:
    with serving() as first, serving() as second:
        owner, _ = owner_with(tmp_path)
        async with owner, notifications(owner) as on_event:
            on_event(completed())
            for inbox in (first, second):
                settings = {"notify": [{"type": "webhook", "url": inbox.url}]}
                owner.settings = config.Settings.model_validate(settings)
                on_event(completed())
                await inbox.holds(1)
    assert (len(first.texts), len(second.texts)) == (1, 1)


async def test_an_error_of_the_run_comes_out_as_it_is(tmp_path: Path) -> None:
    owner, _ = owner_with(tmp_path, {"type": "desktop"})

    async def failing() -> None:
        async with owner, notifications(owner) as on_event:
            on_event(completed())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()


async def test_the_desktop_is_told_by_notify_send(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    script = programs / "notify-send"
    script.write_text('#!/bin/sh\nfor word; do printf "%s|" "$word"; done >> said\n')
    script.chmod(0o755)
    owner, reports = owner_with(tmp_path, {"type": "desktop"})
    owner.environment = {"PATH": f"{programs}:/usr/bin:/bin"}
    run_id = ulid.new()
    owner.journal.create(run_id, "deploy <prod>", definition="{}", inputs={})
    async with owner, notifications(owner) as on_event:
        on_event(RunEvent(run_id, kinds.RUN_ENDED, 1.0, {"status": "failed", "reason": "a < b"}))
    words = (tmp_path / "said").read_text().split("|")
    assert words[:4] == ["--app-name=sidecar", "--urgency=critical", "--", "deploy <prod>: failed"]
    assert words[4].startswith("a &lt; b\n")
    assert reports.lines == []
