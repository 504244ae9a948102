"""A workflow in the language of Graphviz."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.engine.drawing.flow import flow

if TYPE_CHECKING:
    from sidecar.engine.drawing.flow import Edge, Node
    from sidecar.engine.picture import Picture

_SHAPES = {
    "start": "shape=oval",
    "end": "shape=oval",
    "step": "shape=box",
    "choice": "shape=diamond",
    "loop": "shape=hexagon",
    "parallel": "shape=box3d",
    "include": "shape=box, peripheries=2",
    "jump": "shape=cds",
    "raw": "shape=cylinder",
    "computed": 'shape=box, style="rounded"',
}


def draw(picture: Picture) -> str:
    """The picture as text for `dot`."""
    chart = flow(picture)
    lines = [f"digraph {_quoted(picture.title)} {{", '  node [fontname="sans-serif", fontsize=11];']
    lines.append('  edge [fontname="sans-serif", fontsize=10];')
    for group in chart.groups:
        lines += [f"  subgraph cluster_{group.name} {{", f"    label={_quoted(group.title)};"]
        lines += [f"    {_node(node)}" for node in group.nodes]
        lines.append("  }")
    lines += [f"  {_edge(edge)}" for edge in chart.edges]
    return "\n".join([*lines, "}"]) + "\n"


def _node(node: Node) -> str:
    return f"{node.name} [label={_quoted(*node.lines)}, {_SHAPES[node.shape]}];"


def _edge(edge: Edge) -> str:
    settings = ([f"label={_quoted(edge.word)}"] if edge.word else []) + (["style=dashed"] if edge.dotted else [])
    return f"{edge.source} -> {edge.target}" + (f" [{', '.join(settings)}]" if settings else "") + ";"


def _quoted(*lines: str) -> str:
    """One string. A backslash begins an escape there, `\\N` for the node's name among them."""
    return '"' + "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'
