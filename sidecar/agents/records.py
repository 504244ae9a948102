"""Which agents run, noted beside their logs, so that a later sidecar finds them if their owner dies."""

from __future__ import annotations

import glob
import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from sidecar import layout
from sidecar.model.agent import AgentRecord

if TYPE_CHECKING:
    from collections.abc import Iterator


def note(log_path: str, record: AgentRecord) -> None:
    """An agent runs. Renamed into place: a reader never finds half a record."""
    path = _beside(log_path)
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        json.dump(asdict(record), file)
    os.replace(f"{path}.tmp", path)


def forget(log_path: str) -> None:
    """The agent's tree is empty."""
    try:
        os.unlink(_beside(log_path))
    except FileNotFoundError:
        return


def found(root: str) -> Iterator[tuple[str, AgentRecord]]:
    """Every record in the project, with the log that it stands beside."""
    for path in glob.iglob(os.path.join(glob.escape(layout.runs_directory(root)), "*", "agents", "*.json")):
        try:
            with open(path, encoding="utf-8") as file:
                yield path.removesuffix(".json") + ".log", AgentRecord(**json.load(file))
        except (OSError, ValueError, TypeError):  # gone meanwhile, or not written by us
            continue


def _beside(log_path: str) -> str:
    return log_path.removesuffix(".log") + ".json"
