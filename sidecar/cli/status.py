"""`sidecar status` and `sidecar logs`: the runs, one run in detail, and what happened in one."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from sidecar import layout
from sidecar.cli.options import parser
from sidecar.text import age, printable, table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

OK = 0
_EVERY_S = 1.0
_LOOK_S = 0.1  # SQLite tells nobody that something was written, and the writer may be any process
_MOST_ROWS = 20  # on a screen
_MOST_RUNS = 200  # for programs
_EVERY_RUN = 1_000_000_000  # more than there are, and SQLite takes no number that is much greater
_CLEAR = "\033[H\033[J"
_HEADINGS = ("RUN", "STATUS", "WORKFLOW", "STEP", "ITERATION", "AGE", "REASON")


def main(arguments: list[str], project: str | None) -> int:
    """Look once, or again every second."""
    options = parser("status").parse_args(arguments)
    root = layout.find_root(project, os.environ)
    look = _one(root, options.run) if options.run else _all(root, _limit(options))
    try:
        while True:
            found, goes_on = look()
            _show(found, options)
            if not options.watch or not goes_on:
                return OK
            time.sleep(_EVERY_S)
    except KeyboardInterrupt:
        if not options.watch:
            raise
        return OK


def _limit(options: argparse.Namespace) -> int | None:
    """How many runs to show; None: all of them."""
    if options.all:
        return None
    return min(options.limit or (_MOST_RUNS if options.json else _MOST_ROWS), _EVERY_RUN)


def _show(found: dict[str, Any], options: argparse.Namespace) -> None:
    if options.json:
        from sidecar.service.status import as_json  # noqa: PLC0415

        told = {"runs": found["runs"]}
        print(as_json(told, indent=None if options.watch else 1), flush=True)
        return
    now = time.time()
    lines = _details(found, now) if options.run else _table(found["runs"], found["more"], now)
    clear = _CLEAR if options.watch and sys.stdout.isatty() else ""
    print(clear + "\n".join(_fitted(lines)), flush=True)


def _all(root: str, limit: int | None) -> Callable[[], tuple[dict[str, Any], bool]]:
    from sidecar.service.status import describe_all, journal_of  # noqa: PLC0415 - SQLite

    def look() -> tuple[dict[str, Any], bool]:
        with journal_of(root) as database:
            wanted = None if limit is None else limit + 1  # one more tells whether there are more
            runs = describe_all(database, root, limit=wanted) if database is not None else []
        shown = runs[:limit]
        return {"runs": shown, "more": len(runs) > len(shown)}, True

    return look


def _one(root: str, text: str) -> Callable[[], tuple[dict[str, Any], bool]]:
    from sidecar.service.status import describe, journal_with, last_lines  # noqa: PLC0415

    meant = text

    def look() -> tuple[dict[str, Any], bool]:
        nonlocal meant
        with journal_with(root, meant) as (database, run):
            meant = run.run_id  # the same one again, though a newer one may be the last by then
            found, last = describe(database, root, run.run_id), last_lines(database, run.run_id)
        return {"runs": [found], "last": last}, found["status"] in ("running", "pending")

    return look


def _table(runs: list[dict[str, Any]], more: bool, now: float) -> list[str]:
    if not runs:
        return ["no runs yet: sidecar flow run NAME"]
    lines = table([_HEADINGS, *(_row(run, now) for run in runs)])
    return [*lines, "and older ones: --all, or --limit N"] if more else lines


def _row(run: dict[str, Any], now: float) -> tuple[str, ...]:
    cells = (run["run_id"], run["status"], run["workflow"], run["step"] or "-", str(run["iteration"] or "-"))
    return (*cells, age(run["started_at"], now), _reason(run))


def _reason(run: dict[str, Any]) -> str:
    """Why it stands as it does; nothing where that only says the status again."""
    return "" if run["reason"] == run["status"] else run["reason"] or ""


def _details(found: dict[str, Any], now: float) -> list[str]:
    run = found["runs"][0]
    facts = [
        ("run", run["run_id"]),
        ("workflow", run["workflow"]),
        ("workspace", run["workspace"]),
        ("status", run["status"] + (f": {_reason(run)}" if _reason(run) else "")),
        ("step", run["step"]),
        ("iteration", run["iteration"]),
        ("started", f"{run['started_at']}, {age(run['started_at'], now)} ago"),
        ("ended", f"{run['ended_at']}, {age(run['ended_at'], now)} ago" if run["ended_at"] else None),
        ("limit", run["limit"]),
        ("cost", f"{run['cost_usd']:.4f} USD" if run["cost_usd"] is not None else None),
        ("tokens", run["tokens"] or None),
    ]
    lines = [f"{name + ':':<11}{value}" for name, value in facts if value is not None]
    lines += [
        f"{'agent:':<11}{agent['name']}, pid {agent['pid']}, for {age(agent['started_at'], now)}"
        for agent in run["agents"]
    ]
    lines += [
        f"{'signal:':<11}{signal['signal']} since {signal['since']}: {signal['reason']} ({signal['path']})"
        for signal in run["signals"]
    ]
    lines += _needs(run)
    return [*lines, "last events:", *(f"  {line}" for line in found["last"])] if found["last"] else lines


def _needs(run: dict[str, Any]) -> list[str]:
    needs = run["needs"]
    if not needs:
        return []
    if needs["kind"] == "answer":
        choices = f" (one of {', '.join(map(str, needs['choices']))})" if needs.get("choices") else ""
        return [f"{'asks:':<11}{needs['prompt']}{choices}", f"{'':<11}sidecar answer {run['run_id']} VALUE"]
    approve, send_back = f"sidecar resume {run['run_id']} --approve", "--feedback TEXT to send it back"
    lines = [f"{'submits:':<11}{needs['stage']}", f"{'':<11}{approve}, or {send_back}"]
    output = needs["output"]
    text = output if isinstance(output, str) else json.dumps(output, indent=1, ensure_ascii=False)
    return [*lines, *(f"  | {line}" for line in text.splitlines())]


def _fitted(lines: list[str]) -> list[str]:
    """As a terminal can show them: nothing in them acts, and none is longer than a line."""
    shown = [printable(line).rstrip() for line in lines]
    if not sys.stdout.isatty():
        return shown
    width = shutil.get_terminal_size().columns
    return [line if len(line) <= width else line[: width - 1] + "…" for line in shown]


def logs(arguments: list[str], project: str | None) -> int:
    """Print it; with `-f` until the run ends."""
    options = parser("logs").parse_args(arguments)
    from sidecar.service import status  # noqa: PLC0415 - SQLite

    root = layout.find_root(project, os.environ)
    with status.journal_with(root, options.run, status.to_look_at) as (database, run):
        if options.run is None:
            print(f"sidecar: run {run.run_id} ({run.workflow})", file=sys.stderr)
        of_agent = options.agent is not None
        show: _Shown = _JsonLines() if options.json and of_agent else _AsItCame()
        news = status.log_reader(database, root, run, agent=options.agent, events=options.json and not of_agent)
        while True:
            # In this order: what comes between the looks is found by the later one.
            goes_on = options.follow and status.may_go_on(database, root, run)
            for text in news():
                show.add(text)
            if not goes_on:
                show.end()
            sys.stdout.flush()
            if not goes_on:
                return OK
            time.sleep(_LOOK_S)


class _Shown(Protocol):
    """Where the texts go."""

    def add(self, text: str) -> None:
        """One more piece, which may begin and end anywhere."""

    def end(self) -> None:
        """Nothing more comes."""


class _AsItCame:
    def add(self, text: str) -> None:
        if sys.stdout.isatty():  # an agent prints what it likes, also what a terminal would obey
            text = printable(text, "�", keep="\n\t")
        print(text, end="")

    def end(self) -> None:
        pass


class _JsonLines:
    """An object a line. Only a newline ends one: the pieces do not, and `str.splitlines` knows ten other ends."""

    def __init__(self) -> None:
        self._begun: list[str] = []

    def add(self, text: str) -> None:
        *whole, rest = text.split("\n")
        for line in whole:
            self._print("".join([*self._begun, line]))
            self._begun = []
        if rest:
            self._begun.append(rest)

    def end(self) -> None:
        if self._begun:
            self._print("".join(self._begun))

    def _print(self, line: str) -> None:
        print(json.dumps({"line": line}))
