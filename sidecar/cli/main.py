"""The command line besides `stop` and `abort`: dispatch, help, and the one place where an error becomes a code."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

from sidecar import __version__
from sidecar.errors import SidecarError

FAILED = 2  # bad usage, too
# What each command is for; the module of the same name in this package has it. `stop` and `abort` never come this
# way: sidecar.__main__ sends them to stop_abort.
COMMANDS = {
    "stop": "let the current iteration finish, then end the run",
    "abort": "end runs now, with every agent and command",
    "agent": "list agents, or run one: sidecar agent run claude 'fix the build'",
    "validate": "check workflows: every problem at once, with its place",
    "schema": "the JSON Schema of workflow files, for editors",
    "graph": "a picture of a workflow's steps and data",
    "doctor": "what is in force here, and what it cannot do",
}


def main(arguments: list[str]) -> int:
    """Run one command; the result is the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        return int(import_module(f"sidecar.cli.{options.command}").main(options.arguments, options.project))
    except SidecarError as error:
        print(f"sidecar: {error}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # `… | head`: nobody reads on, and the interpreter must not complain about it at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    told = "\n".join(f"  {name:<{width}}  {purpose}" for name, purpose in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="sidecar",
        usage="sidecar [--project DIR] COMMAND ...",
        description="Run AI coding agents unattended, and be able to stop them.",
        epilog=f"commands:\n{told}\n\n`sidecar COMMAND --help` tells more about one.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sidecar {__version__}")
    parser.add_argument("--project", metavar="DIR", help="the project (default: found from the working directory)")
    parser.add_argument("command", choices=COMMANDS, nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser
