"""The ways to people: the desktop, ntfy, a webhook as Slack has it, any command."""

from __future__ import annotations

import base64
import json
import shutil
from typing import TYPE_CHECKING

from sidecar.agents.supervisor import Launch
from sidecar.errors import SidecarError
from sidecar.notify.http_post import Poster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sidecar.config import Notify
    from sidecar.engine.owner import Owner
    from sidecar.notify.notices import Notice

    Send = Callable[[Notice], Awaitable[None]]

_GRACE_S = 0.5  # for a command that is no longer waited for
# A text that comes as an argument cannot become script.
_APPLE_SCRIPT = ("on run argv", "display notification (item 2 of argv) with title (item 1 of argv)", "end run")


def sender(setting: Notify, owner: Owner) -> Send:
    """What delivers a notice in one of the ways. It raises SidecarError where it cannot."""
    return _SENDERS[setting.type](setting, owner)


def _desktop(_: Notify, owner: Owner) -> Send:
    async def send(notice: Notice) -> None:
        path = owner.environment.get("PATH")
        if shutil.which("notify-send", path=path):
            urgency = ("low", "normal", "critical")[notice.weight + 1]
            words = [notice.title, _escaped(notice.text)]
            await _run(owner, ["notify-send", "--app-name=sidecar", f"--urgency={urgency}", "--", *words])
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
    told = notice.to_json() if notice is not None else {}
    launch = Launch(
        argv=argv,
        cwd=owner.root,
        starter_env=owner.environment,
        env={f"SIDECAR_NOTIFY_{name.upper()}": _printable(str(value)) for name, value in told.items()},
        stdin=json.dumps(told, ensure_ascii=False).encode("utf-8", "replace") + b"\n" if told else None,
        secrets=owner.settings.secret_values(owner.environment),
        kill_after_s=_GRACE_S,
    )
    ended = await owner.supervisor.run(launch)
    if ended.exit_code != 0:
        said = ended.tail.strip().splitlines()
        raise SidecarError(f"{argv[0]} exited with {ended.exit_code}" + (f": {said[-1]}" if said else ""))


def _printable(text: str) -> str:
    """A reason may hold what no variable can: whoever is told of it gets the rest."""
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
        raise SidecarError(f"the variable {text[1:]} holds something that cannot be sent")
    return found


def _header(text: str) -> str:
    """Headers are ASCII, on one line; ntfy reads the rest in the way that mail has for it."""
    line = " ".join(text.split())
    return line if line.isascii() else f"=?UTF-8?B?{base64.b64encode(line.encode()).decode()}?="


def _escaped(text: str) -> str:
    """Slack and the desktop read marks in a text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_SENDERS: dict[str, Callable[[Notify, Owner], Send]] = {
    "desktop": _desktop,
    "ntfy": _ntfy,
    "webhook": _webhook,
    "command": _command,
}
