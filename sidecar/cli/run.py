"""Commands that run something or continue a run: `flow`, `agent`, `prompt`, `resume`, `answer`, `redirect`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from sidecar import layout
from sidecar.cli.options import COMMANDS, parser
from sidecar.cli.parameters import given_values, missing, with_usage
from sidecar.errors import InputError, NotFound
from sidecar.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sidecar.catalog.workflows import Definition
    from sidecar.cli.foreground import OutputMode
    from sidecar.config import Project
    from sidecar.model.parameters import Parameter
    from sidecar.service.owners import StartOptions

    Action = Callable[[list[str], str | None], int]

OK, BUSY, BAD_USAGE = 0, 1, 2
_TERMINAL = 0
_FLOW = """\
usage: sidecar flow list [--format table|json|yaml] [-v] [--source SOURCE]
       sidecar flow run NAME [VALUE…] [-p KEY=VALUE]… [OPTION…]
       sidecar flow NAME …           the same as `flow run NAME …`

List workflows, or run one:

  sidecar flow list -v
  sidecar flow run build release -p jobs=4
  sidecar flow run build --dry-run

Workflows are YAML files in .swissarmyhammer/workflows/.
`sidecar flow run --help` shows all options, `sidecar flow run NAME --help`
the parameters of one workflow.
"""
_AGENT = """\
usage: sidecar agent list [--format table|json|yaml] [-v] [--source SOURCE]
       sidecar agent run NAME [VALUE…] [-p KEY=VALUE]… [OPTION…]
       sidecar agent NAME …          the same as `agent run NAME …`

List agents, or give one a task:

  sidecar agent run claude "fix the build"
  sidecar agent run command -p 'command=["wc", "-w"]' "count these words"

The answer goes to standard output, everything else to standard error.
More agents are YAML files in .swissarmyhammer/agents/.
`sidecar agent run --help` shows all options, `sidecar agent run NAME --help`
the parameters of one agent.
"""
_PROMPT = """\
usage: sidecar prompt list [--format table|json|yaml] [-v] [--source SOURCE]
       sidecar prompt show NAME [VALUE…] [-p KEY=VALUE]…
       sidecar prompt run NAME [VALUE…] [-p KEY=VALUE]… [--agent NAME] [OPTION…]
       sidecar prompt NAME …         the same as `prompt run NAME …`

List prompts, print one with its values, or give it to an agent:

  sidecar prompt show review main
  sidecar prompt run review main --agent codex

Prompts are Markdown files in .swissarmyhammer/prompts/.
`sidecar prompt run --help` shows all options, `sidecar prompt run NAME --help`
the parameters of one prompt.
"""


def flow(arguments: list[str], project: str | None) -> int:
    """`flow list`, `flow run NAME …`, and `flow NAME …` for short."""
    return _action(arguments, project, _FLOW, {"list": _list("flow"), "run": _run_flow})


def agent(arguments: list[str], project: str | None) -> int:
    """`agent list`, `agent run NAME …`, and `agent NAME …` for short."""
    return _action(arguments, project, _AGENT, {"list": _list("agent"), "run": _run_agent})


def prompt(arguments: list[str], project: str | None) -> int:
    """`prompt list`, `prompt show NAME …`, `prompt run NAME …`, and `prompt NAME …` for short."""
    return _action(arguments, project, _PROMPT, {"list": _list("prompt"), "run": _run_prompt, "show": _prompt_show})


def _action(arguments: list[str], project: str | None, help_text: str, actions: Mapping[str, Action]) -> int:
    """The action that is named; a NAME alone is run."""
    word = arguments[0] if arguments else "--help"
    if word in ("-h", "--help"):
        print(help_text, end="")
        return OK
    return actions[word](arguments[1:], project) if word in actions else actions["run"](arguments, project)


def _list(command: str) -> Action:
    from sidecar.cli import catalog  # noqa: PLC0415 - yaml or pydantic

    return partial(catalog.list_definitions, command)


# --- begin a run


def _run_flow(arguments: list[str], project_option: str | None) -> int:
    options = _parsed("flow", arguments)
    if options is None:
        return OK
    from sidecar.catalog import workflows  # noqa: PLC0415 - pydantic and yaml, only for those who need them
    from sidecar.config import open_project  # noqa: PLC0415
    from sidecar.service import runs  # noqa: PLC0415

    project = open_project(project_option)
    try:
        definition = workflows.find(project.root, options.name)
    except NotFound as error:
        if options.name not in COMMANDS:
            raise
        raise NotFound(f"{error} (the command is `sidecar {options.name}`)") from None
    if options.help:
        from sidecar.cli import catalog  # noqa: PLC0415

        print("\n".join(catalog.help_of_workflow(definition)))
        return OK
    return _launch(project, runs.find_workflow(project, definition.name), options, f"flow run {definition.name}")


def _run_agent(arguments: list[str], project_option: str | None) -> int:
    options = _parsed("agent", arguments)
    if options is None:
        return OK
    from sidecar.catalog import agents  # noqa: PLC0415
    from sidecar.config import open_project  # noqa: PLC0415
    from sidecar.service import runs  # noqa: PLC0415

    project = open_project(project_option)
    if options.help:
        from sidecar.cli import catalog  # noqa: PLC0415

        print("\n".join(catalog.help_of_agent(agents.find(project.root, options.name))))
        return OK
    definition = runs.agent_run(project, options.name, options.workspace)
    return _launch(project, definition, options, f"agent run {options.name}", is_agent=True)


def _run_prompt(arguments: list[str], project_option: str | None) -> int:
    options = _parsed("prompt", arguments)
    if options is None:
        return OK
    from sidecar.catalog import prompts  # noqa: PLC0415
    from sidecar.config import open_project  # noqa: PLC0415
    from sidecar.service import runs  # noqa: PLC0415

    project = open_project(project_option)
    if options.help:
        from sidecar.cli import catalog  # noqa: PLC0415

        print("\n".join(catalog.help_of_prompt(prompts.find(project.root, options.name))))
        return OK
    return _launch(
        project, runs.prompt_run(project, options.name, options.agent), options, f"prompt run {options.name}"
    )


def _prompt_show(arguments: list[str], project: str | None) -> int:
    options = parser("prompt show").parse_intermixed_args(arguments)
    from sidecar.catalog import prompts  # noqa: PLC0415
    from sidecar.model.parameters import bind, render_template  # noqa: PLC0415

    prompt = prompts.find(layout.find_root(project, os.environ), options.name)
    try:
        given = given_values(prompt.parameters, options.values, options.param)
        lacking = missing(prompt.parameters, given, frozenset())
        if lacking and not given:
            names = ", ".join(one.name for one in lacking)
            print(f"sidecar: shown without values, because these are missing: {names}", file=sys.stderr)
            text = prompt.body
        else:
            text = render_template(prompt.body, bind(prompt.parameters, given, f"prompt {prompt.name!r}"))
    except InputError as error:
        raise with_usage(error, f"sidecar prompt show {prompt.name}", prompt.parameters) from None
    print(text, end="" if text.endswith("\n") else "\n")
    return OK


def _parsed(command: str, arguments: list[str]) -> argparse.Namespace | None:
    """The options of `flow run` and its like; None if only help was wanted, and printed."""
    made = parser(f"{command} run")
    options = made.parse_intermixed_args(arguments)
    if options.name is None:
        if not options.help:
            made.error(f"NAME is missing; `sidecar {command} list` shows what there is")
        made.print_help()
        return None
    return options


def _launch(
    project: Project, definition: Definition, options: argparse.Namespace, command: str, *, is_agent: bool = False
) -> int:
    """Run it as the options say; the exit code. `is_agent`: what the agent answers is the result."""
    from sidecar.service import runs  # noqa: PLC0415

    for entry in options.var:
        _remark(f"--var is deprecated: write -p {entry}")
    parameters = definition.workflow.parameters
    filled = frozenset({runs.WORKSPACE} if options.workspace else ())
    try:
        given = given_values(parameters, options.values, options.param, options.var, filled=filled)
        if options.interactive:
            given |= _ask_for(missing(parameters, given, filled))
        prepared = runs.prepare(project, definition, given, options.workspace)
    except InputError as error:
        raise with_usage(error, f"sidecar {command}", parameters) from None
    if options.dry_run:
        plan = runs.plan(project, prepared)
        print(json.dumps(plan.to_json(), indent=1, ensure_ascii=False) if options.json else "\n".join(plan.lines()))
        return OK
    run_id = runs.begin(project, prepared, detached=options.detach)
    return _execute(project, run_id, options, is_agent=is_agent)


def _ask_for(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """A value for each, asked for at the terminal until it is valid. InputError without a terminal."""
    if not parameters:
        return {}
    if not os.isatty(_TERMINAL):
        raise InputError(f"{', '.join(one.name for one in parameters)} missing, and there is no terminal to ask")
    import anyio  # noqa: PLC0415

    values = anyio.run(_asked, [_question(parameter) for parameter in parameters])
    return {parameter.name: value for parameter, value in zip(parameters, values, strict=True)}


async def _asked(questions: list[dict[str, Any]]) -> list[Any]:
    from sidecar.display.person import TerminalSession  # noqa: PLC0415
    from sidecar.service.runs import accepted_answer  # noqa: PLC0415

    person = TerminalSession(fd=_TERMINAL)
    found: list[Any] = []
    problem: str | None = None
    while len(found) < len(questions):
        question = questions[len(found)]
        text = await person.ask(question, problem)
        if text is None:
            raise InputError(f"{question['prompt']}: no answer")
        try:
            found.append(accepted_answer(question, text))
            problem = None
        except ValueError as error:
            problem = str(error)
    return found


def _question(parameter: Parameter) -> dict[str, Any]:
    about = f" ({parameter.description})" if parameter.description else ""
    choices = None if parameter.choices is None else list(parameter.choices)
    return {"prompt": f"{parameter.name}{about}", "type": parameter.type, "choices": choices, "default": None}


# --- go on with a run


def resume(arguments: list[str], project_option: str | None) -> int:
    """Here, or detached, from its last boundary."""
    options = parser("resume").parse_args(arguments)
    import anyio  # noqa: PLC0415 - everything that executes a run

    from sidecar.config import open_project  # noqa: PLC0415
    from sidecar.service import runs, status  # noqa: PLC0415
    from sidecar.service.owners import StartOptions  # noqa: PLC0415
    from sidecar.signals.run_lock import RunBusy  # noqa: PLC0415

    project = open_project(project_option)
    given = StartOptions(options.feedback, options.approve, with_changes=options.with_changes)
    with status.journal_with(project.root, options.run, status.to_resume) as (database, run):
        if options.run is None:
            _remark(f"run {run.run_id} ({run.workflow})")
        asker = project.environment.get("SIDECAR_RUN_ID")
        resumed = partial(runs.resume, asker=asker, take_over=options.take_over, report=_remark)
        try:
            start = anyio.run(resumed, project, database, run, given)
        except RunBusy as error:
            _remark(str(error))
            return BUSY
    if start is None:
        if not options.json:
            unused = "; the feedback was not used" if options.feedback else ""
            print(f"run {run.run_id} is {runs.COMPLETED_BEFORE}{unused}")
            return OK
        options.detach = False  # there is nothing to execute, and only its result to print
    return _execute(project, run.run_id, options, start)


def answer(arguments: list[str], project_option: str | None) -> int:
    """A wrong answer is refused before anything happens."""
    options = parser("answer").parse_args(arguments)
    import anyio  # noqa: PLC0415

    from sidecar.config import open_project  # noqa: PLC0415
    from sidecar.service import runs, status  # noqa: PLC0415

    project = open_project(project_option)
    with status.journal_with(project.root, options.run) as (database, run):
        try:
            start = anyio.run(runs.answer, project, database, run.run_id, options.value)
        except runs.AnswerError as error:
            print(error, file=sys.stderr)  # often the author's own words: nothing around them
            return BAD_USAGE
    return _execute(project, run.run_id, options, start)


def redirect(arguments: list[str], project_option: str | None) -> int:
    """Leave the text for the run's owner."""
    options = parser("redirect").parse_args(arguments)
    from sidecar.config import open_project  # noqa: PLC0415
    from sidecar.service import runs, status  # noqa: PLC0415

    project = open_project(project_option)
    with status.journal_with(project.root, options.run) as (_, run):
        runs.redirect(project, run, options.text)
    print(f"Sent. Run {run.run_id} restarts its current step with your message added to the prompt.")
    return OK


def own(arguments: list[str], project_option: str | None) -> int:
    """`sidecar own`: the process of its own that `--detach` starts for one run; people never call it."""
    made = argparse.ArgumentParser(prog="sidecar own", description="Execute one run, detached.")
    made.add_argument("asked", metavar="JSON", type=json.loads, help="what a daemon would be asked")
    made.add_argument("--tell", type=int, metavar="FD", required=True, help="where the starter listens")
    options = made.parse_args(arguments)
    from sidecar.cli import foreground  # noqa: PLC0415
    from sidecar.config import open_project  # noqa: PLC0415
    from sidecar.service.owners import Starter, options_in  # noqa: PLC0415

    starter = Starter(options.tell)
    starter.let_go()
    asked = options.asked
    try:
        mode = foreground.OutputMode(quiet=True)
        start = {"request": asked["request"], "on_started": starter.begun}
        return foreground.execute(open_project(project_option), asked["run_id"], mode, options_in(asked), **start)
    except Exception as error:
        starter.failed(str(error) or repr(error))
        raise


def _execute(
    project: Project,
    run_id: str,
    options: argparse.Namespace,
    start: StartOptions | None = None,
    *,
    is_agent: bool = False,
) -> int:
    """Here, or where `--detach` has it executed; the exit code."""
    from sidecar.cli import foreground  # noqa: PLC0415

    mode = foreground.OutputMode(
        panel=not options.no_panel,
        quiet=options.quiet,
        json=options.json,
        json_events=getattr(options, "json_events", False),
        agent=is_agent,
    )
    if options.detach:
        return _give_away(project, run_id, mode, start)
    return foreground.execute(project, run_id, mode, start)


def _give_away(project: Project, run_id: str, mode: OutputMode, start: StartOptions | None) -> int:
    """Hand the run over, and print where to look."""
    import anyio  # noqa: PLC0415

    from sidecar.cli.foreground import CODES, unused  # noqa: PLC0415
    from sidecar.service import owners, status  # noqa: PLC0415

    with status.journal_with(project.root, run_id) as (database, _):
        is_executed = anyio.run(owners.give_away, project, database, run_id, start)
        found = status.describe(database, project.root, run_id)
    if mode.json:
        print(status.as_json(found, indent=1))
    elif not is_executed:
        print(f"run {run_id} was not executed: {found['status']}: {clean(found['reason'])}{unused(start)}")
    elif mode.quiet:
        print(run_id)
    else:
        print(f"run {run_id} continues without this terminal\n")
        print(f"  sidecar logs {run_id} -f")
        print(f"  sidecar status {run_id}")
        print(f"  sidecar stop --run {run_id}")
    return OK if is_executed else CODES[found["status"]]


def _remark(text: str) -> None:
    print(f"sidecar: {text}", file=sys.stderr)
