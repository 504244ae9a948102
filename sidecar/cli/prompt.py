"""`sidecar prompt`: list the prompts there are, show one, or give it to the default agent."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from sidecar import layout
from sidecar.cli import family, launching

if TYPE_CHECKING:
    from sidecar.catalog.prompts import Prompt

OK = 0
_HELP = """\
usage: sidecar prompt list [--format table|json|yaml] [-v] [--source SOURCE]
       sidecar prompt show NAME [VALUE…] [-p KEY=VALUE]…
       sidecar prompt run NAME [VALUE…] [-p KEY=VALUE]… [--agent NAME] [OPTION…]
       sidecar prompt NAME …         the same as `prompt run NAME …`

List the prompts there are, print one with its values, or give it to an agent:

  sidecar prompt show review main
  sidecar prompt run review main --agent codex

Prompts are Markdown files in .swissarmyhammer/prompts/.
`sidecar prompt run --help` tells all options, `sidecar prompt run NAME --help`
what one prompt asks for.
"""


def main(arguments: list[str], project: str | None) -> int:
    """`prompt list`, `prompt show NAME …`, `prompt run NAME …`, and `prompt NAME …` for short."""
    return family.main(arguments, project, _HELP, {"list": _list, "run": _run, "show": _show})


def _list(arguments: list[str], project: str | None) -> int:
    from sidecar.cli import listed  # noqa: PLC0415

    def found(root: str) -> tuple[list[Any], list[str]]:
        from sidecar.catalog import prompts  # noqa: PLC0415 - pydantic and yaml, only for those who need them

        return prompts.listing(root)

    return listed.catalog("prompt", arguments, project, found, _row)


def _row(prompt: Prompt) -> dict[str, Any]:
    from sidecar.catalog import listing  # noqa: PLC0415

    return {
        "name": prompt.name,
        "title": prompt.title,
        "description": prompt.description,
        "source": prompt.source,
        "parameters": [listing.described(one) for one in prompt.parameters],
        "path": prompt.loaded_from,
    }


def _show(arguments: list[str], project: str | None) -> int:
    parser = argparse.ArgumentParser(
        prog="sidecar prompt show",
        description="Print a prompt with its values in it; without any of those that it needs, as it is written.",
    )
    parser.add_argument("name", metavar="NAME", help="which prompt; `sidecar prompt list` shows them")
    parser.add_argument("values", metavar="VALUE", nargs="*", default=[], help="its required parameters, in order")
    parser.add_argument("-p", "--param", metavar="KEY=VALUE", action="append", default=[], help="any of them, by name")
    options = parser.parse_intermixed_args(arguments)
    from sidecar.catalog import prompts  # noqa: PLC0415
    from sidecar.cli import run_options  # noqa: PLC0415
    from sidecar.errors import InputError  # noqa: PLC0415
    from sidecar.model.parameters import bind, render_template  # noqa: PLC0415

    prompt = prompts.find(layout.find_root(project, os.environ), options.name)
    try:
        given = run_options.given(prompt.parameters, options.values, options.param)
        missing = run_options.missing(prompt.parameters, given, frozenset())
        if missing and not given:
            told = ", ".join(one.name for one in missing)
            print(f"sidecar: shown as it is written: {told} not given", file=sys.stderr)
            text = prompt.body
        else:
            text = render_template(prompt.body, bind(prompt.parameters, given, f"prompt {prompt.name!r}"))
    except InputError as error:
        raise run_options.with_usage(error, f"sidecar prompt show {prompt.name}", prompt.parameters) from None
    print(text, end="" if text.endswith("\n") else "\n")
    return OK


def _run(arguments: list[str], project_option: str | None) -> int:
    about = "Give a prompt to an agent: the run obeys .stop and .abort files, and can be resumed whatever ends it."
    parser = launching.parser("prompt", "prompt", about)
    parser.add_argument("--agent", metavar="NAME", help="which agent (default: the setting default_agent)")
    options = launching.parsed(parser, arguments, "prompt")
    if options is None:
        return OK
    from sidecar import config  # noqa: PLC0415
    from sidecar.catalog import agents, prompts  # noqa: PLC0415
    from sidecar.cli import named_help  # noqa: PLC0415
    from sidecar.service import runs  # noqa: PLC0415

    project = config.open_project(project_option)
    prompt = prompts.find(project.root, options.name)
    if options.help:
        print("\n".join(named_help.of_prompt(prompt)))
        return OK
    agents.find(project.root, options.agent or project.settings.default_agent)  # before anything is begun
    definition = runs.of_prompt(prompt.name, prompt.parameters, options.agent)
    return launching.launch(project, definition, options, f"sidecar prompt run {prompt.name}")
