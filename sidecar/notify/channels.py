"""Sends a notice to the desktop, to ntfy, to a webhook as Slack has it, or to any command.

A POST is sent in a thread of its own that nothing waits for at the end: a name server that does not answer, which no
timeout reaches, would otherwise keep the whole process.
"""

from __future__ import annotations

import base64
import json
import shutil
import threading
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib import parse

import anyio
from anyio import from_thread, lowlevel

from sidecar.agents.supervisor import Launch
from sidecar.errors import SidecarError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from sidecar.config import Notify
    from sidecar.engine.owner import Owner

    Send = Callable[["Notice"], Awaitable[None]]

_GRAVE = ("failed", "aborted", "waiting")  # a person has to do something
_SLIGHT = ("started", "milestone")
_GRACE_S = 0.5  # for a command that is no longer waited for
_POST_TIMEOUT_S = 5.0
# A text that comes as an argument cannot become script.
_APPLE_SCRIPT = ("on run argv", "display notification (item 2 of argv) with title (item 1 of argv)", "end run")


@dataclass(frozen=True, slots=True)
class Notice:
    """One notification."""

    event: str  # started, waiting, stopped, aborted, failed, completed or milestone
    run_id: str
    at: float
    title: str
    text: str = ""
    done: int = 0  # of a milestone: the iterations that are over

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)

    @property
    def weight(self) -> int:
        """1: a person has to do something; -1: only for those who want to know."""
        return 1 if self.event in _GRAVE else -1 if self.event in _SLIGHT else 0


def sender(setting: Notify, owner: Owner) -> Send:
    """The function that sends a notice over one channel. It raises SidecarError where it cannot."""
    return _SENDERS[setting.type](setting, owner)


def _desktop(_: Notify, owner: Owner) -> Send:
    async def send(notice: Notice) -> None:
        path = owner.environment.get("PATH")
        if shutil.which("notify-send", path=path):
            urgency = ("low", "normal", "critical")[notice.weight + 1]
            text = _escaped(notice.text)
            await _run(owner, ["notify-send", "--app-name=sidecar", f"--urgency={urgency}", "--", notice.title, text])
        elif shutil.which("osascript", path=path):
            script = [part for line in _APPLE_SCRIPT for part in ("-e", line)]
            await _run(owner, ["osascript", *script, "--", notice.title, notice.text])
        else:
            raise SidecarError("it needs notify-send (libnotify) or osascript, and there is neither")

    return send


def _ntfy(setting: Notify, owner: Owner) -> Send:
    poster = Poster()

    async def send(notice: Notice) -> None:
        headers = {"Title": _header(notice.title), "Priority": str(notice.weight + 3), "Tags": notice.event}
        if setting.token is not None:
            headers["Authorization"] = f"Bearer {_value(setting.token, owner)}"
        await poster.post(_value(setting.url, owner), (notice.text or notice.title).encode(), headers)

    return send


def _webhook(setting: Notify, owner: Owner) -> Send:
    poster = Poster()

    async def send(notice: Notice) -> None:
        text = f"*{_escaped(notice.title)}*" + (f"\n{_escaped(notice.text)}" if notice.text else "")
        data = json.dumps({"text": text}).encode()
        await poster.post(_value(setting.url, owner), data, {"Content-Type": "application/json"})

    return send


def _command(setting: Notify, owner: Owner) -> Send:
    async def send(notice: Notice) -> None:
        assert setting.command is not None
        await _run(owner, setting.command, notice)

    return send


async def _run(owner: Owner, argv: Sequence[str], notice: Notice | None = None) -> None:
    """A command like any other that an owner starts: it and all that it starts is over when this returns."""
    fields = notice.to_json() if notice is not None else {}
    launch = Launch(
        argv=argv,
        cwd=owner.root,
        starter_env=owner.environment,
        env={f"SIDECAR_NOTIFY_{name.upper()}": _printable(str(value)) for name, value in fields.items()},
        stdin=json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace") + b"\n" if fields else None,
        secrets=owner.settings.secret_values(owner.environment),
        kill_after_s=_GRACE_S,
    )
    ended = await owner.supervisor.run(launch)
    if ended.exit_code != 0:
        lines = ended.tail.strip().splitlines()
        raise SidecarError(f"{argv[0]} exited with {ended.exit_code}" + (f": {lines[-1]}" if lines else ""))


def _printable(text: str) -> str:
    """A reason may hold what no variable can: that is replaced."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


def _value(text: str | None, owner: Owner) -> str:
    """What is set, or the variable that it names has."""
    assert text is not None
    if not text.startswith("$"):
        return text
    found = owner.environment.get(text[1:])
    if not found:
        raise SidecarError(f"the variable {text[1:]} is not set")
    if "\n" in found or "\r" in found or not found.isascii():
        raise SidecarError(f"the variable {text[1:]} contains something that cannot be sent")
    return found


def _header(text: str) -> str:
    """Headers are ASCII, on one line; ntfy reads the rest in the way that mail has for it."""
    line = " ".join(text.split())
    return line if line.isascii() else f"=?UTF-8?B?{base64.b64encode(line.encode()).decode()}?="


def _escaped(text: str) -> str:
    """Slack and the desktop read marks in a text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Poster:
    """Posts to one address, one at a time."""

    def __init__(self) -> None:
        self._is_busy = False

    async def post(self, url: str, data: bytes, headers: Mapping[str, str]) -> None:
        """SidecarError: it did not arrive, and why; the address, which may be a secret, is not in there."""
        if self._is_busy:  # given up, but its thread is not to be ended
            raise SidecarError("the last one has not been answered yet")
        token, done = lowlevel.current_token(), anyio.Event()
        problems: list[str] = []

        def work() -> None:
            problem = _posted(url, data, headers)
            if problem:
                problems.append(problem)
            self._is_busy = False
            try:
                from_thread.run_sync(done.set, token=token)
            except anyio.RunFinishedError:  # nobody waited
                return

        # Not one of the loop's workers: those are joined at the end.
        self._is_busy = True
        threading.Thread(target=work, name="notify", daemon=True).start()
        await done.wait()
        if problems:
            raise SidecarError(problems[0])


def _posted(url: str, data: bytes, headers: Mapping[str, str]) -> str | None:
    """What went wrong, if anything did."""
    from http.client import HTTPException, InvalidURL  # noqa: PLC0415 - only for those who have it set
    from urllib import error, request  # noqa: PLC0415

    class Refusing(request.HTTPRedirectHandler):
        """Not followed: it would carry the token to somebody else."""

        def redirect_request(self, *_: object) -> None:
            return None

    opener = request.build_opener(Refusing)
    try:
        address, login = _apart(url)
        wanted = request.Request(address, data, {**login, **headers}, method="POST")  # noqa: S310 - http or https
        with opener.open(wanted, timeout=_POST_TIMEOUT_S) as answer:
            answer.read(1)
    except error.HTTPError as failed:
        return f"HTTP {failed.code} {failed.reason}"
    except error.URLError as failed:
        return str(failed.reason)
    except (InvalidURL, ValueError):  # their texts quote the part that is wrong, and that may be the secret one
        return "the address is not one that can be called"
    except (OSError, HTTPException) as failed:
        return f"{type(failed).__name__}: {failed}".replace(url, "URL")
    return None


def _apart(url: str) -> tuple[str, dict[str, str]]:
    """The address without the name and password in it, which urllib takes for a host, and the header that has them."""
    parts = parse.urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    header = base64.b64encode(parse.unquote(login).encode()).decode()
    return parts._replace(netloc=host).geturl(), {"Authorization": f"Basic {header}"}


_SENDERS: dict[str, Callable[[Notify, Owner], Send]] = {
    "desktop": _desktop,
    "ntfy": _ntfy,
    "webhook": _webhook,
    "command": _command,
}
