"""The program `sidecar`, also known as `sah`."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command line. `stop` and `abort` take a road of their own: they have to start almost like `touch`, and
    `serve` not much later."""
    _open_closed_streams()
    arguments = sys.argv[1:]
    project, rest = _leading_project(arguments)
    if rest and rest[0] in ("stop", "abort"):
        from sidecar.cli import stop_abort  # noqa: PLC0415 - one road must not pay for the other

        return stop_abort.main("stop" if rest[0] == "stop" else "abort", [*project, *rest[1:]], os.environ)
    if rest and rest[0] == "serve":  # a client waits for its first answer
        from sidecar.cli import serve  # noqa: PLC0415

        return serve.main([*project, *rest[1:]], None)
    if arguments[:1] == ["__complete"]:  # a shell waits at every tab
        from sidecar.cli import completion  # noqa: PLC0415

        return completion.complete(arguments[1:])
    from sidecar.cli.main import main as run  # noqa: PLC0415

    return run(arguments)


def _open_closed_streams() -> None:
    """A descriptor that our caller has closed would be that of the next file we open, and our output would go there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - until we end
            os.set_inheritable(stream.fileno(), True)  # the same goes for what we start
            setattr(sys, name, stream)


def _leading_project(arguments: list[str]) -> tuple[list[str], list[str]]:
    """`--project DIR` may stand before the command too."""
    if arguments[:1] == ["--project"]:
        return arguments[:2], arguments[2:]
    if arguments and arguments[0].startswith("--project="):
        return arguments[:1], arguments[1:]
    return [], arguments


if __name__ == "__main__":
    sys.exit(main())
