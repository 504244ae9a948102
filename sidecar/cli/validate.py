"""`sidecar validate`: everything that is wrong with workflows, as `file:line: message`."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from sidecar import layout
from sidecar.text import printable

if TYPE_CHECKING:
    from sidecar.analysis.validate import Finding

OK, WRONG = 0, 2


def main(arguments: list[str], project: str | None) -> int:
    """Look, and tell; nothing is changed and nothing runs."""
    options = _parser().parse_args(arguments)
    from sidecar.analysis import validate  # noqa: PLC0415 - pydantic, yaml and JavaScript
    from sidecar.catalog import workflows  # noqa: PLC0415
    from sidecar.state.script import Script  # noqa: PLC0415

    root = layout.find_root(project, os.environ)
    places = [workflows.NamedWorkflow(root, word) for word in options.workflows] or workflows.of_project(root)
    with Script(worker=False) as script:
        found = [_near(finding) for finding in validate.check_all(root, places, script)]
    errors = sum(finding.severity == "error" for finding in found)
    if options.json:
        print(json.dumps({"valid": errors == 0, "findings": [asdict(finding) for finding in found]}, indent=1))
        return WRONG if errors else OK
    for finding in found:
        print(printable(str(finding), "�"))
    print(_summary(len(places), errors, len(found) - errors))
    return WRONG if errors else OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sidecar validate",
        description="Check workflows: their structure, expressions, state, and everything that they name.",
        epilog="Exit code: 0 without errors (there may be warnings), 2 with errors.",
    )
    parser.add_argument(
        "workflows", metavar="FILE|NAME", nargs="*", help="which ones; without any, all of the project's own"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object: valid, findings")
    return parser


def _near(finding: Finding) -> Finding:
    """With the file as the reader would name it: relative, where it is below the working directory."""
    relative = os.path.relpath(finding.file)
    return finding if relative.startswith(os.pardir) else replace(finding, file=relative)


def _summary(workflows: int, errors: int, warnings: int) -> str:
    parts = [_counted(workflows, "workflow"), _counted(errors, "problem")]
    return ", ".join(parts + ([_counted(warnings, "warning")] if warnings else []))


def _counted(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
