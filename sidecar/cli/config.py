"""`sidecar config`: which settings hold here, and where each of them comes from."""

from __future__ import annotations

import argparse
import json
import os

from sidecar import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OK = 0


def main(arguments: list[str], project: str | None) -> int:
    """`config show` and `config path`."""
    parser = argparse.ArgumentParser(
        prog="sidecar config",
        description="Tell the settings: defaults, then the user's file, the project's, SIDECAR_* variables; the last "
        "one that says something holds.",
    )
    commands = parser.add_subparsers(dest="command", metavar="show|path", required=True)
    show = commands.add_parser("show", help="every setting with its value, and where that comes from")
    show.add_argument("--json", action="store_true", help="as JSON")
    commands.add_parser("path", help="the settings files, whether they are there or not")
    options = parser.parse_args(arguments)
    root = layout.find_root(project, os.environ)
    return _paths(root) if options.command == "path" else _show(root, as_json=options.json)


def _paths(root: str) -> int:
    for whose, path in (("project", layout.project_config(root)), ("user", layout.user_config())):
        print(f"{whose:<8} {path}{'' if os.path.lexists(path) else '  (not there)'}")
    return OK


def _show(root: str, *, as_json: bool) -> int:
    from sidecar import config  # noqa: PLC0415 - pydantic and yaml, only for those who need them

    values = config.load(root, os.environ).shown()
    origins = config.origins(root, os.environ)
    if as_json:
        told = {name: {"value": value, "from": origins[name]} for name, value in values.items()}
        print(json.dumps({"settings": told}, indent=1, ensure_ascii=False))
        return OK
    wide = max(map(len, values))
    for name, value in values.items():
        print(f"{name:<{wide}}  {_text(value):<24}  {_relative(origins[name], root)}")
    return OK


def _text(value: Any) -> str:
    if value is None:
        return "(not set)"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _relative(origin: str, root: str) -> str:
    return os.path.relpath(origin, root) if origin.startswith(f"{root}/") else origin
