"""`flow run`, `agent run` and `prompt run`: a definition, its inputs from the command line, and a run of it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.catalog.agents import CatalogAgent
    from sidecar.catalog.workflows import Definition
    from sidecar.config import Project
    from sidecar.service.runs import Prepared
    from sidecar.state.script import Script

OK = 0


def parser(command: str, thing: str, description: str) -> argparse.ArgumentParser:
    """The options that all of them have."""
    made = argparse.ArgumentParser(
        prog=f"sidecar {command} run",
        description=description,
        epilog="Exit code: 0 completed, stopped or paused, 2 failed, aborted or bad usage, 3 a limit was reached, "
        "130 after Ctrl-C, 143 after SIGTERM.",
        add_help=False,
    )
    add = made.add_argument
    add("name", metavar="NAME", nargs="?", help=f"which {thing}; `sidecar {command} list` shows them")
    add("values", metavar="VALUE", nargs="*", help="its required parameters, in order")
    add("-h", "--help", action="store_true", help=f"this, or with NAME: what that {thing} asks for")
    add("-p", "--param", metavar="KEY=VALUE", action="append", default=[], help="any parameter, by name")
    add("--var", metavar="KEY=VALUE", action="append", default=[], help="deprecated: the same as -p")
    add("-i", "--interactive", action="store_true", help="ask for the parameters that are missing")
    add("--dry-run", action="store_true", help="print what would be done, and do nothing")
    add("-q", "--quiet", action="store_true", help="print the result only")
    add("--detach", action="store_true", help="let it run without this terminal")
    add("--workspace", metavar="W", help="a workspace, or a directory inside the project, to bind the run to")
    add("--json", action="store_true", help="print one JSON object at the end")
    add("--json-events", action="store_true", help="print every event as a line of JSON")
    add("--no-panel", action="store_true", help="lines, also where a live panel could be shown")
    return made


def parsed(made: argparse.ArgumentParser, arguments: list[str], thing: str) -> argparse.Namespace | None:
    """The options; None where only help was wanted, and given."""
    options = made.parse_intermixed_args(arguments)
    if options.name is None:
        if not options.help:
            made.error(f"which {thing}? `{made.prog.rpartition(' ')[0]} list` shows them")
        made.print_help()
        return None
    return options


def launch(
    project: Project,
    definition: Definition,
    options: argparse.Namespace,
    command: str,
    check: Callable[[Script], object] = lambda _: None,
    *,
    agent: CatalogAgent | None = None,
) -> int:
    """Run it as the options say; the exit code.

    `check` refuses what cannot be run. `agent`: whose turn it is, where it is one; its answer is the result.
    """
    for entry in options.var:
        print(f"sidecar: --var is deprecated: write -p {entry}", file=sys.stderr)
    prepared = _prepared(project, definition, options, command, check, agent=agent)
    if options.dry_run:
        return _dry_run(project, prepared, as_json=options.json)
    return _begin(project, prepared, options, is_agent=agent is not None)


def _prepared(
    project: Project,
    definition: Definition,
    options: argparse.Namespace,
    command: str,
    check: Callable[[Script], object],
    *,
    agent: CatalogAgent | None,
) -> Prepared:
    """The definition, checked, with its inputs; what is wrong with these is told with the usage."""
    from sidecar.cli import asking, run_options  # noqa: PLC0415
    from sidecar.errors import InputError  # noqa: PLC0415
    from sidecar.service import runs  # noqa: PLC0415
    from sidecar.state.script import Script  # noqa: PLC0415

    parameters = definition.workflow.parameters
    filled = frozenset({runs.WORKSPACE} if options.workspace else ())
    with Script(worker=False) as script:  # nothing of the workflow is evaluated yet
        try:
            given = run_options.given(parameters, options.values, options.param, options.var, filled=filled)
            if options.interactive:
                given |= asking.answers(run_options.missing(parameters, given, filled), script)
            prepared = runs.prepare(project, definition, given, options.workspace)
            if agent is not None:  # what would fail in its first step
                asked = {name: value for name, value in prepared.inputs.items() if value is not None}
                agent.definition.assign(agent.name, asked)
        except InputError as error:
            raise run_options.with_usage(error, command, parameters) from None
        check(script)
    return prepared


def _dry_run(project: Project, prepared: Prepared, *, as_json: bool) -> int:
    from sidecar.analysis.plan import explain  # noqa: PLC0415
    from sidecar.state.script import Script  # noqa: PLC0415

    with Script() as script:
        found = explain(prepared.definition, prepared.inputs, script, project.root, project.settings)
    print(json.dumps(found.to_json(), indent=1, ensure_ascii=False) if as_json else "\n".join(found.lines()))
    return OK


def _begin(project: Project, prepared: Prepared, options: argparse.Namespace, *, is_agent: bool) -> int:
    from sidecar.cli import detaching, executing  # noqa: PLC0415
    from sidecar.service import owners, runs  # noqa: PLC0415
    from sidecar.store.db import open_database  # noqa: PLC0415
    from sidecar.store.journal import Journal  # noqa: PLC0415

    details: dict[str, Any] | None = owners.details(project.environment) if options.detach else None
    with open_database(project.root) as database:
        run_id = runs.create(project.root, Journal(database), prepared, details=details)
    manner = executing.Manner(
        panel=not options.no_panel,
        quiet=options.quiet,
        json=options.json,
        json_events=options.json_events,
        agent=is_agent,
    )
    if options.detach:
        return detaching.hand_over(project, run_id, manner)
    return executing.execute(project, run_id, manner)
