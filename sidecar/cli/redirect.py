"""`sidecar redirect`: have what a run's agents do now done again, with a text added."""

from __future__ import annotations

import argparse
import os

from sidecar import layout
from sidecar.errors import InputError

OK = 0


def main(arguments: list[str], project: str | None) -> int:
    """Leave the text for the run's owner."""
    parser = argparse.ArgumentParser(
        prog="sidecar redirect",
        description="Tell the agents of a live run something: the step that they are at is done again, with the text.",
    )
    parser.add_argument("run", metavar="RUN", help="its id, a part of it, `last`, or its workspace")
    parser.add_argument("text", metavar="TEXT", help="what to say")
    options = parser.parse_args(arguments)
    from sidecar.engine import redirects  # noqa: PLC0415 - SQLite
    from sidecar.service.status import effective_status, journal_with  # noqa: PLC0415
    from sidecar.signals.run_lock import is_live  # noqa: PLC0415

    root = layout.find_root(project, os.environ)
    with journal_with(root, options.run) as (_, run):
        if not is_live(root, run.run_id) or run.driver != "server":
            way = f"; to go on with a word: sidecar resume {run.run_id} --feedback TEXT"
            if run.driver == "agent" and run.status == "running":
                way = "; workflow_resume with feedback tells it to the agent that drives the run, with its next step"
            raise InputError(
                f"run {run.run_id} is {effective_status(root, run)}: there is no agent of ours to redirect"
                + ("" if run.status == "completed" else way)
            )
    redirects.redirect(root, run.run_id, options.text)
    print(f"left for run {run.run_id}: what its agents do now is done again, with this added")
    return OK
