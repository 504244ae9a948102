"""Completion of arguments: the names and ids that there are and that begin with what was typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp.types import CompleteResult, Completion, PromptReference

from sidecar.catalog import prompts
from sidecar.errors import REPORTED
from sidecar.mcp_server import listing
from sidecar.service.owners import in_thread

if TYPE_CHECKING:
    from mcp.types import CompleteRequestParams

    from sidecar.mcp_server.calls import Site
    from sidecar.mcp_server.listing import Kind

_MOST = 100
# An argument of this name means one of these, in whichever prompt or template it stands.
_NAMES: dict[str, Kind] = {
    "workflow": "flow",
    "workflow_name": "flow",
    "flow_name": "flow",
    "agent_name": "agent",
    "prompt_name": "prompt",
}
_RUN_IDS = ("run_id", "workflow_id", "run")


async def complete(site: Site, params: CompleteRequestParams) -> CompleteResult:
    """What the argument can be."""
    try:
        found = await _values(site, params)
    except REPORTED:  # a prompt that nobody has: nothing can be proposed
        found = []
    begun = params.argument.value
    fitting = [value for value in found if value.startswith(begun)]
    shown = fitting[:_MOST]
    return CompleteResult(completion=Completion(values=shown, total=len(fitting), has_more=len(fitting) > len(shown)))


async def _values(site: Site, params: CompleteRequestParams) -> list[str]:
    name = params.argument.name
    if isinstance(params.ref, PromptReference):
        declared = {one.name: one for one in (await in_thread(prompts.find, site.root, params.ref.name)).parameters}
        choices = declared[name].choices if name in declared else None
        if choices is not None:
            return [str(choice) for choice in choices]
    if name in _RUN_IDS:
        return [one["run_id"] for one in (await site.service.status())["runs"]]
    kind = _NAMES.get(name)
    return [] if kind is None else await in_thread(listing.names, site.root, kind)
