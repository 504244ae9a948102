"""Pictures of workflows, one file for each format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.engine.drawing import ascii_art, dot, mermaid, svg

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.engine.picture import Picture

FORMATS: dict[str, Callable[[Picture], str]] = {
    "mermaid": mermaid.draw,
    "dot": dot.draw,
    "svg": svg.draw,
    "ascii": ascii_art.draw,
}
