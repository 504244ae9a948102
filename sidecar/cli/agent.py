"""`sidecar agent`: list the agents there are, and run one, supervised."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sidecar import layout
from sidecar.cli import launching

if TYPE_CHECKING:
    from sidecar.catalog.agents import Agent

OK = 0
_HELP = """\
usage: sidecar agent list [--format table|json|yaml] [-v] [--source SOURCE]
       sidecar agent run NAME [VALUE…] [-p KEY=VALUE]… [OPTION…]
       sidecar agent NAME …          the same as `agent run NAME …`

List the agents there are, or give one of them something to do:

  sidecar agent run claude "fix the build"
  sidecar agent run command -p 'command=["wc", "-w"]' "count these words"

The answer goes to standard output, everything about it to standard error.
More agents are YAML files in .swissarmyhammer/agents/.
`sidecar agent run --help` tells all options, `sidecar agent run NAME --help`
what one agent asks for.
"""


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
    from sidecar.cli import listed  # noqa: PLC0415

    options = listed.parser("agent", "agents").parse_args(arguments)
    from sidecar.catalog import agents  # noqa: PLC0415 - pydantic and yaml, only for those who need them
    from sidecar.catalog.lookup import source_named  # noqa: PLC0415

    wanted = source_named(options.source) if options.source else None
    listing = agents.listing(layout.find_root(project, os.environ))
    rows = [_row(agent) for agent in listing.agents if wanted in (None, agent.source)]
    return listed.tell("agents", rows, list(listing.problems), options)


def _row(agent: Agent) -> dict[str, Any]:
    from sidecar.catalog import headings  # noqa: PLC0415

    definition = agent.definition
    return {
        "name": agent.name,
        "description": definition.description,
        "source": agent.source,
        "adapter": definition.adapter,
        "parameters": [headings.described(one) for one in definition.declared],
        "path": agent.path,
    }


def _run(arguments: list[str], project_option: str | None) -> int:
    about = (
        "Give an agent something to do: it obeys .stop and .abort files, leaves no process behind, and can be resumed "
        "whatever ends it. With --workspace it works there."
    )
    options = launching.parsed(launching.parser("agent", "agent", about), arguments, "agent")
    if options is None:
        return OK
    from sidecar.catalog import agents  # noqa: PLC0415
    from sidecar.cli import named_help  # noqa: PLC0415
    from sidecar.service import adhoc, starting  # noqa: PLC0415
    from sidecar.service import project as projects  # noqa: PLC0415

    project = projects.here(project_option)
    agent = agents.find(project.root, options.name)
    if options.help:
        print("\n".join(named_help.of_agent(agent)))
        return OK
    directory = starting.workspace_inside(project, options.workspace) if options.workspace else None
    definition = adhoc.of_agent(agent.name, agent.definition.declared, directory)
    return launching.launch(project, definition, options, f"sidecar agent run {agent.name}", agent=agent)
