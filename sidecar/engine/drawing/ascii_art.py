"""A workflow as a tree of text, for terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sidecar.engine.picture import Box, Picture


def draw(picture: Picture) -> str:
    """The picture, a line for each step and each field."""
    lines = [picture.title + (f": {picture.description}" if picture.description else "")]
    for section in picture.sections:
        lines += ["", section.title, *_boxes(section.boxes, "")]
    if picture.fields:
        width = max(len(field.name) for field in picture.fields)
        lines += ["", "data"]
        lines += _tree([f"{field.name:<{width}} <- {', '.join(field.sources)}" for field in picture.fields])
    return "\n".join(lines) + "\n"


def _tree(labels: Sequence[str]) -> Iterator[str]:
    for index, label in enumerate(labels):
        yield ("`- " if index == len(labels) - 1 else "|- ") + label


def _boxes(boxes: Sequence[Box], indent: str) -> Iterator[str]:
    for index, box in enumerate(boxes):
        last = index == len(boxes) - 1
        yield indent + ("`- " if last else "|- ") + _label(box)
        yield from _inside(box, indent + ("   " if last else "|  "))


def _inside(box: Box, indent: str) -> Iterator[str]:
    if box.kind != "choice":
        for _, boxes in box.branches:
            yield from _boxes(boxes, indent)
        return
    for index, (word, boxes) in enumerate(box.branches):
        last = index == len(box.branches) - 1
        yield indent + ("`- " if last else "|- ") + f"{word}:"
        yield from _boxes(boxes, indent + ("   " if last else "|  "))


def _label(box: Box) -> str:
    parts = [box.title]
    if box.note:
        parts.append(f"({box.note})")
    if box.task is not None:
        parts.append(f"=> task {box.task}, for each")
    if box.detail:
        parts.append(f"{box.detail}?" if box.kind == "choice" else box.detail)
    if box.writes:
        parts.append(f"-> {', '.join(box.writes)}")
    return " ".join(parts)
