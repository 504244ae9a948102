"""Fields laid out from left to right: each stands to the right of everything that it follows from."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from sidecar.engine.drawing.canvas import width_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sidecar.engine.drawing.canvas import Canvas
    from sidecar.engine.picture import Field

_HEIGHT, _ROW, _BETWEEN, _PADDING = 26.0, 38.0, 70.0, 10.0


@dataclass(frozen=True, slots=True)
class Layers:
    """Names in columns, and the ways between them, column by column: what is on a way only is a bend, not a field."""

    columns: tuple[tuple[str, ...], ...]
    ways: tuple[tuple[str, ...], ...]
    bends: frozenset[str]

    @property
    def width(self) -> float:
        """How wide the drawing is."""
        return sum(map(self._width, self.columns)) + _BETWEEN * (len(self.columns) - 1)

    @property
    def height(self) -> float:
        """How high the drawing is."""
        return max(map(len, self.columns)) * _ROW

    def draw(self, canvas: Canvas, x: float, y: float) -> None:
        """With the upper left corner there."""
        places: dict[str, tuple[float, float, float]] = {}  # left, right, middle
        for column in self.columns:
            width = self._width(column)
            first = y + (self.height - len(column) * _ROW) / 2
            for row, name in enumerate(column):
                room = width if name in self.bends else width_of([name]) + 2 * _PADDING
                places[name] = (x, x + room, first + row * _ROW + _HEIGHT / 2)
            x += width + _BETWEEN
        for way in self.ways:
            for start, end in pairwise(way):
                _, from_x, from_y = places[start]
                to_x, _, to_y = places[end]
                canvas.curve((from_x, from_y), (to_x, to_y), arrow=end not in self.bends)
                if end in self.bends:
                    canvas.curve((to_x, to_y), (places[end][1], to_y), arrow=False)
        for name, (left, right, middle) in places.items():
            if name in self.bends:
                continue
            style = "computed" if name.startswith("computed.") else "raw"
            canvas.box(left, middle - _HEIGHT / 2, right - left, _HEIGHT, style, round_by=13)
            canvas.text((left + right) / 2, middle + 4, name, middle=True)

    def _width(self, column: Sequence[str]) -> float:
        return width_of([name for name in column if name not in self.bends]) + 2 * _PADDING


def layers(fields: Sequence[Field]) -> Layers:
    """Columns by the longest way from what is written; in each, near to what it follows from."""
    depth = _depths(fields)
    columns: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for name, level in depth.items():
        columns[level].append(name)
    before: dict[str, list[str]] = {}
    ways: list[tuple[str, ...]] = []
    bends: set[str] = set()
    for field in fields:
        for source in field.sources:
            way = [source]
            for level in range(depth[source] + 1, depth[field.name]):
                # A way past other columns has a row of its own there, so that no box stands on it.
                bend = f"{source}\n{field.name}\n{level}"
                columns[level].append(bend)
                bends.add(bend)
                way.append(bend)
            ways.append((*way, field.name))
            for start, end in pairwise(ways[-1]):
                before.setdefault(end, []).append(start)
    return Layers(tuple(_sorted(columns, before)), tuple(ways), frozenset(bends))


def _depths(fields: Sequence[Field]) -> dict[str, int]:
    """The column of every name. What is written stands just before its first reader."""
    depth: dict[str, int] = {}
    computed = {field.name for field in fields}
    for field in fields:  # in the order of computation: what it follows from has its depth already
        depth[field.name] = 1 + max((depth.get(source, 0) for source in field.sources), default=0)
    for field in fields:
        for source in field.sources:
            if source not in computed:
                depth[source] = min(depth.get(source, depth[field.name] - 1), depth[field.name] - 1)
    return depth


def _sorted(columns: list[list[str]], before: dict[str, list[str]]) -> Iterator[tuple[str, ...]]:
    rows: dict[str, float] = {}

    def wanted(name: str) -> float:
        near = [rows[one] for one in before.get(name, ()) if one in rows]
        return sum(near) / len(near) if near else 0.0

    for names in columns:
        names.sort(key=wanted)
        rows.update({name: row - (len(names) - 1) / 2 for row, name in enumerate(names)})
        yield tuple(names)
