"""`sidecar own`: a detached owner, started by `--detach` for one run; people never call it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sidecar.agents.detach import Starter
    from sidecar.cli.executing import Given
    from sidecar.service.project import Project


def main(arguments: list[str], project_option: str | None) -> int:
    """Say when the run is ours, or why not, and execute it."""
    parser = argparse.ArgumentParser(prog="sidecar own", description="Execute one run, detached.")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--feedback")
    parser.add_argument("--answer", type=json.loads, help="as JSON")
    parser.add_argument("--with-changes", action="store_true")
    parser.add_argument("--tell", type=int, metavar="FD", required=True, help="where the starter listens")
    options = parser.parse_args(arguments)
    from sidecar.agents.detach import Starter  # noqa: PLC0415

    starter = Starter(options.tell)
    starter.let_go()
    try:
        return _execute(project_option, options, starter)
    except Exception as error:
        starter.failed(str(error) or repr(error))
        raise


def _execute(project_option: str | None, options: argparse.Namespace, starter: Starter) -> int:
    from sidecar.cli import executing  # noqa: PLC0415
    from sidecar.service import project as projects  # noqa: PLC0415

    project = projects.here(project_option)
    given = _given(project, options, starter)
    return executing.execute(project, options.run, executing.Manner(quiet=True), given)


def _given(project: Project, options: argparse.Namespace, starter: Starter) -> Given:
    from sidecar.cli import answer, executing, resume  # noqa: PLC0415
    from sidecar.cli.run_named import journal_with  # noqa: PLC0415
    from sidecar.store.journal import Journal  # noqa: PLC0415

    answered: tuple[str, Any] | None = None
    definition = None
    with journal_with(project.root, options.run) as (database, run):
        if options.answer is not None:
            answered = answer.question_of(database, project.root, run)["step"], options.answer
        if options.with_changes:
            definition = resume.changed(project, Journal(database), run)
    return executing.Given(options.feedback, answered, definition, starter.begun)
