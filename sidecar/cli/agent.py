"""`sidecar agent`: list the agents there are, and run one, supervised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.cli import family, launching

if TYPE_CHECKING:
    from sidecar.catalog.agents import CatalogAgent

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
    return family.main(arguments, project, _HELP, {"list": _list, "run": _run})


def _list(arguments: list[str], project: str | None) -> int:
    from sidecar.cli import listed  # noqa: PLC0415

    def found(root: str) -> tuple[list[Any], list[str]]:
        from sidecar.catalog import agents  # noqa: PLC0415 - pydantic and yaml, only for those who need them

        return agents.listing(root)

    return listed.catalog("agent", arguments, project, found, _row)


def _row(agent: CatalogAgent) -> dict[str, Any]:
    from sidecar.catalog import listing  # noqa: PLC0415

    definition = agent.definition
    return {
        "name": agent.name,
        "description": definition.description,
        "source": agent.source,
        "adapter": definition.adapter,
        "parameters": [listing.described(one) for one in definition.declared],
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
    from sidecar import config  # noqa: PLC0415
    from sidecar.catalog import agents  # noqa: PLC0415
    from sidecar.cli import named_help  # noqa: PLC0415
    from sidecar.service import runs  # noqa: PLC0415

    project = config.open_project(project_option)
    agent = agents.find(project.root, options.name)
    if options.help:
        print("\n".join(named_help.of_agent(agent)))
        return OK
    directory = runs.workspace_inside(project, options.workspace) if options.workspace else None
    definition = runs.of_agent(agent.name, agent.definition.declared, directory)
    return launching.launch(project, definition, options, f"sidecar agent run {agent.name}", agent=agent)
