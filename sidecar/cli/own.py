"""`sidecar own`: a detached owner, started by `--detach` for one run; people never call it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sidecar.agents.detach import Starter
    from sidecar.cli.executing import Given
    from sidecar.config import Project


def main(arguments: list[str], project_option: str | None) -> int:
    """Say when the run is ours, or why not, and execute it."""
    parser = argparse.ArgumentParser(prog="sidecar own", description="Execute one run, detached.")
    parser.add_argument("asked", metavar="JSON", type=json.loads, help="what a daemon would be asked")
    parser.add_argument("--tell", type=int, metavar="FD", required=True, help="where the starter listens")
    options = parser.parse_args(arguments)
    from sidecar.agents.detach import Starter  # noqa: PLC0415

    starter = Starter(options.tell)
    starter.let_go()
    try:
        return _execute(project_option, options.asked, starter)
    except Exception as error:
        starter.failed(str(error) or repr(error))
        raise


def _execute(project_option: str | None, asked: dict[str, Any], starter: Starter) -> int:
    from sidecar import config  # noqa: PLC0415
    from sidecar.cli import executing  # noqa: PLC0415

    project = config.open_project(project_option)
    given = _given(project, asked, starter)
    return executing.execute(project, asked["run_id"], executing.Manner(quiet=True), given)


def _given(project: Project, asked: dict[str, Any], starter: Starter) -> Given:
    from sidecar.cli import answer, executing, resume  # noqa: PLC0415
    from sidecar.service.status import journal_with  # noqa: PLC0415
    from sidecar.store.journal import Journal  # noqa: PLC0415

    answered: tuple[str, Any] | None = None
    definition = None
    with journal_with(project.root, asked["run_id"]) as (database, run):
        if asked["answer"] is not None and run.status == "paused":  # else it has ended meanwhile, and takes none
            answered = answer.question_of(database, project.root, run)["step"], asked["answer"]
        if asked["with_changes"]:
            definition = resume.changed(project, Journal(database), run)
    return executing.Given(
        feedback=asked["feedback"],
        approve=asked["approve"],
        answer=answered,
        definition=definition,
        request=asked["request"],
        begun=starter.begun,
    )
