"""`sidecar flow`: list the workflows there are, and run one."""

from __future__ import annotations

from functools import partial

from sidecar.cli import family, launching
from sidecar.cli.commands import COMMANDS
from sidecar.errors import NotFound

OK = 0
_HELP = """\
usage: sidecar flow list [--format table|json|yaml] [-v] [--source SOURCE]
       sidecar flow run NAME [VALUE…] [-p KEY=VALUE]… [OPTION…]
       sidecar flow NAME …           the same as `flow run NAME …`

List the workflows there are, or run one of them:

  sidecar flow list -v
  sidecar flow run build release -p jobs=4
  sidecar flow run build --dry-run

Workflows are YAML files in .swissarmyhammer/workflows/.
`sidecar flow run --help` tells all options, `sidecar flow run NAME --help`
what one workflow asks for.
"""


def main(arguments: list[str], project: str | None) -> int:
    """`flow list`, `flow run NAME …`, and `flow NAME …` for short."""
    return family.main(arguments, project, _HELP, {"list": _list, "run": _run})


def _list(arguments: list[str], project: str | None) -> int:
    from sidecar.cli import flow_list  # noqa: PLC0415

    return flow_list.main(arguments, project)


def _run(arguments: list[str], project_option: str | None) -> int:
    about = "Run a workflow: it obeys .stop and .abort files, and can be resumed whatever ends it."
    options = launching.parsed(launching.parser("flow", "workflow", about), arguments, "workflow")
    if options is None:
        return OK
    from sidecar import config  # noqa: PLC0415
    from sidecar.catalog import workflows  # noqa: PLC0415 - pydantic and yaml, only for those who need them
    from sidecar.cli import named_help  # noqa: PLC0415
    from sidecar.service import runs  # noqa: PLC0415

    project = config.open_project(project_option)
    try:
        definition = workflows.find(project.root, options.name)
    except NotFound as error:
        if options.name not in COMMANDS:
            raise
        raise NotFound(f"{error} (the command is `sidecar {options.name}`)") from None
    if options.help:
        print("\n".join(named_help.of_workflow(definition)))
        return OK
    check = partial(runs.find_workflow, project, definition.name)
    return launching.launch(project, definition, options, f"sidecar flow run {definition.name}", check)
