"""`sidecar flow list`: the workflows there are."""

from __future__ import annotations

import os

from sidecar import layout
from sidecar.catalog import listing
from sidecar.cli import listed


def main(arguments: list[str], project: str | None) -> int:
    """List them; files that define none are reported, and hide no other."""
    options = listed.parser("flow", "workflows").parse_args(arguments)
    rows, problems = listing.workflows(layout.find_root(project, os.environ), options.source)
    return listed.tell("workflows", rows, problems, options)
