"""One measured figure, and how a list of them is shown and saved."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """A measurement beside its baseline. `limit` is what we want at most; None: shown for comparison only."""

    name: str
    value: float
    unit: str
    baseline: str = ""
    baseline_value: float | None = None
    limit: float | None = None  # of the ratio where there is a baseline, else of the value
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times the baseline."""
        return self.value / self.baseline_value if self.baseline_value else None

    @property
    def within(self) -> bool | None:
        """Whether the limit is kept; None where there is none."""
        measured = self.ratio if self.ratio is not None else self.value
        return None if self.limit is None else measured <= self.limit


def lines(figures: Iterable[Figure]) -> Iterable[str]:
    """A table for people."""
    yield f"{'figure':<58} {'measured':>12} {'ratio':>8} {'wanted':>9}   baseline"
    for figure in figures:
        ratio = f"{figure.ratio:.2f}×" if figure.ratio is not None else ""
        wanted = "" if figure.limit is None else f"≤ {figure.limit:g}" + ("×" if figure.ratio is not None else "")
        mark = {True: " ", False: "✗", None: " "}[figure.within]
        value = f"{figure.value:,.2f}" if figure.value < 1000 else f"{figure.value:,.0f}"
        baseline = figure.baseline
        if figure.baseline_value is not None:
            baseline += f" ({figure.baseline_value:,.3g} {figure.unit})"
        note = f"  {figure.note}" if figure.note else ""
        yield f"{figure.name:<58} {value + ' ' + figure.unit:>12} {ratio:>8} {wanted:>9} {mark} {baseline}{note}"


def save(figures: Iterable[Figure], path: Path) -> None:
    """The same for programs."""
    rows = [{**asdict(figure), "ratio": figure.ratio, "within": figure.within} for figure in figures]
    machine = {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()}
    path.write_text(json.dumps({"machine": machine, "figures": rows}, indent=1) + "\n")
