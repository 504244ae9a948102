"""What a boundary costs: the look at all signal files of a run."""

from __future__ import annotations

import tempfile
import timeit
from pathlib import Path
from statistics import median

from benchmarks.report import Figure
from sidecar.model import ulid
from sidecar.signals.board import Board, SignalScope


def measure(*, quick: bool) -> list[Figure]:
    """Six names in three directories, absent, as they almost always are."""
    with tempfile.TemporaryDirectory() as root:
        run_id = ulid.new()
        state = Path(root) / ".swissarmyhammer"
        directories = (state, state / "workspaces" / "ws", state / "runs" / run_id)
        for directory in directories:
            directory.mkdir(parents=True, exist_ok=True)
        board = Board(SignalScope(run_id, tuple(map(str, directories))))
        number = 2_000 if quick else 20_000
        rounds = timeit.repeat(board.any_present, number=number, repeat=9)
    return [Figure("boundary: all three directories, both signals", median(rounds) / number * 1e6, "µs", limit=10)]
