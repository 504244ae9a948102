"""`sidecar graph`: a picture of a workflow's steps and of its data."""

from __future__ import annotations

import argparse
import os
import sys

from sidecar import layout

_FORMATS = ("mermaid", "dot", "svg", "ascii")


def main(arguments: list[str], project: str | None) -> int:
    """Draw on standard output."""
    parser = argparse.ArgumentParser(
        prog="sidecar graph", description="Draw a workflow: its steps, and how its computed fields follow from others."
    )
    parser.add_argument("workflow", metavar="NAME|FILE", help="which one")
    parser.add_argument(
        "--format", choices=_FORMATS, default=None, help="default: ascii on a terminal, mermaid elsewhere"
    )
    options = parser.parse_args(arguments)
    from sidecar.analysis import drawing  # noqa: PLC0415 - pydantic and yaml, only for those who need them
    from sidecar.catalog import workflows  # noqa: PLC0415

    root = layout.find_root(project, os.environ)
    definition = workflows.NamedWorkflow(root, options.workflow).load()
    chosen = options.format or ("ascii" if sys.stdout.isatty() else "mermaid")
    print(drawing.FORMATS[chosen](drawing.picture(definition)), end="")
    return 0
