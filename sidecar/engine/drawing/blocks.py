"""Steps laid out from above to below: what is inside a step is drawn inside or below it, so no two ways ever cross."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.engine.drawing.canvas import LINE, width_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sidecar.engine.drawing.canvas import Canvas
    from sidecar.engine.picture import Box

_GAP = 24.0  # between two steps, for the arrow
_LANES = 26.0  # between two branches
_PADDING = 12.0
_STYLES = {"step": "box", "end": "jump", "break": "jump", "continue": "jump"}


@dataclass(frozen=True, slots=True)
class Block:
    """Something that takes room to the left and right of a line down the middle, along which the flow goes."""

    left: float
    right: float
    height: float
    goes_on: bool  # whether the flow leaves it below
    draw: Callable[[Canvas, float, float], None]  # by the line's x, and the upper end

    @property
    def width(self) -> float:
        return self.left + self.right


def sequence(boxes: Sequence[Box]) -> Block:
    """Steps after each other."""
    blocks = [_block(box) for box in boxes]

    def draw(canvas: Canvas, x: float, y: float) -> None:
        for index, block in enumerate(blocks):
            block.draw(canvas, x, y)
            y += block.height
            if index + 1 < len(blocks):
                if block.goes_on:
                    canvas.way([(x, y), (x, y + _GAP)])
                y += _GAP

    return Block(
        left=max((block.left for block in blocks), default=20),
        right=max((block.right for block in blocks), default=20),
        height=sum(block.height for block in blocks) + _GAP * max(len(blocks) - 1, 0),
        goes_on=all(block.goes_on for block in blocks),
        draw=draw,
    )


def _block(box: Box) -> Block:
    if box.kind == "choice":
        return _choice(box)
    if box.kind == "loop":
        return _loop(box)
    return _plain(box)


def lines_of(box: Box) -> list[str]:
    """What stands in a step's box."""
    lines = [f"{box.title} · {box.note}" if box.note else box.title]
    if box.task is not None:
        lines.append(f"for each {box.detail}: task {box.task}")
    elif box.detail:
        lines.append(f"{box.detail}?" if box.kind == "choice" else box.detail)
    if box.writes:
        lines.append(f"→ {', '.join(box.writes)}")
    return lines


def _size(lines: Sequence[str]) -> tuple[float, float]:
    return width_of(lines) + 2 * _PADDING, LINE * len(lines) + 10


def _write(canvas: Canvas, x: float, y: float, lines: Sequence[str]) -> None:
    for index, line in enumerate(lines):
        canvas.text(x, y + LINE * (index + 1), line, "strong" if index == 0 else "", middle=True)


def _plain(box: Box) -> Block:
    lines = lines_of(box)
    width, height = _size(lines)
    style = _STYLES.get(box.kind, box.kind)
    frame = 4.0 if style in ("parallel", "include") else 0.0  # two frames: there is more behind it

    def draw(canvas: Canvas, x: float, y: float) -> None:
        if frame:
            canvas.box(x - width / 2 - frame, y, width + 2 * frame, height + 2 * frame, style)
        canvas.box(x - width / 2, y + frame, width, height, style, round_by=height / 2 if style == "jump" else 4)
        _write(canvas, x, y + frame, lines)

    goes_on = box.kind not in ("end", "break", "continue")
    return Block(width / 2 + 4, width / 2 + 4, height + 2 * frame, goes_on, draw)


def _choice(box: Box) -> Block:
    lines = lines_of(box)
    width, height = _size(lines)
    width += 2 * _PADDING
    words = dict(box.branches)
    lanes = [(word, sequence(words.get(word, ()))) for word in ("yes", "no")]
    # From the line of the first lane to that of the second; the step itself stands in the middle above.
    apart = lanes[0][1].right + _LANES + lanes[1][1].left
    tallest = max(lane.height for _, lane in lanes)
    ends = any(lane.goes_on for _, lane in lanes)
    total = height + _GAP + tallest + (_GAP / 2 if ends else 0)

    def draw(canvas: Canvas, x: float, y: float) -> None:
        canvas.pointed(x - width / 2, y, width, height, "choice")
        _write(canvas, x, y, lines)
        top, bottom = y + height + _GAP, y + total
        for (word, lane), at in zip(lanes, (x - apart / 2, x + apart / 2), strict=True):
            has_steps = bool(words.get(word))
            canvas.way([(x, y + height), (x, top - 14), (at, top - 14), (at, top)], arrow=has_steps)
            canvas.text(at + (-24 if word == "yes" else 6), top - 4, word, "word")
            lane.draw(canvas, at, top)
            if lane.goes_on:
                canvas.way([(at, top + lane.height), (at, bottom), (x, bottom)], arrow=False)

    left = max(apart / 2 + lanes[0][1].left, width / 2)
    right = max(apart / 2 + lanes[1][1].right, width / 2)
    return Block(left, right, total, ends, draw)


def _loop(box: Box) -> Block:
    lines = lines_of(box)
    width, height = _size(lines)
    width += 2 * _PADDING
    body = sequence([inner for _, boxes in box.branches for inner in boxes])
    left = max(body.left + 34, width / 2 + _PADDING)
    right = max(body.right + 14, width / 2 + _PADDING)
    below = 22.0
    total = _PADDING + height + _GAP + body.height + below

    def draw(canvas: Canvas, x: float, y: float) -> None:
        canvas.box(x - left, y, left + right, total, "frame", round_by=8)
        head = y + _PADDING
        canvas.pointed(x - width / 2, head, width, height, "loop")
        _write(canvas, x, head, lines)
        top = head + height + _GAP
        canvas.way([(x, head + height), (x, top)])
        body.draw(canvas, x, top)
        if body.goes_on:
            bottom, back = top + body.height, x - left + 14
            # Up again on the left, and into the step that decides: below its point, or into its side.
            turn = [(x, bottom), (x, bottom + 10), (back, bottom + 10), (back, head + height / 2)]
            canvas.way([*turn, (x - width / 2, head + height / 2)])

    return Block(left, right, total, goes_on=True, draw=draw)
