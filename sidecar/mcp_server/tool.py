"""What a tool is: what clients are told of it, and what a call of it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mcp.types import Tool as Listed
from mcp.types import ToolAnnotations

from sidecar.mcp_server.port import Json, Service

if TYPE_CHECKING:
    from sidecar.mcp_server.schemas import Schema


@dataclass(frozen=True, slots=True)
class Site:
    """Where calls are served: the project, its use cases, and the run whose agents they come from, if any."""

    service: Service
    root: str
    run_id: str | None = None


Do = Callable[[Site, dict[str, Any]], Awaitable[Json]]
Effect = Literal["reads", "changes", "repeatable", "ends"]
_ANNOTATIONS: dict[Effect, ToolAnnotations] = {
    "reads": ToolAnnotations(read_only_hint=True, open_world_hint=False),
    "changes": ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False),
    "repeatable": ToolAnnotations(
        read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    ),
    "ends": ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False),
}
# What a run does is up to its workflow and its agents: anything.
_RUNS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. `effect`: what a call does to the world; `runs`: it starts something of that kind instead of `do`."""

    name: str
    description: str
    input: Schema
    output: Schema
    effect: Effect | None = None
    do: Do | None = None
    runs: Literal["flow", "agent", "prompt"] | None = None

    def listed(self, schema: Schema | None = None) -> Listed:
        """The tool as clients see it; `schema`: the input schema with the names that there are now."""
        return Listed(
            name=self.name,
            description=self.description,
            input_schema=schema or self.input,
            output_schema=self.output,
            annotations=_RUNS if self.effect is None else _ANNOTATIONS[self.effect],
        )
