"""The table of tools, and the only place where an error becomes a tool error."""

from __future__ import annotations

import copy
import json
import logging
from typing import TYPE_CHECKING, Any

from mcp.types import CallToolResult, InputRequiredResult, ListToolsResult, TextContent

from sidecar.errors import REPORTED, InputError, SidecarError
from sidecar.mcp_server import aliases, arguments, listing
from sidecar.mcp_server.run_tools import RUNS, SIGNALS
from sidecar.mcp_server.workflow_tools import DEBUGGING, DRIVING, STATE
from sidecar.service.owners import in_thread
from sidecar.service.status import as_json

if TYPE_CHECKING:
    from mcp.types import CallToolRequestParams

    from sidecar.mcp_server.connections import Context
    from sidecar.mcp_server.listing import Kind
    from sidecar.mcp_server.port import Json
    from sidecar.mcp_server.runs import Runs
    from sidecar.mcp_server.schemas import Schema
    from sidecar.mcp_server.tool import Site, Tool

logger = logging.getLogger(__name__)
TOOLS: dict[str, Tool] = {tool.name: tool for tool in (*SIGNALS, *RUNS, *DRIVING, *STATE, *DEBUGGING)}
# A list of tools stays below 32 KiB whatever a project has: beyond this many characters, names are only in `list`.
_MOST_NAME_CHARACTERS = 8192
_RUN_NAMES = {tool.name for tool in RUNS}  # calls of these wait for a run
_ENDING_NAMES = {"abort", "stage_gate"}
_BAD_ENDS = ("failed", "aborted")


def listed(site: Site) -> ListToolsResult:
    """Every tool, with the names that there are now."""
    return ListToolsResult(tools=[tool.listed(input_schema(site, tool.name)) for tool in TOOLS.values()])


def input_schema(site: Site, name: str) -> Schema | None:
    """The arguments of a tool; with every name that it can be called with, as long as they are few enough."""
    tool = TOOLS.get(name)
    if tool is None or tool.runs is None:
        return tool.input if tool else None
    try:
        names = [listing.LIST, *listing.names(site.root, tool.runs)]
    except SidecarError:  # a directory that cannot be listed must not hide the tools; a call says what is wrong
        names = [listing.LIST]
    if sum(len(name) + 3 for name in names) * len(RUNS) > _MOST_NAME_CHARACTERS:
        return tool.input
    schema = copy.deepcopy(tool.input)
    schema["properties"][f"{tool.runs}_name"]["enum"] = names
    return schema


def declared_schema(name: str) -> Schema | None:
    """The arguments of a tool as far as no file says more."""
    tool = TOOLS.get(name)
    return tool.input if tool else None


def comes_before_an_end(site: Site, name: str) -> bool:
    """Whether the reply to such a call has to be out before an agent is ended. The agents of a run call through its own
    socket; elsewhere only a call that ends agents counts, so that no other client delays an abort."""
    name = name.replace(".", "_")
    return name in _ENDING_NAMES or (site.run_id is not None and name not in _RUN_NAMES)


async def call(
    site: Site, runs: Runs, context: Context, params: CallToolRequestParams
) -> CallToolResult | InputRequiredResult:
    """Do what a call asks for. Whatever goes wrong is said in words: no stack trace, and never the server's end."""
    try:
        tool = TOOLS[aliases.resolve(params.name, TOOLS)]
        given = params.arguments or {}
        wrong = arguments.problems(tool.input, given)
        if wrong:
            raise InputError(f"{tool.name}: {'; '.join(wrong)}")
        if tool.runs is not None:
            name = given[f"{tool.runs}_name"]
            if name == listing.LIST:
                return await in_thread(_list, site, tool.runs, given)
            outcome = await runs.call(tool.runs, given, context, params)
            return outcome if isinstance(outcome, InputRequiredResult) else _ended(name, outcome)
        assert tool.do is not None
        return _result(await tool.do(site, given))
    except REPORTED as error:
        return _failed(str(error))
    except Exception as error:
        logger.exception("tool %s", params.name[:100])
        return _failed(f"{params.name[:100]} failed inside the sidecar ({type(error).__name__}); its log tells more")


def _list(site: Site, kind: Kind, given: dict[str, Any]) -> CallToolResult:
    found = listing.listed(site.root, kind, verbose=given.get("verbose", False))
    return _result(found, listing.rendered(found, kind, given.get("format", "json")))


def _ended(name: str, outcome: Json) -> CallToolResult:
    """A run's end. One that failed is an error with all that is known of it."""
    result = _result(outcome)
    if outcome.get("status") in _BAD_ENDS:
        said = f"{name} {outcome['status']}: {outcome.get('reason') or 'no reason is known'}"
        result.content.insert(0, TextContent(text=said))
        result.is_error = True
    return result


def _result(value: Json, text: str | None = None) -> CallToolResult:
    shown = as_json(value)
    try:
        shown.encode()
    except UnicodeEncodeError:  # half of a character, from an expression: no client can be told it
        shown = shown.encode(errors="replace").decode()
        value = json.loads(shown)
    return CallToolResult(content=[TextContent(text=text or shown)], structured_content=value)


def _failed(message: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=message)], is_error=True)
