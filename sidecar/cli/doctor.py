"""`sidecar doctor`: what is in force here, what is wrong, and what to do about it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from sidecar import layout
from sidecar.text import printable

if TYPE_CHECKING:
    from sidecar.service.finding import DoctorFinding

OK, PROBLEMS = 0, 1
_MARKS = {"ok": " ", "note": "-", "problem": "!"}


def main(arguments: list[str], project: str | None) -> int:
    """Tell; nothing is changed."""
    parser = argparse.ArgumentParser(
        prog="sidecar doctor",
        description="What is in force here, what is wrong, and what to do about it.",
        epilog="Exit code: 0 nothing is wrong, 1 something is; lines with `!` say what.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    import anyio  # noqa: PLC0415 - `--help` needs none of this

    from sidecar.service import checkup  # noqa: PLC0415

    found = anyio.run(checkup.findings, layout.find_root(project, os.environ), dict(os.environ))
    problems = [finding for finding in found if finding.state == "problem"]
    if options.json:
        told = {"ok": not problems, "findings": [finding.to_json() for finding in found]}
        print(json.dumps(told, indent=1, ensure_ascii=False))
    else:
        _print(found)
        print(f"\n{len(problems)} {'problem' if len(problems) == 1 else 'problems'}" if problems else "\nall is well")
    return PROBLEMS if problems else OK


def _print(found: list[DoctorFinding]) -> None:
    topic = ""
    for finding in found:
        label = "" if finding.topic == topic else finding.topic
        topic = finding.topic
        print(_wrapped(label, _MARKS[finding.state], finding.text))
        if finding.advice:
            print(_wrapped("", " ", f"→ {finding.advice}"))


def _wrapped(topic: str, mark: str, line: str) -> str:
    """One line for a pipe; on a terminal as many as it takes, in a column of their own."""
    head = f"{topic:<12}{mark} "
    line = printable(line)
    if not sys.stdout.isatty():
        return head + line
    width = max(40, shutil.get_terminal_size().columns)
    return textwrap.TextWrapper(width, head, " " * 16, break_long_words=False).fill(line)
