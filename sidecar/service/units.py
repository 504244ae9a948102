"""Service definitions for systemd and launchd: templates filled in for one project, and a seal that tells who wrote it.

Pure: nothing is read, written or started here. What has to be run is said as command lines.
"""

from __future__ import annotations

import hashlib
import os
import plistlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sidecar.errors import SidecarError

if TYPE_CHECKING:
    from collections.abc import Mapping


SYSTEM_TEMPLATE, USER_TEMPLATE, LAUNCHD_TEMPLATE = "sidecar@.service", "user/sidecar@.service", "sidecar.plist"
_LONGEST_NAME = 255  # of a unit, and of a file
_EXIT_AFTER_GRACE_S = 15  # replies, the last look at the process table, the journal; generously
_NO_DIGEST = "0" * 64
_SEAL = re.compile(r"(?<=sha256:)[0-9a-f]{64}\b")
_SEAL_LINE = f"Written by `sidecar service install`, which tells by this that nobody changed it: sha256:{_NO_DIGEST}"
_SAFE_IN_NAMES = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:_.")

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Installation:
    """What is installed for whom."""

    root: str
    program: tuple[str, ...]  # starts `sidecar`
    search_path: str  # PATH of the daemon; an agent's is that of whoever starts its run
    home: str
    user: str | None = None  # who the daemon runs as, if it is the system's; None: the person who installs it
    uid: int = 0
    kill_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServiceUnit:
    """One service: its file, and the command lines that look after it."""

    name: str
    path: str
    text: str
    user: str | None
    reach: Command  # fails where the manager cannot be talked to; changes nothing
    is_running: Command
    start: tuple[Command, ...]
    renew: tuple[Command, ...]  # while it runs, with a file that changed
    keep: tuple[Command, ...]  # while it runs, with the same file
    end: tuple[Command, ...]
    forget: tuple[Command, ...]  # after the file is gone
    status: Command
    log: Command  # shows the last lines: their number comes next, and then the rest
    follow: str  # the option with which it goes on
    log_file: Command = ()
    without_manager: str = ""  # what helps a person who has none to talk to
    directories: tuple[str, ...] = ()  # have to exist
    written_by_user: tuple[str, ...] = ()  # files that have to belong to whom it runs as
    tidy: tuple[str, ...] = ()  # go with the file, where they are empty then
    drop_ins: str | None = None  # where people put changes of their own


def systemd(template: str, given: Installation) -> ServiceUnit:
    """The unit of a project, of the system or of a person, made of the template that goes with it."""
    name = _checked_name(f"sidecar@{escaped_path(given.root)}.service")
    system = given.user is not None
    values = {
        "ExecStart": f":{' '.join(_word(word) for word in given.program)} daemon --project %f",
        "Environment": _word(f"PATH={given.search_path}"),
    }
    if given.user is not None:
        values["User"] = given.user.replace("%", "%%")
    directory = "/etc/systemd/system" if system else os.path.join(given.home, ".config", "systemd", "user")
    manager = ("systemctl", "--system" if system else "--user")
    reload: Command = (*manager, "daemon-reload")
    enable: Command = (*manager, "--quiet", "enable", name)
    return ServiceUnit(
        name=name,
        path=os.path.join(directory, name),
        text=sealed(_filled_in(template, values), "# {}\n"),
        user=given.user,
        reach=reload,
        is_running=(*manager, "--quiet", "is-active", name),
        start=(reload, enable, (*manager, "start", name)),
        renew=(reload, enable, (*manager, "restart", name)),
        keep=(enable,),
        end=((*manager, "--quiet", "disable", "--now", name),),
        # The second one: a unit that failed is remembered, though there is no file any more.
        forget=(reload, (*manager, "--quiet", "reset-failed", name)),
        status=(*manager, "--no-pager", "--lines=5", "status", name),
        log=("journalctl", f"--{'unit' if system else 'user-unit'}={name}", "--no-pager", "-n"),
        follow="-f",
        # A person who has no other unit has none of these either.
        tidy=() if system else (f"{directory}/default.target.wants", directory, os.path.dirname(directory)),
        drop_ins=os.path.join(directory, f"{name}.d"),
        without_manager="a full login has one (not `su` or `sudo -u`), and so has who said `loginctl enable-linger`; "
        "else use --system",
    )


def launchd(template: str, given: Installation) -> ServiceUnit:
    """The same for launchd: a daemon of the system, or an agent of a person."""
    name = f"sidecar.{escaped_path(given.root)}"
    _checked_name(f"{name}.plist")
    system = given.user is not None
    library = "/Library" if system else os.path.join(given.home, "Library")
    path = os.path.join(library, "LaunchDaemons" if system else "LaunchAgents", f"{name}.plist")
    log = os.path.join(library, "Logs", "sidecar", f"{name}.log")
    domain = "system" if system else f"gui/{given.uid}"
    content: dict[str, Any] = plistlib.loads(template.encode())
    content |= {
        "Label": name,
        "ProgramArguments": [*given.program, "daemon", "--project", given.root],
        "WorkingDirectory": given.root,
        "EnvironmentVariables": {"PATH": given.search_path},
        # launchd cannot be asked for more time later.
        "ExitTimeOut": max(content["ExitTimeOut"], round(given.kill_after_s + _EXIT_AFTER_GRACE_S)),
        "StandardOutPath": log,
        "StandardErrorPath": log,
        **({"UserName": given.user} if given.user is not None else {}),
    }
    head, _, rest = plistlib.dumps(content, sort_keys=False).decode().partition("\n")
    bootstrap: Command = ("launchctl", "bootstrap", domain, path)
    bootout: Command = ("launchctl", "bootout", f"{domain}/{name}")
    enable: Command = ("launchctl", "enable", f"{domain}/{name}")
    return ServiceUnit(
        name=name,
        path=path,
        text=f"{head}\n{sealed(rest, '<!-- {} -->' + chr(10))}",
        user=given.user,
        reach=("launchctl", "print-disabled", domain),
        is_running=("launchctl", "print", f"{domain}/{name}"),
        start=(enable, bootstrap),
        renew=(bootout, enable, bootstrap),
        keep=(enable,),
        end=(bootout,),
        forget=(),
        status=("launchctl", "print", f"{domain}/{name}"),
        log=("tail", "-n"),
        log_file=(log,),
        follow="-F",
        directories=(os.path.dirname(log),),
        # That directory is root's, and launchd opens the file as the user.
        written_by_user=(log,) if system else (),
        without_manager="who is logged in at the screen has one; ssh alone gives none: use sudo and --system there",
    )


def user_of(text: str) -> str | None:
    """Who a service runs as, by its file; None where it does not say."""
    found = re.search(r"(?m)^User=(.+)$", text)
    if found is not None:
        return found.group(1).replace("%%", "%")
    try:
        named = plistlib.loads(text.encode()).get("UserName")
    except Exception:
        return None
    return str(named) if named else None


def search_path(home: str, platform: str) -> str:
    """PATH of a daemon of the system's, which has nobody's shell to take it from."""
    homebrew = "/opt/homebrew/bin:/opt/homebrew/sbin:" if platform == "darwin" else ""
    return f"{home}/.local/bin:{homebrew}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def escaped_path(path: str) -> str:
    """A path as a part of a unit's name, reversibly: what `systemd-escape --path` makes of it."""
    inner = path.strip("/")
    if not inner:
        return "-"
    told = "".join("-" if byte == 0x2F else _escaped_byte(byte) for byte in os.fsencode(inner))
    return f"\\x2e{told[1:]}" if told.startswith(".") else told


def sealed(text: str, line: str) -> str:
    """The text behind a comment with its digest. `line` says how a comment is written."""
    with_room = line.format(_SEAL_LINE) + text
    return with_room.replace(_NO_DIGEST, _digest(with_room), 1)


def is_untouched(text: str) -> bool:
    """Whether it is as we wrote it, whichever version of us that was."""
    found = _SEAL.search(text)
    # What stands before the seal is the same for everybody.
    at = text.rfind("\n", 0, found.start()) + 1 if found else 0
    return found is not None and found.group() == _digest(text[at:])


def _digest(text: str) -> str:
    return hashlib.sha256(_SEAL.sub(_NO_DIGEST, text, count=1).encode()).hexdigest()


def _filled_in(template: str, values: Mapping[str, str]) -> str:
    """A unit file with other values for some of its keys, each of which it has once."""
    lines = template[template.index("\n[") + 1 :].split("\n")  # before it stands what to do by hand
    keys = [line.partition("=")[0] for line in lines]
    for key, value in values.items():
        (at,) = [number for number, found in enumerate(keys) if found == key]
        lines[at] = f"{key}={value}"
    return "\n".join(lines)


def _word(text: str) -> str:
    """One word of a command line or an assignment, as systemd reads it: no specifier, no escape, no second word."""
    told = "".join(
        {"\\": "\\\\", '"': '\\"', "%": "%%"}.get(character, character)
        if character.isprintable()
        else "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))
        for character in text
    )
    return f'"{told}"' if set(told) & set(" '\"\\;") or told != text else told


def _escaped_byte(byte: int) -> str:
    return chr(byte) if chr(byte) in _SAFE_IN_NAMES else f"\\x{byte:02x}"


def _checked_name(name: str) -> str:
    if len(name) > _LONGEST_NAME:
        raise SidecarError(
            f"a service cannot be named after a path this long: {name} has {len(name)} characters, and at most "
            f"{_LONGEST_NAME} is possible; use a copy of the project with a shorter path"
        )
    return name
