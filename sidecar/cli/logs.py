"""`sidecar logs`: what happened in a run, what one of its agents printed, or its events; also as they come."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Protocol

from sidecar import layout
from sidecar.text import printable

OK = 0
_LOOK_S = 0.1  # SQLite tells nobody that something was written, and the writer may be any process


def main(arguments: list[str], project: str | None) -> int:
    """Print it; with `-f` until the run ends."""
    options = _parser().parse_args(arguments)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sidecar logs", description="What happened in a run, one line an event.")
    default = "the only live run, else the newest"
    named = "its id, a part of it, `last`, or its workspace"
    parser.add_argument("run", metavar="RUN", nargs="?", help=f"{named} (default: {default})")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--agent", metavar="N", type=int, help="what its N-th process printed")
    parser.add_argument("--json", action="store_true", help="events, or the lines of a process, as lines of JSON")
    return parser


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
            self._tell("".join([*self._begun, line]))
            self._begun = []
        if rest:
            self._begun.append(rest)

    def end(self) -> None:
        if self._begun:
            self._tell("".join(self._begun))

    def _tell(self, line: str) -> None:
        print(json.dumps({"line": line}))
