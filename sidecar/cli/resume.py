"""`sidecar resume`: go on with a run, from its last boundary."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from sidecar.errors import DefinitionError, InputError, NotFound

if TYPE_CHECKING:
    from sidecar.catalog.workflows import Definition
    from sidecar.config import Project
    from sidecar.store.db import Database
    from sidecar.store.journal import Journal, StoredRun

OK, BUSY = 0, 1


def main(arguments: list[str], project_option: str | None) -> int:
    """Here, or detached."""
    options = _parser().parse_args(arguments)
    from sidecar import config  # noqa: PLC0415
    from sidecar.cli import detaching, executing  # noqa: PLC0415 - everything that executes a run
    from sidecar.engine import approval  # noqa: PLC0415
    from sidecar.service.status import journal_with, to_resume  # noqa: PLC0415
    from sidecar.store.journal import Journal as Journal_  # noqa: PLC0415

    project = config.open_project(project_option)
    with journal_with(project.root, options.run, to_resume) as (database, run):
        if options.run is None:
            _remark(f"run {run.run_id} ({run.workflow})")
        journal = Journal_(database)
        if run.status != "completed":
            refuse_busy(project, run)
        asker = project.environment.get("SIDECAR_RUN_ID")
        approval.check(journal, run, feedback=options.feedback, approve=options.approve, asker=asker)
        if run.status == "completed" and not options.json:
            unused = "; the feedback was not used" if options.feedback else ""
            print(f"run {run.run_id} was completed before: nothing is done again{unused}")
            return OK
        if run.status != "completed":
            definition = _definition(project, journal, run, with_changes=options.with_changes)
            if not begin_again(project, database, run, take_over=options.take_over):
                return BUSY
    manner = executing.Manner(
        panel=not options.no_panel, quiet=options.quiet, json=options.json, json_events=options.json_events
    )
    if run.status == "completed":
        return executing.execute(project, run.run_id, manner)
    if options.detach:
        said = {"feedback": options.feedback, "approve": options.approve}
        return detaching.hand_over(project, run.run_id, manner, **said, with_changes=definition is not None)
    given = executing.Given(feedback=options.feedback, approve=options.approve, definition=definition)
    return executing.execute(project, run.run_id, manner, given)


def refuse_busy(project: Project, run: StoredRun) -> None:
    """InputError where somebody executes the run now."""
    from sidecar.signals.run_lock import is_live  # noqa: PLC0415

    if run.driver == "server" and is_live(project.root, run.run_id):
        raise InputError(f"run {run.run_id} is being executed already: sidecar logs {run.run_id} -f")


def begin_again(project: Project, database: Database, run: StoredRun, *, take_over: bool = False) -> bool:
    """What stands there now is recorded, where the run had ended. False: somebody keeps it busy, which is said."""
    from sidecar.engine.execution import BUSY_S  # noqa: PLC0415
    from sidecar.service import runs  # noqa: PLC0415
    from sidecar.signals.run_lock import RunBusy, RunLock  # noqa: PLC0415
    from sidecar.store.journal import Handouts  # noqa: PLC0415
    from sidecar.store.journal import Journal as Journal_  # noqa: PLC0415

    journal, lock = Journal_(database), RunLock(project.root, run.run_id)
    try:
        lock.acquire(BUSY_S)
    except RunBusy:
        _remark(f"run {run.run_id} is busy: a call on it has not ended within {BUSY_S:g} s; try again")
        return False
    try:
        run = journal.run(run.run_id)
        runs.refuse_handed_out(Handouts(database), run, project.settings, take_over=take_over)
        for warning in runs.begin_again(project.root, journal, run, "server"):
            _remark(warning)
    finally:
        lock.release()
    return True


def changed(project: Project, journal: Journal, run: StoredRun) -> Definition | None:
    """The workflow as its files are now, where that is not what the run goes by. They may be broken, or gone."""
    from sidecar.catalog import workflows  # noqa: PLC0415
    from sidecar.engine.replay import definition_of  # noqa: PLC0415

    record = definition_of(journal, run)
    if record["path"].startswith("<"):  # made on the spot: it has no file
        return None
    found = workflows.find(project.root, run.workflow)
    return None if found.record() == record else found


def _definition(project: Project, journal: Journal, run: StoredRun, *, with_changes: bool) -> Definition | None:
    """The changed workflow, where it is wanted; where it is not, it is said that there is one."""
    try:
        found = changed(project, journal, run)
    except (DefinitionError, NotFound) as error:
        if with_changes:
            raise
        _remark(f"the workflow {run.workflow} cannot be read any more ({error}); the run goes on as it began")
        return None
    if found is None:
        return None
    if not with_changes:
        _remark(
            f"the workflow {run.workflow} has changed since the run began ({found.loaded_from}); it goes on with "
            "the one that it began with, --with-changes takes the new one"
        )
        return None
    from sidecar.service import runs  # noqa: PLC0415
    from sidecar.state.script import Script  # noqa: PLC0415

    with Script(worker=False) as script:
        return runs.find_workflow(project, run.workflow, script)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sidecar resume",
        description="Go on with a run that was stopped, paused, aborted or interrupted, or failed. What was completed "
        "is not done again.",
        epilog="Exit code: as of `sidecar flow run`.",
    )
    default = "the newest that can be resumed and that no agent drives"
    named = "its id, a part of it, `last`, or its workspace"
    parser.add_argument("run", metavar="RUN", nargs="?", help=f"{named} (default: {default})")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the result only")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--json-events", action="store_true", help="print every event as a line of JSON")
    parser.add_argument("--no-panel", action="store_true", help="lines, also where a live panel could be shown")
    parser.add_argument("--detach", action="store_true", help="let it run without this terminal")
    parser.add_argument("--approve", action="store_true", help="approve the stage or plan that the run waits with")
    parser.add_argument(
        "--feedback", metavar="TEXT", help="for the prompt of the next agent; without --approve it sends a stage back"
    )
    parser.add_argument(
        "--take-over", action="store_true", help="also where an outside agent has a step in hand: it is done again here"
    )
    parser.add_argument("--with-changes", action="store_true", help="go on with the workflow as its file is now")
    return parser


def _remark(text: str) -> None:
    print(f"sidecar: {text}", file=sys.stderr)
