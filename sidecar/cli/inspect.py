"""Commands that only look: `validate`, `schema`, `graph`, `config`, `doctor` and `support-bundle`."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from sidecar import layout
from sidecar.cli.options import parser
from sidecar.errors import SidecarError
from sidecar.text import printable

if TYPE_CHECKING:
    from sidecar.analysis.validate import Finding
    from sidecar.service.doctor import DoctorFinding

OK, PROBLEMS, INVALID = 0, 1, 2
_MARKS = {"ok": " ", "note": "-", "problem": "!"}


def validate(arguments: list[str], project: str | None) -> int:
    """Print every problem of workflows as `file:line: message`."""
    options = parser("validate").parse_args(arguments)
    from sidecar.analysis.validate import check_all  # noqa: PLC0415 - pydantic, yaml and JavaScript
    from sidecar.catalog import workflows  # noqa: PLC0415
    from sidecar.state.script import Script  # noqa: PLC0415

    root = layout.find_root(project, os.environ)
    words = options.workflows or workflows.of_project(root)
    with Script(worker=False) as script:
        found = [_relative_finding(finding) for finding in check_all(root, words, script)]
    errors = sum(finding.severity == "error" for finding in found)
    if options.json:
        print(json.dumps({"valid": errors == 0, "findings": [asdict(finding) for finding in found]}, indent=1))
        return INVALID if errors else OK
    for finding in found:
        print(printable(str(finding), "�"))
    warnings = len(found) - errors
    parts = [_counted(len(words), "workflow"), _counted(errors, "problem")]
    print(", ".join(parts + ([_counted(warnings, "warning")] if warnings else [])))
    return INVALID if errors else OK


def _relative_finding(finding: Finding) -> Finding:
    """With a relative path, if the file is below the working directory."""
    relative = os.path.relpath(finding.file)
    return finding if relative.startswith(os.pardir) else replace(finding, file=relative)


def _counted(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def schema(arguments: list[str], _project: str | None) -> int:
    """Print the JSON Schema of workflow files."""
    parser("schema").parse_args(arguments)
    from sidecar.model import workflow  # noqa: PLC0415 - pydantic

    print(json.dumps(workflow.json_schema(), indent=2, ensure_ascii=False))
    return OK


def graph(arguments: list[str], project: str | None) -> int:
    """Print a picture of a workflow."""
    options = parser("graph").parse_args(arguments)
    from sidecar.analysis import drawing  # noqa: PLC0415 - pydantic and yaml
    from sidecar.catalog import workflows  # noqa: PLC0415

    root = layout.find_root(project, os.environ)
    definition = workflows.load(root, options.workflow)
    chosen = options.format or ("ascii" if sys.stdout.isatty() else "mermaid")
    print(drawing.FORMATS[chosen](drawing.picture(definition)), end="")
    return OK


def config(arguments: list[str], project: str | None) -> int:
    """`config show` and `config path`."""
    options = parser("config").parse_args(arguments)
    root = layout.find_root(project, os.environ)
    if options.action == "path":
        for whose, path in (("project", layout.project_config(root)), ("user", layout.user_config())):
            print(f"{whose:<8} {path}{'' if os.path.lexists(path) else '  (does not exist)'}")
        return OK
    from sidecar import config as settings  # noqa: PLC0415 - pydantic and yaml

    values = settings.load(root, os.environ).shown()
    origins = settings.origins(root, os.environ)
    if options.json:
        shown = {name: {"value": value, "from": origins[name]} for name, value in values.items()}
        print(json.dumps({"settings": shown}, indent=1, ensure_ascii=False))
        return OK
    width = max(map(len, values))
    for name, value in values.items():
        origin = origins[name]
        origin = os.path.relpath(origin, root) if origin.startswith(f"{root}/") else origin
        print(f"{name:<{width}}  {_setting_text(value):<24}  {origin}")
    return OK


def _setting_text(value: Any) -> str:
    if value is None:
        return "(not set)"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def doctor(arguments: list[str], project: str | None) -> int:
    """Print the findings about this project and machine."""
    options = parser("doctor").parse_args(arguments)
    import anyio  # noqa: PLC0415 - `--help` needs none of this

    from sidecar.service.doctor import findings  # noqa: PLC0415

    found = anyio.run(findings, layout.find_root(project, os.environ), dict(os.environ))
    problems = [finding for finding in found if finding.state == "problem"]
    if options.json:
        shown = {"ok": not problems, "findings": [finding.to_json() for finding in found]}
        print(json.dumps(shown, indent=1, ensure_ascii=False))
    else:
        _print_findings(found)
        print(f"\n{_counted(len(problems), 'problem')}")
    return PROBLEMS if problems else OK


def _print_findings(found: list[DoctorFinding]) -> None:
    topic = ""
    for finding in found:
        label = "" if finding.topic == topic else finding.topic
        topic = finding.topic
        print(_in_column(label, _MARKS[finding.state], finding.text))
        if finding.advice:
            print(_in_column("", " ", f"→ {finding.advice}"))


def _in_column(topic: str, mark: str, line: str) -> str:
    """One line for a pipe; on a terminal as many as it takes, in a column of their own."""
    head = f"{topic:<12}{mark} "
    line = printable(line)
    if not sys.stdout.isatty():
        return head + line
    width = max(40, shutil.get_terminal_size().columns)
    return textwrap.TextWrapper(width, head, " " * 16, break_long_words=False).fill(line)


def support_bundle(arguments: list[str], project: str | None) -> int:
    """Write the archive for a bug report."""
    options = parser("support-bundle").parse_args(arguments)
    import anyio  # noqa: PLC0415 - `--help` needs none of this

    from sidecar.service import support_bundle as bundle  # noqa: PLC0415

    path = options.output or time.strftime("sidecar-support-%Y%m%d-%H%M%S.tar.gz")
    data = anyio.run(bundle.pack, layout.find_root(project, os.environ), dict(os.environ))
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(file, "wb") as opened:
            opened.write(data)
    except OSError as error:
        raise SidecarError(f"cannot write {path}: {error.strerror}") from None
    print(f"{path}: read it before you send it; its README.txt says what is in it")
    return OK
