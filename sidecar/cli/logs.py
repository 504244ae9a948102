"""`sidecar logs`: what happened in a run, what one of its agents printed, or its events; also as they come."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Protocol

from sidecar import layout
from sidecar.errors import InputError
from sidecar.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sidecar.store.db import Database
    from sidecar.store.journal import StoredRun

OK = 0
_LOOK_S = 0.1  # SQLite tells nobody that something was written, and the writer may be any process
_PIECE = 64 * 1024


def main(arguments: list[str], project: str | None) -> int:
    """Print it; with `-f` until the run ends."""
    options = _parser().parse_args(arguments)
    from sidecar.cli.run_named import journal_with  # noqa: PLC0415 - SQLite
    from sidecar.engine.run_log import NAME  # noqa: PLC0415

    root = layout.find_root(project, os.environ)
    with journal_with(root, options.run) as (database, run):
        of_agent = options.agent is not None
        source = _agent_log(root, run, options.agent) if of_agent else os.path.join(_directory(root, run), NAME)
        show: _Shown = _JsonLines() if options.json and of_agent else _AsItCame()
        if options.json and not of_agent:
            news = _events(database, run, _as_json)
        elif os.path.exists(source) or of_agent:
            news = _pieces(source)
        else:  # a run that an agent drives has nobody who would write it
            news = _events(database, run, _as_text)
        while True:
            # In this order: what comes between the looks is found by the later one.
            goes_on = options.follow and _goes_on(database, root, run)
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
    parser.add_argument("run", metavar="RUN", help="its id, or the beginning of it")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--agent", metavar="N", type=int, help="what its N-th process printed")
    parser.add_argument("--json", action="store_true", help="events, or the lines of a process, as lines of JSON")
    return parser


def _goes_on(database: Database, root: str, run: StoredRun) -> bool:
    """Whether more can be expected. The journal alone does not know that an owner has died."""
    from sidecar.signals.liveness import is_live  # noqa: PLC0415
    from sidecar.store.journal import Journal  # noqa: PLC0415

    if is_live(root, run.run_id):
        return True
    now = Journal(database).run(run.run_id)
    return now.driver == "agent" and now.status == "running"


def _directory(root: str, run: StoredRun) -> str:
    return layout.run_directory(root, run.run_id)


def _agent_log(root: str, run: StoredRun, number: int) -> str:
    directory = os.path.join(_directory(root, run), "agents")
    path = os.path.join(directory, f"{number}.log")
    if not os.path.exists(path):
        try:
            known = sorted(int(name[:-4]) for name in os.listdir(directory) if name[:-4].isdigit())
        except OSError:
            known = []
        there = f"there is: {', '.join(map(str, known))}" if known else "it has started none"
        raise InputError(f"run {run.run_id} has no process {number}; {there}")
    return path


def _pieces(path: str) -> Callable[[], Iterator[str]]:
    """What was added to a file since the last time: whole lines, and at the end the rest."""
    from codecs import getincrementaldecoder  # noqa: PLC0415

    from sidecar.agents.log_file import FORMER  # noqa: PLC0415

    decoder = getincrementaldecoder("utf-8")("replace")
    file = _opened(path + FORMER if os.path.exists(path + FORMER) else path)

    def news() -> Iterator[str]:
        nonlocal file
        while True:
            while data := os.read(file, _PIECE):
                yield decoder.decode(data)
            if _is_at(path, file):
                return
            # The owner began another one. What this one got between the last look and that is read before it is left.
            following = _following(path, path + FORMER, file)
            if following is None:
                return
            while data := os.read(file, _PIECE):
                yield decoder.decode(data)
            os.close(file)
            file = following

    return news


def _following(path: str, former: str, file: int) -> int | None:
    """The part that comes next; not the newest one where the owner turned the log twice since the last look."""
    try:
        newest = _opened(path)
    except FileNotFoundError:  # it is just being turned
        return None
    try:
        before = _opened(former)  # in this order: whatever is turned meanwhile, the newest is no part behind the next
    except FileNotFoundError:  # somebody tidied up
        return newest
    if os.path.samestat(os.fstat(before), os.fstat(file)) or os.path.samestat(os.fstat(before), os.fstat(newest)):
        os.close(before)
        return newest
    os.close(newest)
    return before


def _opened(path: str) -> int:
    # Not blocking, and no link: an agent may have put something else there.
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _is_at(path: str, file: int) -> bool:
    """Whether the file is still the one at the path; also where there is none now."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except OSError:
        return True


def _events(database: Database, run: StoredRun, shown: Callable[[object], str | None]) -> Callable[[], Iterator[str]]:
    from sidecar.store.journal import Journal  # noqa: PLC0415

    journal, after = Journal(database), 0

    def news() -> Iterator[str]:
        nonlocal after
        for event in journal.events(run.run_id, after):
            after = event.seq
            text = shown(event)
            if text is not None:
                yield text

    return news


def _as_json(event: object) -> str:
    from sidecar.cli import event_json  # noqa: PLC0415

    return event_json.line(event)  # type: ignore[arg-type]


def _as_text(event: object) -> str | None:
    from sidecar.engine import run_log  # noqa: PLC0415

    told = run_log.line(event)  # type: ignore[arg-type]
    return None if told is None else told + "\n"


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
