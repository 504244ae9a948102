"""The command line besides `stop` and `abort`: dispatch, help, and the one place where an error becomes a code."""

from __future__ import annotations

import argparse
import sys

from sidecar import __version__
from sidecar.errors import SidecarError

BAD_USAGE = 2


def main(arguments: list[str]) -> int:
    """Run one command; the result is the exit code."""
    try:
        return _run(arguments)
    except SidecarError as error:
        print(f"sidecar: {error}", file=sys.stderr)
        return BAD_USAGE


def _run(arguments: list[str]) -> int:
    parser = _parser()
    parser.parse_args(arguments)
    parser.print_help()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sidecar",
        description="Run AI coding agents unattended, and be able to stop them.",
        epilog="`sidecar COMMAND --help` tells more about one.",
    )
    parser.add_argument("--version", action="version", version=f"sidecar {__version__}")
    parser.add_argument("--project", metavar="DIR", help="the project (default: found from the working directory)")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    # Never parsed here: sidecar.__main__ sends them to stop_abort, which knows their options.
    commands.add_parser("stop", help="let the current iteration finish, then end the run", add_help=False)
    commands.add_parser("abort", help="end runs now, with every agent and command", add_help=False)
    return parser
