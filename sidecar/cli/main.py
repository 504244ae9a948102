"""The command line besides `stop` and `abort`: dispatch, help, and the one place where an error becomes a code."""

from __future__ import annotations

import argparse
import io
import os
import sys
from importlib import import_module

from sidecar import __version__, layout
from sidecar.cli import shortcuts
from sidecar.cli.commands import COMMANDS, TAKEN
from sidecar.errors import REPORTED, SidecarError
from sidecar.text import wrapped

FAILED, INTERRUPTED = 2, 130  # failed: bad usage, too
_RUN = ("flow", "agent", "prompt", "resume", "answer", "redirect", "own")  # functions of one module


def main(arguments: list[str]) -> int:
    """Run one command; the result is the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that knows ASCII only shows `?`, and no traceback
            stream.reconfigure(errors="replace")
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.help or options.command is None:
        parser.epilog = _epilog(options.project)
        parser.print_help()
        return 0
    try:
        command, rest = _meant(options.command, options.arguments, options.project)
        module, name = ("run", command) if command in _RUN else (command.replace("-", "_"), "main")
        if command == "logs":
            module, name = "status", "logs"
        code = int(getattr(import_module(f"sidecar.cli.{module}"), name)(rest, options.project))
        sys.stdout.flush()  # what cannot be written is an error of ours, and not one of the interpreter's end
        return code
    except REPORTED as error:
        print(f"sidecar: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # of `… | head`, where nobody reads on
            where = f"{error.filename}: " if error.filename is not None else "cannot write: "
            print(f"sidecar: {where}{error.strerror or error}", file=sys.stderr)
        # The interpreter must not complain at its end about what is left to write.
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


def _meant(word: str, arguments: list[str], project: str | None) -> tuple[str, list[str]]:
    """The command and its arguments: a shortcut stands for `flow run NAME` or the like."""
    if word in TAKEN:
        return word, arguments
    known = shortcuts.known(layout.find_root(project, os.environ), TAKEN)
    if word in known:
        command, name = known[word]
        return command, ["run", name, *arguments]
    from difflib import get_close_matches  # noqa: PLC0415 - only for who mistypes

    near = get_close_matches(word, [*COMMANDS, *known], 3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "`sidecar --help` lists them"
    raise SidecarError(f"unknown command {word!r}; {hint}")


def _epilog(project: str | None) -> str:
    width = max(map(len, COMMANDS))
    told = ["commands:", *(wrapped(f"  {name:<{width}}  {purpose}", width + 4) for name, purpose in COMMANDS.items())]
    try:
        told += shortcuts.help_lines(layout.find_root(project, os.environ), TAKEN)
    except SidecarError as error:  # no project to have any
        told += ["", str(error)]
    return "\n".join([*told, "", "`sidecar COMMAND --help` tells more about one."])
