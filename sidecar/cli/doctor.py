"""`sidecar doctor`: what is in force here, and what it cannot do."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from sidecar import layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.config import Settings


def main(arguments: list[str], project: str | None) -> int:
    """Tell; nothing is changed."""
    argparse.ArgumentParser(
        prog="sidecar doctor", description="What is in force here, and what it cannot do."
    ).parse_args(arguments)
    from sidecar import config  # noqa: PLC0415 - pydantic and yaml, only for those who need them

    root = layout.find_root(project, os.environ)
    settings = config.load(root, os.environ)
    for topic, lines in (
        ("project", [root]),
        ("python", [f"{sys.version.split()[0]}, {sys.executable}"]),
        ("signals", _signals(settings)),
        ("containment", _containment(settings)),
        ("agents", _agents(root)),
    ):
        for number, line in enumerate(lines):
            print(_wrapped(topic if number == 0 else "", line))
    return 0


def _wrapped(topic: str, line: str) -> str:
    """One line for a pipe; on a terminal as many as it takes, in a column of their own."""
    if not sys.stdout.isatty():
        return f"{topic:<13} {line}"
    width = max(40, shutil.get_terminal_size().columns)
    wrapper = textwrap.TextWrapper(width, f"{topic:<13} ", " " * 16, break_long_words=False)
    return wrapper.fill(line)


def _signals(settings: Settings) -> Iterator[str]:
    from sidecar.signals.sources import source_for  # noqa: PLC0415

    troubles: list[str] = []
    source = source_for(settings.watcher, troubles.append)
    yield f"noticed by {type(source).__name__.lower()}, and looked for every second besides"
    source.close()
    yield from troubles
    try:
        with open("/proc/sys/fs/inotify/max_user_watches") as file:
            yield f"inotify watches: at most {int(file.read()):,} directories per user"
    except (OSError, ValueError):
        return


def _containment(settings: Settings) -> Iterator[str]:
    from sidecar.agents import containment  # noqa: PLC0415

    report = containment.report(settings.containment)
    yield f"{report.in_force}" + (" (as set)" if report.forced else "")
    for name, why in report.why_not_better:
        yield f"not {name}: {why}"
    yield f"cannot catch: {report.cannot_catch}"


def _agents(root: str) -> Iterator[str]:
    from sidecar.agents.adapters import ADAPTERS  # noqa: PLC0415
    from sidecar.catalog import agents  # noqa: PLC0415
    from sidecar.errors import AgentFailed  # noqa: PLC0415

    listing = agents.listing(root)
    for agent in listing.agents:
        adapter = ADAPTERS[agent.definition.adapter]
        if isinstance(agent.definition.command, str):
            continue  # the caller says what to run
        try:
            assignment = agent.definition.assign(agent.name, {p.name: "" for p in agent.definition.declared})
            found = adapter.invocation(assignment, cwd=root, environment=os.environ).argv[0]
        except AgentFailed as error:
            found = str(error).partition(": ")[2]
        yield f"{agent.name}: {found}"
    yield from listing.problems
