"""The few shapes that our SVG pictures are made of, and how much room a text needs."""

from __future__ import annotations

import unicodedata
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CHARACTER = 7.3  # the width of one, in a font of 12 in which all are equally wide
LINE = 16.0
_STYLE = """\
text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2933; }
text.title { font-size: 16px; font-weight: bold; } text.section { font-weight: bold; fill: #52606d; }
text.word { font-size: 11px; fill: #52606d; } text.strong { font-weight: bold; }
.box { fill: #ffffff; stroke: #52606d; } .choice { fill: #fff8e1; stroke: #b7791f; }
.loop { fill: #eef6ff; stroke: #2b6cb0; } .parallel, .include { fill: #f3ebff; stroke: #6b46c1; }
.end { fill: #1f2933; stroke: #1f2933; } .jump { fill: #f1f5f9; stroke: #52606d; }
.raw { fill: #f1f5f9; stroke: #52606d; } .computed { fill: #e6fffa; stroke: #2c7a7b; }
.frame { fill: #f7fbff; stroke: #2b6cb0; stroke-dasharray: 5 3; }
.way { fill: none; stroke: #52606d; } .data { fill: none; stroke: #2c7a7b; opacity: 0.7; }
"""


class Canvas:
    """Shapes, in the order in which they are painted."""

    def __init__(self) -> None:
        self.shapes: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, style: str, *, round_by: float = 4) -> None:
        """A rectangle by its upper left corner."""
        size = f'width="{width:.1f}" height="{height:.1f}" rx="{round_by:g}"'
        self.shapes.append(f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" {size}/>')

    def pointed(self, x: float, y: float, width: float, height: float, style: str) -> None:
        """A box with points to the left and to the right, for what decides."""
        tip, middle = 12.0, y + height / 2
        corners = [
            (x, middle),
            (x + tip, y),
            (x + width - tip, y),
            (x + width, middle),
            (x + width - tip, y + height),
            (x + tip, y + height),
        ]
        points = " ".join(f"{left:.1f},{top:.1f}" for left, top in corners)
        self.shapes.append(f'<polygon class="{style}" points="{points}"/>')

    def dot(self, x: float, y: float) -> None:
        """Where something begins."""
        self.shapes.append(f'<circle class="end" cx="{x:.1f}" cy="{y:.1f}" r="5"/>')

    def text(self, x: float, y: float, text: str, style: str = "", *, middle: bool = False) -> None:
        """One line, by its left end or its middle."""
        anchor = ' text-anchor="middle"' if middle else ""
        kind = f' class="{style}"' if style else ""
        self.shapes.append(f'<text{kind} x="{x:.1f}" y="{y:.1f}"{anchor}>{escape(text)}</text>')

    def way(self, points: Sequence[tuple[float, float]], *, arrow: bool = True) -> None:
        """A line through points, with an arrow at its end."""
        path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.shapes.append(f'<path class="way" d="{path}"' + (' marker-end="url(#arrow)"' if arrow else "") + "/>")

    def curve(self, start: tuple[float, float], end: tuple[float, float], *, arrow: bool) -> None:
        """A curve to the right, for data."""
        (x, y), (to_x, to_y) = start, end
        bend = max((to_x - x) / 2, 20)
        path = f"M{x:.1f},{y:.1f} C{x + bend:.1f},{y:.1f} {to_x - bend:.1f},{to_y:.1f} {to_x:.1f},{to_y:.1f}"
        self.shapes.append(f'<path class="data" d="{path}"' + (' marker-end="url(#arrow)"' if arrow else "") + "/>")

    def document(self, width: float, height: float, title: str) -> str:
        """All of it as a file."""
        size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
        marker = (
            '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0,0 L8,4 L0,8 z" fill="#52606d"/></marker>'
        )
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f"<defs>{marker}</defs>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
        ]
        return "\n".join([*head, *self.shapes, "</svg>"]) + "\n"


def width_of(lines: Sequence[str]) -> float:
    """How wide the widest of some lines is. Some characters take two places."""
    widths = [sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in line) for line in lines]
    return max(widths, default=0) * CHARACTER
