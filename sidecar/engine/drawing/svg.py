"""A workflow as an SVG picture, laid out by ourselves: no other program is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.engine.drawing import blocks, layers
from sidecar.engine.drawing.canvas import Canvas, width_of

if TYPE_CHECKING:
    from sidecar.engine.drawing.blocks import Block
    from sidecar.engine.picture import Picture

_MARGIN = 24.0
_APART = 40.0  # between two sections
_TITLE = 30.0  # for a section's title


def draw(picture: Picture) -> str:
    """The sections beside each other, and the data below them."""
    canvas = Canvas()
    canvas.text(_MARGIN, _MARGIN + 12, picture.title, "title")
    canvas.text(_MARGIN, _MARGIN + 32, picture.description)
    width = max(width_of([picture.title]) * 1.4, width_of([picture.description])) + 2 * _MARGIN
    x, top, bottom = _MARGIN, _MARGIN + 60, _MARGIN + 60
    for section in picture.sections:
        block = blocks.sequence(section.boxes)
        room = max(block.width, width_of([section.title]) + 10)
        canvas.text(x, top, section.title, "section")
        bottom = max(bottom, _section(canvas, block, x + block.left, top + _TITLE))
        x += room + _APART
    width = max(width, x - _APART + _MARGIN)
    if picture.fields:
        data = layers.layers(picture.fields)
        canvas.text(_MARGIN, bottom + _APART, "data", "section")
        data.draw(canvas, _MARGIN, bottom + _APART + 14)
        bottom += _APART + 14 + data.height
        width = max(width, data.width + 2 * _MARGIN)
    return canvas.document(width, bottom + _MARGIN, picture.title)


def _section(canvas: Canvas, block: Block, x: float, y: float) -> float:
    """A section from its first dot to its last; where it ends below."""
    canvas.dot(x, y)
    canvas.way([(x, y + 5), (x, y + 24)])
    block.draw(canvas, x, y + 24)
    y += 24 + block.height
    if block.goes_on:
        canvas.way([(x, y), (x, y + 22)])
        canvas.box(x - 16, y + 22, 32, 8, "end")
        y += 30
    return y
