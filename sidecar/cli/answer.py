"""`sidecar answer`: answer the question that a paused run waits for, and go on with it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from sidecar.cli.outcome import BAD_USAGE
from sidecar.errors import InputError

if TYPE_CHECKING:
    from sidecar.store.db import Database
    from sidecar.store.journal import StoredRun


def main(arguments: list[str], project_option: str | None) -> int:
    """A wrong answer is refused before anything happens."""
    options = _parser().parse_args(arguments)
    from sidecar import config  # noqa: PLC0415
    from sidecar.cli import asking, detaching, executing, resume  # noqa: PLC0415 - everything that executes a run
    from sidecar.service.status import journal_with  # noqa: PLC0415
    from sidecar.state.script import Script  # noqa: PLC0415

    project = config.open_project(project_option)
    with journal_with(project.root, options.run) as (database, run):
        resume.refuse_busy(project, run)
        question = question_of(database, project.root, run)
        try:
            with Script(worker=False) as script:
                asking.checked(question, options.value, script)
        except ValueError as error:
            print(error, file=sys.stderr)  # often the author's own words: nothing around them
            return BAD_USAGE
    manner = executing.Manner(panel=not options.no_panel, quiet=options.quiet, json=options.json)
    if options.detach:
        return detaching.hand_over(project, run.run_id, manner, answer=options.value)
    given = executing.Given(answer=(question["step"], options.value))
    return executing.execute(project, run.run_id, manner, given)


def question_of(database: Database, root: str, run: StoredRun) -> dict[str, Any]:
    """What the run waits for; InputError where that is no answer."""
    from sidecar.service.status import describe  # noqa: PLC0415

    found = describe(database, root, run.run_id)
    needs: dict[str, Any] | None = found["needs"]
    if needs is not None and needs["kind"] == "answer":
        return needs
    hint = f"; to approve it: sidecar resume {run.run_id} --approve" if needs is not None else ""
    raise InputError(f"run {run.run_id} waits for no answer: it is {found['status']}{hint}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sidecar answer",
        description="Answer the question that a paused run waits for, and go on with it.",
        epilog="Exit code: as of `sidecar flow run`; 2 for an answer that is not taken.",
    )
    parser.add_argument("run", metavar="RUN", help="its id, a part of it, `last`, or its workspace")
    parser.add_argument("value", metavar="VALUE", help="the answer, read as the question's type")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the result only")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--no-panel", action="store_true", help="lines, also where a live panel could be shown")
    parser.add_argument("--detach", action="store_true", help="let it go on without this terminal")
    return parser
