"""What a bug report needs of a project, as files in an archive: everything passes one mask, and no secret does."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import stat
import sys
import tarfile
import time
from collections import Counter
from importlib import metadata
from typing import TYPE_CHECKING, Any

import sidecar
from sidecar import config, layout
from sidecar.agents.output import Secrets
from sidecar.errors import REPORTED
from sidecar.service import doctor
from sidecar.store.db import NAME, open_database
from sidecar.store.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sidecar.config import Settings
    from sidecar.store.journal import StoredRun

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)[^/\s\"']*:[^/\s\"']*(?=@)")  # the name and password in an address, whosever it is
_SHORTEST = 6
_RUNS = 50
_RUNS_WITH_LOGS = 5
_TAIL = 256 * 1024
_LOGS = ("run.log", "run.log.1", "owner.log")
_MOST_FILES = 2000
_README = """\
The output of `sidecar support-bundle`. Read it before you send it.

versions.json   of sidecar, Python, the system, and the packages it uses
doctor.json     what `sidecar doctor` says
settings.json   the settings that hold, and where each comes from; tokens, addresses and environments are masked
journal.json    the last runs: status, times, and how many events of each kind; not what was in them
files.txt       what lies below .swissarmyhammer/, without its content
logs/           the ends of the logs of the last runs and of their owners

Not in here: the journal itself, what agents printed, prompts, workflows, the environment.
"""


async def pack(root: str, environment: Mapping[str, str]) -> bytes:
    """The archive. What cannot be looked at is said in its place: a broken project is what bundles are for."""
    config.refuse_foreign(root, environment)
    try:
        settings, problem = config.read(root, environment), None
    except REPORTED as error:
        settings, problem = config.Settings.model_validate({}), str(error)
    mask = Secrets(_secrets(root, settings, environment))
    findings = [finding.to_json() for finding in await doctor.findings(root, environment)]
    parts: dict[str, str] = {
        "README.txt": _README,
        "versions.json": _json(_versions()),
        "doctor.json": _json(findings),
        "settings.json": _json({"problem": problem} if problem else _settings(root, settings, environment)),
        "journal.json": _json(_journal(root)),
        "files.txt": "".join(_listed(layout.state_directory(root))),
        **dict(_logs(root)),
    }
    hidden = {name: _LOGIN.sub(config.MASK, mask.masked_text(text)) for name, text in parts.items()}
    return _archive({name: text.encode("utf-8", "replace") for name, text in hidden.items()})


def _secrets(root: str, settings: Settings, environment: Mapping[str, str]) -> set[str]:
    """All that is known to be a secret here, or is called like one, also in the environments of runs."""
    found = {settings.http_token or "", *settings.otlp_headers.values()}
    for entry in settings.notify:
        found |= {entry.url or "", entry.token or ""}
    environments = [environment, *_environments(root)]
    for server in settings.mcp_servers.values():
        environments += [server[key] for key in ("env", "headers") if isinstance(server.get(key), dict)]
    for one in environments:
        found |= {*settings.secret_values(one)}
        found |= {str(value) for name, value in one.items() if _SECRET_NAME.search(name)}
    return {value for value in found if len(value) >= _SHORTEST and not value.startswith(("$", "/"))}


def _environments(root: str) -> list[dict[str, str]]:
    try:
        with _opened(root) as journal:
            return [run.details.get("environment") or {} for run in journal.runs()]
    except (*REPORTED, FileNotFoundError):
        return []


class _opened:  # noqa: N801 - used like a function
    """The journal, to read; FileNotFoundError where there is none: to look must not make one."""

    def __init__(self, root: str) -> None:
        os.stat(os.path.join(layout.state_directory(root), NAME))
        self._database = open_database(root)

    def __enter__(self) -> Journal:
        return Journal(self._database)

    def __exit__(self, *_: object) -> None:
        self._database.close()


def _versions() -> dict[str, Any]:
    packages = {}
    for name in ("anyio", "mcp", "psutil", "pydantic", "pyyaml", "quickjs-ng", "watchdog", "uvicorn"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = "not installed"
    return {
        "sidecar": sidecar.__version__,
        "python": sys.version,
        "system": platform.platform(),
        "uid": os.geteuid(),
        "packages": packages,
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _settings(root: str, settings: Settings, environment: Mapping[str, str]) -> dict[str, Any]:
    values = settings.shown()
    # An argument or an address of a server can hold anything: that there is one has to do.
    values["mcp_servers"] = sorted(values["mcp_servers"])
    origins = config.origins(root, environment)
    return {name: {"value": value, "from": origins[name]} for name, value in values.items()}


def _journal(root: str) -> object:
    try:
        with _opened(root) as journal:
            return [_run(journal, run) for run in journal.runs(limit=_RUNS)]
    except FileNotFoundError:
        return "there is none"
    except REPORTED as error:
        return str(error)


def _run(journal: Journal, run: StoredRun) -> dict[str, Any]:
    told = ("run_id", "workflow", "workspace", "status", "driver", "start", "created_at", "updated_at", "ended_at")
    return {
        **{name: getattr(run, name) for name in told},
        "detached": bool(run.details.get("detached")),
        "events": Counter(event.kind for event in journal.events(run.run_id)),
    }


def _listed(directory: str) -> Iterator[str]:
    count = 0
    for where, directories, names in os.walk(directory):
        for name in sorted([*directories, *names]):
            path = os.path.join(where, name)
            count += 1
            if count > _MOST_FILES:
                yield "and more\n"
                return
            try:
                found = os.lstat(path)
            except OSError:
                continue
            changed = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.st_mtime))
            shown = os.path.relpath(path, directory).encode("utf-8", "backslashreplace").decode()
            yield f"{stat.filemode(found.st_mode)} {found.st_uid:>6} {found.st_size:>12} {changed} {shown}\n"


def _logs(root: str) -> Iterator[tuple[str, str]]:
    try:
        runs = sorted(os.listdir(layout.runs_directory(root)), reverse=True)[:_RUNS_WITH_LOGS]
    except OSError:
        return
    for run_id in runs:
        for name in _LOGS:
            text = _tail(os.path.join(layout.run_directory(root, run_id), name))
            if text is not None:
                yield f"logs/{run_id}/{name}", text


def _tail(path: str) -> str | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        opened.seek(max(0, os.fstat(file).st_size - _TAIL))
        return opened.read(_TAIL).decode("utf-8", "replace")


def _json(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n"


def _archive(parts: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in parts.items():
            entry = tarfile.TarInfo(f"sidecar-support/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
