"""What the server offers besides tools: prompts, resources, completion of arguments; and lists of definitions.

Prompts are the project's stored prompts. Resources are runs (status, state, logs, receipts) and definitions.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import yaml
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CompleteResult,
    Completion,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    PromptReference,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
)

from sidecar import layout
from sidecar.catalog import agents, listing, prompts, workflows
from sidecar.errors import REPORTED, SidecarError
from sidecar.model import events as kinds
from sidecar.model import ulid
from sidecar.model.parameters import bind, render_template
from sidecar.service.owners import in_thread
from sidecar.service.status import as_json
from sidecar.signals import files, receipts
from sidecar.text import table

if TYPE_CHECKING:
    from mcp.types import CompleteRequestParams, GetPromptRequestParams

    from sidecar.model.events import RunEvent
    from sidecar.model.parameters import Parameter
    from sidecar.service.driving import Driving

Json = dict[str, Any]
Kind = Literal["flow", "agent", "prompt"]
LIST = "list"
RUNS = "sidecar://runs"
_JSON, _TEXT = "application/json", "text/plain"
_MOST_LISTED = 100
_MOST_COMPLETED = 100
_MOST_LOG_BYTES = 256 * 1024
_URI = re.compile(r"sidecar://runs/([^/]+)(?:/(state|log|receipts)|/agents/([0-9]{1,9})/log)?")
_DEFINITION = re.compile(r"sidecar://(workflows|prompts)/([^/]+)")
TEMPLATES = {
    f"{RUNS}/{{run_id}}": ("run", "Status of a run.", _JSON),
    f"{RUNS}/{{run_id}}/state": ("state", "A run's state, flattened.", _JSON),
    f"{RUNS}/{{run_id}}/log": ("log", "The end of a run's log.", _TEXT),
    f"{RUNS}/{{run_id}}/agents/{{agent}}/log": ("agent-log", "The end of the output of a run's agent.", _TEXT),
    f"{RUNS}/{{run_id}}/receipts": ("receipts", "What became of the signals to a run.", _JSON),
    "sidecar://workflows/{workflow}": ("workflow", "A workflow's definition.", _JSON),
    "sidecar://prompts/{prompt_name}": ("prompt", "A prompt's template.", _TEXT),
}
_KEYS: dict[Kind, str] = {"flow": "workflows", "agent": "agents", "prompt": "prompts"}
# An argument of this name is one of these, in any prompt or template.
_COMPLETED: dict[str, Kind] = {
    "workflow": "flow",
    "workflow_name": "flow",
    "flow_name": "flow",
    "agent_name": "agent",
    "prompt_name": "prompt",
}
_RUN_IDS = ("run_id", "workflow_id", "run")


# --- prompts


def list_prompts(root: str) -> ListPromptsResult:
    """Every prompt of the project, with its arguments."""
    return ListPromptsResult(
        prompts=[
            Prompt(
                name=one.name,
                title=one.title or None,
                description=one.description or None,
                arguments=[
                    PromptArgument(
                        name=parameter.name,
                        description=parameter.description or None,
                        required=parameter.is_required,
                    )
                    for parameter in one.parameters
                ],
            )
            for one in prompts.listing(root)[0]
        ]
    )


def get_prompt(root: str, params: GetPromptRequestParams) -> GetPromptResult:
    """One prompt, rendered with the given values. Prompts have no tool errors: any mistake is an invalid request."""
    try:
        prompt = prompts.find(root, params.name)
        declared = {parameter.name: parameter for parameter in prompt.parameters}
        given = {name: _argument(text, declared.get(name)) for name, text in (params.arguments or {}).items()}
        values = bind(prompt.parameters, given, f"prompt {prompt.name}")
    except SidecarError as error:
        raise MCPError(INVALID_PARAMS, str(error)) from None
    message = PromptMessage(role="user", content=TextContent(text=render_template(prompt.body, values)))
    return GetPromptResult(description=prompt.description or None, messages=[message])


def _argument(text: str, parameter: Parameter | None) -> Any:
    """A client sends only text: for a parameter that is not a string it is JSON. `bind` reports what does not fit."""
    if parameter is None or parameter.type == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# --- resources


async def list_resources(service: Driving) -> ListResourcesResult:
    """All runs together, and the newest ones by themselves."""
    resources = [Resource(uri=RUNS, name="runs", description="All runs, newest first.", mime_type=_JSON)]
    for one in (await service.status())["runs"][:_MOST_LISTED]:
        description = f"{one.get('workflow') or 'run'}: {one.get('status')}"
        uri = f"{RUNS}/{one['run_id']}"
        resources.append(Resource(uri=uri, name=one["run_id"], description=description, mime_type=_JSON))
    return ListResourcesResult(resources=resources)


def list_resource_templates() -> ListResourceTemplatesResult:
    """What can be read of any run and any definition."""
    return ListResourceTemplatesResult(
        resource_templates=[
            ResourceTemplate(uri_template=uri, name=name, description=description, mime_type=mime_type)
            for uri, (name, description, mime_type) in TEMPLATES.items()
        ]
    )


async def read_resource(service: Driving, root: str, uri: str) -> ReadResourceResult:
    """A resource's content."""
    try:
        content = await _content(service, root, uri)
    except REPORTED as error:
        raise MCPError(INVALID_PARAMS, str(error), {"uri": uri[:200]}) from None
    text, mime_type = (content, _TEXT) if isinstance(content, str) else (as_json(content), _JSON)
    return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=mime_type, text=text)])


def changed_resources(event: RunEvent) -> set[str]:
    """The URIs of the resources that an event changes."""
    uri = f"{RUNS}/{event.run_id}"
    if event.kind in (kinds.AGENT_OUTPUT, kinds.ACTIVITY):
        agent = event.data.get("agent_id")
        return {f"{uri}/agents/{agent}/log"} if agent is not None else set()
    changed = {RUNS, uri, f"{uri}/log"}
    if event.kind in (kinds.STEP_COMPLETED, kinds.RUN_STARTED):
        changed.add(f"{uri}/state")
    if event.kind in (kinds.SIGNAL, kinds.RUN_ENDED):
        changed.add(f"{uri}/receipts")
    return changed


async def _content(service: Driving, root: str, uri: str) -> Json | str:
    if uri == RUNS:
        return await service.status()
    if (definition := _DEFINITION.fullmatch(uri)) is not None:
        kind, name = definition[1], unquote(definition[2])
        return await service.load_definition(name) if kind == "workflows" else prompts.find(root, name).body
    match = _URI.fullmatch(uri)
    if match is None or not ulid.is_valid(match[1]):
        raise SidecarError(f"no such resource: {uri[:200]}; available: {', '.join([RUNS, *TEMPLATES])}")
    run_id, part, agent = match.groups()
    if part is None and agent is None:
        return await service.status(run_id)
    if part == "state":
        return await service.state_read(run_id, None)
    directory = layout.run_directory(root, run_id)
    if part == "receipts":
        (one,) = (await service.status(run_id))["runs"]
        return {"receipts": _receipts(directory, [one.get("workspace"), layout.state_directory(root)], run_id)}
    return _end_of_log(os.path.join(directory, "run.log" if agent is None else f"agents/{agent}.log"))


def _receipts(directory: str, shared: list[str | None], run_id: str) -> list[receipts.Receipt]:
    """The receipts in the run's own directory, and those in directories of several runs that name this run."""
    own = _receipts_in(directory)
    others = [receipt for place in shared if place for receipt in _receipts_in(place)]
    return [*own, *(one for one in others if any(outcome["run_id"] == run_id for outcome in one["runs"]))]


def _receipts_in(directory: str) -> list[receipts.Receipt]:
    found = [receipts.read(files.path_of(directory, kind)) for kind in files.FILE_NAMES]
    return [receipt for receipt in found if receipt is not None]


def _end_of_log(path: str) -> str:
    """The last part of a log. Agents can write there: links are not followed, and a FIFO is not waited for."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise SidecarError(f"no such log: {path}") from None
        raise SidecarError(f"cannot read {path}: {error.strerror}") from None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise SidecarError(f"cannot read {path}: it is not a regular file")
        start = max(found.st_size - _MOST_LOG_BYTES, 0)
        content = os.pread(file, _MOST_LOG_BYTES, start)
    finally:
        os.close(file)
    if start:
        content = content.partition(b"\n")[2]
    return content.decode(errors="replace")


# --- completion


async def complete(service: Driving, root: str, params: CompleteRequestParams) -> CompleteResult:
    """The values of an argument that begin with what was typed."""
    try:
        values = await _values(service, root, params)
    except REPORTED:  # an unknown prompt has no arguments
        values = []
    fitting = [value for value in values if value.startswith(params.argument.value)]
    shown = fitting[:_MOST_COMPLETED]
    return CompleteResult(completion=Completion(values=shown, total=len(fitting), has_more=len(fitting) > len(shown)))


async def _values(service: Driving, root: str, params: CompleteRequestParams) -> list[str]:
    name = params.argument.name
    if isinstance(params.ref, PromptReference):
        declared = {one.name: one for one in (await in_thread(prompts.find, root, params.ref.name)).parameters}
        choices = declared[name].choices if name in declared else None
        if choices is not None:
            return [str(choice) for choice in choices]
    if name in _RUN_IDS:
        return [one["run_id"] for one in (await service.status())["runs"]]
    kind = _COMPLETED.get(name)
    return [] if kind is None else await in_thread(tool_names, root, kind)


# --- definitions, as the tools `flow`, `agent` and `prompt` take and list them


def tool_names(root: str, kind: Kind) -> list[str]:
    """The names that a tool takes. `list` has another meaning there: a definition of that name gets an underscore."""
    return [f"_{name}" if name == LIST else name for name in (row["name"] for row in _rows(root, kind)[0])]


def definition_name(tool_name: str) -> str:
    """The definition's own name."""
    return LIST if tool_name == f"_{LIST}" else tool_name


def check_definition(root: str, kind: Kind, name: str) -> None:
    """NotFound with the nearest names, or what is wrong with the file of that name."""
    {"flow": workflows.find, "agent": agents.find, "prompt": prompts.find}[kind](root, name)


def list_definitions(root: str, kind: Kind, *, verbose: bool) -> Json:
    """Every definition of a kind, and what is wrong with files that define none."""
    found, problems = _rows(root, kind, verbose=verbose)
    return {_KEYS[kind]: found, **({"problems": problems} if problems else {})}


def format_definitions(result: Json, kind: Kind, form: str) -> str:
    """The list as text: yaml, table or json."""
    if form == "yaml":
        return yaml.safe_dump(result, sort_keys=False, allow_unicode=True)
    if form == "table":
        rows = table([(row["name"], row["source"], row["description"]) for row in result[_KEYS[kind]]])
        return "".join(f"{row.rstrip()}\n" for row in rows) or "none\n"
    return json.dumps(result, ensure_ascii=False)


def _rows(root: str, kind: Kind, *, verbose: bool = False) -> tuple[list[Json], list[str]]:
    if kind == "flow":
        flows, problems = listing.workflows(root)
        return [
            {
                **{key: row[key] for key in ("name", "description", "source")},
                "parameters": _parameters(row["parameters"], verbose),
                **({"version": row["version"], "path": row["path"]} if verbose else {}),
            }
            for row in flows
        ], problems
    if kind == "agent":
        known, problems = agents.listing(root)
        return [
            {
                "name": one.name,
                "description": one.definition.description,
                "source": one.source,
                "adapter": one.definition.adapter,
                "parameters": _parameters(map(listing.described, one.definition.declared), verbose),
            }
            for one in known
        ], problems
    stored, problems = prompts.listing(root)
    return [
        {
            "name": one.name,
            "description": one.description,
            "source": one.source,
            "parameters": _parameters(map(listing.described, one.parameters), verbose),
            **({"title": one.title, "path": one.loaded_from} if verbose else {}),
        }
        for one in stored
    ], problems


def _parameters(described: Iterable[Json], verbose: bool) -> list[Json]:
    return [
        {
            "name": one["name"],
            "type": one["type"],
            "description": one["description"],
            "required": one["required"],
            **({"default": one.get("default"), "choices": one.get("choices")} if verbose else {}),
        }
        for one in described
    ]
