"""`sidecar agent`: list the agents there are, and run one, supervised."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from sidecar import layout
from sidecar.errors import SidecarError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.catalog.agents import Agent
    from sidecar.model.parameters import Parameter
    from sidecar.service import AgentRun, Ended

OK, FAILED, LIMIT, INTERRUPTED, TERMINATED = 0, 2, 3, 130, 143
_HELP = """\
usage: sidecar agent list [--format table|json|yaml]
       sidecar agent run NAME [VALUE…] [-p KEY=VALUE]… [--workspace NAME] [-q] [--json]
       sidecar agent NAME …          the same as `agent run NAME …`

List the agents there are, or give one of them something to do:

  sidecar agent run claude "fix the build"
  sidecar agent run command -p 'command=["sh", "-c", "wc -w"]' "count these words"

More agents are YAML files in .swissarmyhammer/agents/. `sidecar agent run --help` tells all options.
"""
_EXIT_CODES = {"completed": OK, "stopped": OK, "failed": FAILED, "aborted": FAILED, "interrupted": INTERRUPTED}


def main(arguments: list[str], project: str | None) -> int:
    """`agent list`, `agent run NAME …`, and `agent NAME …` for short."""
    action = arguments[0] if arguments else "--help"
    if action in ("-h", "--help"):
        print(_HELP, end="")
        return OK
    if action == "list":
        return _list(arguments[1:], project)
    return _run(arguments[1:] if action == "run" else arguments, project)


def _list(arguments: list[str], project: str | None) -> int:
    parser = argparse.ArgumentParser(prog="sidecar agent list", description="List the agents there are.")
    parser.add_argument("--format", choices=("table", "json", "yaml"), default="table", help="default: table")
    options = parser.parse_args(arguments)
    from sidecar.catalog import agents  # noqa: PLC0415 - pydantic and yaml, only for those who need them

    listing = agents.listing(layout.find_root(project, os.environ))
    rows = [_row(agent) for agent in listing.agents]
    if options.format == "json":
        print(json.dumps({"agents": rows}, indent=1))
    elif options.format == "yaml":
        import yaml  # noqa: PLC0415

        print(yaml.safe_dump({"agents": rows}, sort_keys=False, allow_unicode=True), end="")
    else:
        _print_table(rows)
    for problem in listing.problems:
        print(problem, file=sys.stderr)
    return FAILED if listing.problems else OK


def _row(agent: Agent) -> dict[str, Any]:
    definition = agent.definition
    declared = [{"name": p.name, "type": p.type, "required": p.is_required} for p in definition.declared]
    return {
        "name": agent.name,
        "description": definition.description,
        "source": agent.source,
        "adapter": definition.adapter,
        "parameters": declared,
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        print(f"{row['name']:<{width}}  {row['source']:<8} {row['adapter']:<8} {row['description']}")


def _run_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sidecar agent run",
        description="Run an agent, supervised: it obeys .stop and .abort files, and leaves no process behind.",
        epilog="Exit code: 0 completed or stopped, 2 failed, aborted or bad usage, 3 a limit was reached, "
        "130 after Ctrl-C, 143 after SIGTERM.",
    )
    parser.add_argument("name", metavar="NAME", help="which agent; `sidecar agent list` shows them")
    parser.add_argument(
        "values", metavar="VALUE", nargs="*", help="its required parameters in order, mostly the prompt"
    )
    parser.add_argument(
        "-p", "--param", metavar="KEY=VALUE", action="append", default=[], help="any parameter, by name"
    )
    parser.add_argument("--workspace", metavar="NAME", help="run it in this workspace")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the final answer only")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    return parser


def _run(arguments: list[str], project_option: str | None) -> int:
    options = _run_parser().parse_intermixed_args(arguments)
    import anyio  # noqa: PLC0415

    from sidecar import config, service  # noqa: PLC0415
    from sidecar.catalog import agents  # noqa: PLC0415
    from sidecar.cli.agent_output import Printer  # noqa: PLC0415
    from sidecar.signals import targets  # noqa: PLC0415

    root = layout.find_root(project_option, os.environ)
    agent = agents.find(root, options.name)
    given = _given(agent, options.values, options.param)
    assignment = agent.definition.assign(agent.name, given)
    workspace = targets.workspace(root, options.workspace, os.environ).directory if options.workspace else None
    project = service.Project(root, config.load(root, os.environ), dict(os.environ), workspace)
    printer = Printer(quiet=options.quiet or options.json)
    run = service.AgentRun(project, assignment, printer.tell, lambda line: print(f"sidecar: {line}", file=sys.stderr))
    printer.on_lost = run.interrupt
    ended, signalled = anyio.run(_interruptible, run)
    if options.json:
        printer.answer(json.dumps(_object(ended), indent=1))
    if not options.json or printer.lost:
        printer.finish(ended)
    if printer.lost:
        return FAILED
    return TERMINATED if signalled == signal.SIGTERM else _exit_code(ended)


async def _interruptible(run: AgentRun) -> tuple[Ended, signal.Signals | None]:
    """The first Ctrl-C or SIGTERM ends the agent by the ladder, a second one at once."""
    import anyio  # noqa: PLC0415

    received: list[signal.Signals] = []

    async def obey() -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                received.append(number)
                run.interrupt(at_once=len(received) > 1)

    ended: Ended | SidecarError
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(obey)
        try:
            ended = await run.execute()
        except (SidecarError, OSError, ExceptionGroup) as error:  # raised outside of the group, to be recognised there
            ended = _understood(error, run.project.root)
        tasks.cancel_scope.cancel()
    if isinstance(ended, SidecarError):
        raise ended
    return ended, received[0] if received and ended.status == "interrupted" else None


def _understood(error: Exception, root: str) -> SidecarError:
    """What a person can mend, said in one line; anything else is a defect of ours and goes on as it is."""
    cause = error
    while isinstance(cause, ExceptionGroup) and len(cause.exceptions) == 1:
        cause = cause.exceptions[0]
    if isinstance(cause, SidecarError):
        return cause
    if isinstance(cause, OSError):
        where = cause.filename or layout.state_directory(root)
        return SidecarError(f"the run cannot be kept in {where}: {cause.strerror}")
    raise error


def _given(agent: Agent, values: list[str], params: Iterable[str]) -> dict[str, object]:
    """Parameters by name: `-p key=value` first, then the positionals fill what is required and not named yet."""
    declared = {parameter.name: parameter for parameter in agent.definition.declared}
    given: dict[str, object] = {}
    for word in params:
        name, equals, text = word.partition("=")
        if not equals:
            raise SidecarError(f"-p takes KEY=VALUE, not {word!r}")
        given[name] = _value(text, declared.get(name))
    open_places = [p for p in agent.definition.declared if p.is_required and p.name not in given]
    if len(values) > len(open_places):
        usage = " ".join(["sidecar agent run", agent.name, *(p.name.upper() for p in open_places)])
        raise SidecarError(f"too many words behind {agent.name}: put the text in quotes; usage: {usage}")
    return given | {p.name: _value(text, p) for p, text in zip(open_places, values, strict=False)}


def _value(text: str, parameter: Parameter | None) -> object:
    """Text stays text where text is declared; everything else is JSON."""
    if parameter is None or parameter.type == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise SidecarError(f"{parameter.name} is of type {parameter.type}, as JSON; this is not: {text}") from None


def _exit_code(ended: Ended) -> int:
    return LIMIT if ended.outcome and ended.outcome.limit else _EXIT_CODES[ended.status]


def _object(ended: Ended) -> dict[str, Any]:
    """The run for programs."""
    found: dict[str, Any] = {"run_id": ended.run_id, "status": ended.status, "reason": ended.reason}
    if ended.outcome is not None:
        process, summary = ended.outcome.ended, ended.outcome.summary
        found |= {
            "text": summary.text,
            "structured": summary.structured,
            "session_id": summary.session_id,
            "tokens": {"input": summary.tokens.input, "output": summary.tokens.output, "cached": summary.tokens.cached},
            "cost_usd": summary.cost_usd,
            "pid": process.pid,
            "exit_code": process.exit_code,
            "ended": process.reason,
            "rung": process.rung,
            "duration_s": round(process.duration_s, 3),
            "survivors": process.survivors,
        }
    return found
