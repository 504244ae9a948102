"""The command line besides `stop`, `abort` and `serve`: dispatch, help, shortcuts, and errors as exit codes."""

from __future__ import annotations

import argparse
import io
import os
import sys
from importlib import import_module

from sidecar import __version__, layout
from sidecar.cli import completion
from sidecar.cli.options import COMMANDS, TAKEN
from sidecar.errors import REPORTED, SidecarError
from sidecar.text import wrapped

FAILED, INTERRUPTED = 2, 130  # failed: bad usage, too
# Where a command is; the others are in the module of their name, as `main`.
_PLACES = {
    **dict.fromkeys(("flow", "agent", "prompt", "resume", "answer", "redirect", "own"), "run"),
    **dict.fromkeys(("validate", "schema", "graph", "config", "doctor", "support-bundle"), "inspect"),
    "logs": "status",
}


def main(arguments: list[str]) -> int:
    """Run one command; the result is the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that knows only ASCII shows `?`, and no traceback
            stream.reconfigure(errors="replace")
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.help or options.command is None:
        parser.epilog = _epilog(options.project)
        parser.print_help()
        return 0
    try:
        command, rest = _resolve(options.command, options.arguments, options.project)
        code = _run(command, rest, options.project)
        sys.stdout.flush()  # output that cannot be written is an error of ours, not of the interpreter's end
        return code
    except REPORTED as error:
        print(f"sidecar: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # of `… | head`, which reads no further
            where = f"{error.filename}: " if error.filename is not None else "cannot write: "
            print(f"sidecar: {where}{error.strerror or error}", file=sys.stderr)
        # The interpreter must not complain at its end about what it could not write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sidecar",
        usage="sidecar [--project DIR] COMMAND ...",
        add_help=False,
        description="Run AI coding agents unattended, and be able to stop them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this")
    parser.add_argument("--version", action="version", version=f"sidecar {__version__}")
    parser.add_argument("--project", metavar="DIR", help="the project (default: found from the working directory)")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _resolve(word: str, arguments: list[str], project: str | None) -> tuple[str, list[str]]:
    """The command and its arguments: a shortcut stands for `flow run NAME` or the like."""
    if word in TAKEN:
        return word, arguments
    known = completion.shortcuts(layout.find_root(project, os.environ))
    if word in known:
        command, name = known[word]
        return command, ["run", name, *arguments]
    from difflib import get_close_matches  # noqa: PLC0415 - only after a typing mistake

    near = get_close_matches(word, [*COMMANDS, *known], 3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "`sidecar --help` lists them"
    raise SidecarError(f"unknown command {word!r}; {hint}")


def _run(command: str, arguments: list[str], project: str | None) -> int:
    name = command.replace("-", "_")
    module = import_module(f"sidecar.cli.{_PLACES.get(command, name)}")
    return int(getattr(module, name if command in _PLACES else "main")(arguments, project))


def _epilog(project: str | None) -> str:
    width = max(map(len, COMMANDS))
    lines = ["commands:"]
    lines += [wrapped(f"  {name:<{width}}  {command.purpose}", width + 4) for name, command in COMMANDS.items()]
    try:
        lines += _shortcut_lines(layout.find_root(project, os.environ))
    except SidecarError as error:  # there is no project that could have any
        lines += ["", str(error)]
    return "\n".join([*lines, "", "`sidecar COMMAND --help` shows the options of a command."])


def _shortcut_lines(root: str) -> list[str]:
    """Every workflow, agent and prompt with its shortcut, by kind."""
    known = completion.shortcuts(root)
    width = max(map(len, known), default=0)
    lines: list[str] = []
    for command, kind in completion.KINDS:
        own = sorted((name, shortcut) for shortcut, (of, name) in known.items() if of == command)
        if own:
            lines += ["", f"{kind}:"]
        descriptions = completion.named(root, kind)
        for name, shortcut in own:
            about = descriptions[name]
            shown = f"{f'{about} ' if about else ''}(shortcut for '{command} run {name}')"
            lines.append(wrapped(f"  {shortcut:<{width}}  {shown}", width + 4))
    return lines
