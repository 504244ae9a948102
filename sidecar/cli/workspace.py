"""`sidecar workspace`: make, list, show and clean the directories that iteration loops work in."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from sidecar.cli.options import parser
from sidecar.errors import InputError
from sidecar.text import age, printable, table

if TYPE_CHECKING:
    from sidecar.config import Project

OK, DECLINED = 0, 1
_PURPOSES = {
    "INSTRUCTIONS.md": "what is wanted: you write it",
    "TODO.md": "what is left: the agent keeps it",
    ".status.json": "how far it is: the agent writes it, and only it can end the loop",
}


def main(arguments: list[str], project_option: str | None) -> int:
    """One of the four."""
    options = parser("workspace").parse_args(arguments)
    from sidecar import config  # noqa: PLC0415 - pydantic, only for those who need it

    return int(_ACTIONS[options.action](config.open_project(project_option), options))


def _init(project: Project, options: argparse.Namespace) -> int:
    from sidecar.service import workspaces  # noqa: PLC0415

    target, made, kept = workspaces.init(project, options.name, _instructions(options.source))
    where = os.path.relpath(target.directory)
    print(f"Workspace {options.name}: {where}")
    for name in (*made, *kept):
        print(f"  {'made' if name in made else 'kept'}  {name:<16} {_PURPOSES[name]}")
    if options.source is None and workspaces.INSTRUCTIONS in made:
        print(f"\nWrite what you want into {where}/{workspaces.INSTRUCTIONS}, then:")
    print(f"\n  sidecar iterate {options.name}")
    return OK


def _instructions(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"cannot read {path}: it is not UTF-8 text") from None


def _list(project: Project, options: argparse.Namespace) -> int:
    from sidecar.service import workspaces  # noqa: PLC0415
    from sidecar.service.status import journal_of  # noqa: PLC0415 - SQLite

    with journal_of(project.root) as database:
        found = [workspaces.summary(project, name, database) for name in workspaces.names(project)]
    if options.json:
        _print_json({"workspaces": found})
    elif not found:
        print("no workspaces yet: sidecar workspace init NAME")
    else:
        _print_table([("NAME", "PROGRESS", "LAST RUN", "SIGNALS"), *map(_row, found)])
    return OK


def _show(project: Project, options: argparse.Namespace) -> int:
    from sidecar.service import workspaces  # noqa: PLC0415
    from sidecar.service.status import journal_of  # noqa: PLC0415

    with journal_of(project.root) as database:
        found = workspaces.details(project, options.name, database)
    if options.json:
        _print_json(found)
    else:
        for name, told in _facts(found):
            _print(f"{name + ':':<14}{told}" if name else f"{'':<14}{told}")
    return OK


def _clean(project: Project, options: argparse.Namespace) -> int:
    from sidecar.service import workspaces  # noqa: PLC0415

    target = workspaces.named(project, options.name)
    workspaces.refuse_live(target)  # before anybody is asked
    left = workspaces.leftovers(target.directory)
    if not left:
        print(f"nothing to clean in {os.path.relpath(target.directory)}")
        return OK
    if not options.force and not _agreed(left, target.directory):
        print("nothing was removed")
        return DECLINED
    for name in workspaces.clean(target, left):
        print(f"removed {name}")
    return OK


def _agreed(names: list[str], directory: str) -> bool:
    if not sys.stdin.isatty():
        raise InputError(f"{', '.join(names)} in {directory}: --force removes them without asking")
    print(f"In {os.path.relpath(directory)}:")
    for name in names:
        print(f"  {name}")
    try:
        return input("Remove them? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


# --- in words


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    if found["problem"] is not None:
        return found["name"], "-", "-", found["problem"]
    return found["name"], _progress(found["status"]), _last(found["last_run"]), _asked(found["signals"])


def _progress(status: dict[str, Any]) -> str:
    from sidecar.text import share  # noqa: PLC0415

    if status["problem"]:
        return "unusable .status.json"
    if status["complete"]:
        return "complete"
    if status["percent"] is not None:
        return f"{status['percent']:g}%"
    if status["completed"] is not None and status["total"]:
        return share(status["completed"], status["total"])
    return "not begun" if not status["completed"] else f"{status['completed']} done"


def _last(run: dict[str, Any] | None) -> str:
    return f"{run['status']} {run['run_id']}, {age(run['started_at'], time.time())} ago" if run is not None else "-"


def _asked(signals: list[dict[str, Any]]) -> str:
    return ", ".join(f"{signal['signal']} ({signal['reason']})" for signal in signals) or "-"


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    status = found["status"]
    written = f", written {age(status['written_at'], time.time())} ago" if status["written_at"] else ""
    instructions = {"ready": "written", "missing": "missing", "template": "still the template"}
    facts = [
        ("workspace", found["name"]),
        ("directory", found["path"]),
        ("instructions", instructions[found["instructions"]]),
        ("progress", _progress(status) + (f": {status['problem']}" if status["problem"] else "") + written),
        ("summary", status["summary"]),
        ("mode", found["mode"]),
        ("files", " ".join(found["files"])),
    ]
    facts += [("runs" if number == 0 else "", _run_text(run)) for number, run in enumerate(found["runs"])]
    facts += [
        ("signal", f"{signal['signal']} since {signal['since']}: {signal['reason']}") for signal in found["signals"]
    ]
    facts += [
        ("last " + receipt["signal"], f"{receipt['state']}: {receipt['reason']}, {receipt['survivors']} survivors")
        for receipt in found["receipts"]
    ]
    return [(name, told) for name, told in facts if told]


def _run_text(run: dict[str, Any]) -> str:
    reason = f": {run['reason']}" if run["reason"] and run["reason"] != run["status"] else ""
    return f"{run['run_id']} {run['workflow']}, {age(run['started_at'], time.time())} ago, {run['status']}{reason}"


def _print_table(rows: list[tuple[str, ...]]) -> None:
    for line in table(rows):
        _print(line)


def _print(text: str) -> None:
    """Agents wrote some of it: nothing in it may act on a terminal."""
    print(printable(text).rstrip())


def _print_json(found: dict[str, Any]) -> None:
    print(json.dumps(found, indent=1, ensure_ascii=False))


_ACTIONS = {"init": _init, "list": _list, "show": _show, "clean": _clean}
