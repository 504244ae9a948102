"""Runs as resources: how they stand, their state, logs and receipts; and the definitions that they come from."""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from sidecar import layout
from sidecar.catalog import prompts
from sidecar.errors import REPORTED, SidecarError
from sidecar.model import events as kinds
from sidecar.model import ulid
from sidecar.service.status import as_json
from sidecar.signals import files, receipts

if TYPE_CHECKING:
    from sidecar.mcp_server.calls import Site
    from sidecar.model.events import RunEvent

Json = dict[str, Any]
RUNS = "sidecar://runs"
_JSON, _TEXT = "application/json", "text/plain"
_MOST_LOG_BYTES = 256 * 1024
_URI = re.compile(r"sidecar://runs/([^/]+)(?:/(state|log|receipts)|/agents/([0-9]{1,9})/log)?")
_DEFINITION = re.compile(r"sidecar://(workflows|prompts)/([^/]+)")
TEMPLATES = {
    f"{RUNS}/{{run_id}}": ("run", "How a run stands.", _JSON),
    f"{RUNS}/{{run_id}}/state": ("state", "A run's state, flattened.", _JSON),
    f"{RUNS}/{{run_id}}/log": ("log", "The end of a run's log.", _TEXT),
    f"{RUNS}/{{run_id}}/agents/{{agent}}/log": ("agent-log", "The end of the output of a run's agent.", _TEXT),
    f"{RUNS}/{{run_id}}/receipts": ("receipts", "What became of the signals to a run.", _JSON),
    "sidecar://workflows/{workflow}": ("workflow", "A workflow's definition.", _JSON),
    "sidecar://prompts/{prompt_name}": ("prompt", "A prompt's template.", _TEXT),
}


async def listed(site: Site) -> ListResourcesResult:
    """All runs together, and the newest ones by themselves."""
    resources = [Resource(uri=RUNS, name="runs", description="All runs, newest first.", mime_type=_JSON)]
    for one in site.service.newest_runs():
        described = f"{one.get('workflow') or 'run'}: {one.get('status')}"
        uri = f"{RUNS}/{one['run_id']}"
        resources.append(Resource(uri=uri, name=one["run_id"], description=described, mime_type=_JSON))
    return ListResourcesResult(resources=resources)


def templates() -> ListResourceTemplatesResult:
    """What there is of every run."""
    return ListResourceTemplatesResult(
        resource_templates=[
            ResourceTemplate(uri_template=uri, name=name, description=description, mime_type=mime_type)
            for uri, (name, description, mime_type) in TEMPLATES.items()
        ]
    )


async def read(site: Site, uri: str) -> ReadResourceResult:
    """What a resource says now."""
    try:
        if uri == RUNS:
            return _contents(uri, {"runs": site.service.newest_runs()})
        definition = _DEFINITION.fullmatch(uri)
        if definition is not None:
            return _contents(uri, await _defined(site, *definition.groups()))
        match = _URI.fullmatch(uri)
        if match is None or not ulid.is_valid(match.group(1)):
            raise SidecarError(f"no such resource: {uri[:200]}; there is: {', '.join([RUNS, *TEMPLATES])}")
        run_id, part, agent = match.groups()
        return _contents(uri, await _part(site, run_id, part, agent))
    except REPORTED as error:
        raise MCPError(INVALID_PARAMS, str(error), {"uri": uri[:200]}) from None


async def _defined(site: Site, kind: str, name: str) -> Json | str:
    if kind == "workflows":
        return await site.service.load_definition(unquote(name))
    return prompts.find(site.root, unquote(name)).body


async def _part(site: Site, run_id: str, part: str | None, agent: str | None) -> Json | str:
    directory = layout.run_directory(site.root, run_id)
    if part is None and agent is None:
        return await site.service.status(run_id)
    if part == "state":
        return await site.service.state_read(run_id)
    if part == "receipts":
        (one,) = (await site.service.status(run_id))["runs"]
        return {"receipts": _receipts(directory, [one.get("workspace"), layout.state_directory(site.root)], run_id)}
    return _end_of(os.path.join(directory, "run.log" if agent is None else f"agents/{agent}.log"))


def changed_by(event: RunEvent) -> set[str]:
    """The resources that an event makes different."""
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


def _receipts(directory: str, shared: list[str | None], run_id: str) -> list[receipts.Receipt]:
    """What lies in the run's own directory, and where others are signalled too, what names the run."""
    own = _lying_in(directory)
    others = [receipt for place in shared if place for receipt in _lying_in(place)]
    return [*own, *(one for one in others if any(outcome["run_id"] == run_id for outcome in one["runs"]))]


def _lying_in(directory: str) -> list[receipts.Receipt]:
    found = [receipts.read(files.path_of(directory, kind)) for kind in files.FILE_NAMES]
    return [receipt for receipt in found if receipt is not None]


def _end_of(path: str) -> str:
    """The last part of a log. Agents can write there: no link is followed, and no FIFO's other end waited for."""
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


def _contents(uri: str, value: Json | str) -> ReadResourceResult:
    text, mime_type = (value, _TEXT) if isinstance(value, str) else (as_json(value), _JSON)
    return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=mime_type, text=text)])
