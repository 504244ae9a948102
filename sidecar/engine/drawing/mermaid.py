"""A workflow as a Mermaid flow chart, which many viewers of Markdown draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.engine.drawing.flow import flow

if TYPE_CHECKING:
    from sidecar.engine.drawing.flow import Edge, Node
    from sidecar.engine.picture import Picture

_SHAPES = {
    "start": ("([", "])"),
    "end": ("([", "])"),
    "step": ("[", "]"),
    "choice": ("{", "}"),
    "loop": ("{{", "}}"),
    "parallel": ("[[", "]]"),
    "include": ("[[", "]]"),
    "jump": (">", "]"),
    "raw": ("[(", ")]"),
    "computed": ("(", ")"),
}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:-_/=()[]+*!?'→…")


def draw(picture: Picture) -> str:
    """The picture as text for Mermaid."""
    chart = flow(picture)
    lines = ["---", f'title: "{_title(picture.title)}"', "---", "flowchart TD"]
    for group in chart.groups:
        lines.append(f'  subgraph {group.name}["{_escaped(group.title)}"]')
        lines += [f"    {_node(node)}" for node in group.nodes]
        lines.append("  end")
    lines += [f"  {_edge(edge)}" for edge in chart.edges]
    return "\n".join(lines) + "\n"


def _node(node: Node) -> str:
    opening, closing = _SHAPES[node.shape]
    return f'{node.name}{opening}"{"<br/>".join(map(_escaped, node.lines))}"{closing}'


def _edge(edge: Edge) -> str:
    arrow = "-.->" if edge.dotted else "-->"
    word = f'|"{_escaped(edge.word)}"|' if edge.word else ""
    return f"{edge.source} {arrow}{word} {edge.target}"


def _escaped(text: str) -> str:
    """Mermaid has entities with a number sign, and reads quotes, HTML and Markdown inside labels."""
    return "".join(
        character if character in _PLAIN or ord(character) > 0x2FF else f"#{ord(character)};" for character in text
    )


def _title(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
