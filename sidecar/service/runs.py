"""Begins, resumes, answers and signals runs: the use cases that the command line, MCP and the web page call."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from sidecar import layout
from sidecar.agents.adapters.adapter import json_in
from sidecar.analysis import validate
from sidecar.catalog import definition as definitions
from sidecar.catalog import workflows, yaml_format
from sidecar.catalog.workflows import Definition
from sidecar.engine import execution
from sidecar.errors import DefinitionError, InputError, Problem, SignalError
from sidecar.model import duration, ulid
from sidecar.model import events as kinds
from sidecar.model.parameters import bind
from sidecar.signals import files, run_lock, targets
from sidecar.signals.receipts import clear_ended
from sidecar.store.journal import OPEN, Journal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sidecar.config import Project, Settings
    from sidecar.model.events import Driver
    from sidecar.model.parameters import Parameter
    from sidecar.signals.files import Kind
    from sidecar.signals.targets import Target
    from sidecar.state.script import Script
    from sidecar.store.db import Database
    from sidecar.store.journal import Event, Handouts, StoredRun

Json = dict[str, Any]
WORKSPACE = "workspace"  # an input of this name is the workspace that the run is bound to
RESULT = "answer"  # the field of the state that has what the agent of a run of one turn answered
_PROCESS = ("pid", "exit_code", "rung", "survivors")
_NO_OPEN_RUN = (
    "no run is open there now: the next one to begin there is stopped before its first step; `cancel` takes this back"
)

# --- what is run


def find_workflow(project: Project, name: str, script: Script) -> Definition:
    """A workflow by its name, checked: what can be known to fail fails here."""
    definition = workflows.find(project.root, name)
    problems = [
        Problem.at(finding.file, (finding.line, finding.column), finding.message)
        for finding in validate.check(project.root, definition, script)
        if finding.severity == "error"
    ]
    if problems:
        raise DefinitionError(problems)
    if not definition.workflow.steps:
        raise InputError(f"workflow {name!r} has no steps of its own: it is there for others to import")
    return definition


def of_agent(name: str, parameters: Iterable[Parameter], directory: str | None = None) -> Definition:
    """One turn of an agent, with its parameters as inputs; `directory`: where it works inside the project."""
    declared = tuple(parameters)
    step: dict[str, Any] = {"id": "agent", "type": "agent", "agent": name, "prompt": "{{ inputs.prompt ?? '' }}"}
    if directory is not None:
        step["working_dir"] = f"{{{{ {json.dumps(directory)} }}}}"  # a name may look like a template
    others = {one.name: f"{{{{ inputs.{one.name} }}}}" for one in declared if one.name != "prompt"}
    return _workflow(f"agent:{name}", f"One turn of the agent {name}.", declared, step | {"parameters": others})


def of_prompt(name: str, parameters: Iterable[Parameter], agent: str | None = None) -> Definition:
    """A prompt by its name, given to an agent."""
    declared = tuple(parameters)
    given = {one.name: f"{{{{ inputs.{one.name} }}}}" for one in declared}
    step = {"id": "agent", "type": "agent", "prompt_name": name, "parameters": given}
    if agent:
        step["agent"] = agent
    return _workflow(f"prompt:{name}", f"The prompt {name}.", declared, step)


def subject(definition: Definition) -> tuple[str, str] | None:
    """`agent` or `prompt`, and its name, where a definition was made of one here."""
    if definition.loaded_from != f"<{definition.name}>":
        return None
    kind, _, name = definition.name.partition(":")
    return kind, name


def _workflow(name: str, description: str, parameters: tuple[Parameter, ...], step: dict[str, Any]) -> Definition:
    inputs = {one.name: one.model_dump(exclude={"name"}, exclude_unset=True, mode="json") for one in parameters}
    content = {
        "description": description,
        "inputs": inputs,
        "state_schema": {"raw": {RESULT: "string"}},
        "steps": [step | {"state_update": {"path": f"raw.{RESULT}"}}],
    }
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    document = yaml_format.parse(text, f"<{name}>")
    return Definition(name, "builtin", document.path, definitions.parse(document), document, {})


# --- a run before it is executed


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run needs to begin."""

    definition: Definition
    inputs: dict[str, Any]
    workspace: str | None


def prepare(
    project: Project, definition: Definition, given: Mapping[str, Any], workspace: str | None = None
) -> Prepared:
    """The inputs, bound; InputError says everything that is wrong with them."""
    given = dict(given)
    directory = workspace_directory(project, workspace) if workspace else None
    declared = definition.workflow.inputs
    if WORKSPACE in declared and isinstance(given.get(WORKSPACE, workspace), str):
        directory = workspace_directory(project, str(given.get(WORKSPACE, workspace)))
        given[WORKSPACE] = os.path.relpath(directory, project.root)
    kind, name = subject(definition) or ("workflow", definition.name)
    inputs = bind(definition.workflow.parameters, given, f"{kind} {name!r}")
    return Prepared(definition, inputs, directory)


@contextmanager
def created(
    root: str,
    journal: Journal,
    prepared: Prepared,
    *,
    driver: Driver = "server",
    details: dict[str, Any] | None = None,
) -> Iterator[str]:
    """A run begins: it is pending, with the definition that it keeps for life. Its id; inside, its lock is held."""
    run_id = ulid.new()
    definition = prepared.definition
    with run_lock.begin(root, run_id, workspace=prepared.workspace, driver=driver):
        try:
            with journal.transaction():
                execution.refuse_second(journal, root, definition.name, prepared.workspace)
                journal.create(
                    run_id,
                    definition.name,
                    definition=json.dumps(definition.record()),
                    inputs=prepared.inputs,
                    workspace=prepared.workspace,
                    driver=driver,
                    details=details,
                )
        except BaseException:
            run_lock.forget(root, run_id)
            raise
        yield run_id


def create(root: str, journal: Journal, prepared: Prepared, *, details: dict[str, Any] | None = None) -> str:
    """A run begins that somebody is to execute; its id."""
    with created(root, journal, prepared, details=details) as run_id:
        return run_id


def begin_again(root: str, journal: Journal, run: StoredRun, driver: Driver) -> list[str]:
    """A run that had ended is to go on: what stands in its signal directories now is recorded, and every signal that
    comes later is for it. One that has not ended goes on as it is. The caller has its lock. What to warn of."""
    if run.status in OPEN or run.status == "completed":
        return []
    execution.refuse_second(journal, root, run.workflow, run.workspace, run.run_id)
    warnings = clear_ended(root, run.run_id)
    run_lock.begin_again(root, run.run_id, workspace=run.workspace, driver=driver)
    journal.begin_again(run.run_id)
    return warnings


def refuse_handed_out(handouts: Handouts, run: StoredRun, settings: Settings, *, take_over: bool) -> None:
    """InputError where an outside agent has a step of the run in hand, and may still be at work on it.

    What the agents of a server-driven run have in hand ended with its owner."""
    is_driven = run.driver == "agent" and run.status == "running"
    held = handouts.all_held(run.run_id) if is_driven and not take_over else []
    young = [one for one in held if handouts.age_s(one) < duration.seconds(settings.take_over_after)]
    if young:
        since = files.timestamp(young[0].handed_at)
        raise InputError(
            f"an agent has had step {young[0].key!r} of run {run.run_id} in hand since {since}; "
            f"`sidecar resume {run.run_id} --take-over` has it done again, and what that agent reports is refused"
        )


def workspace_inside(project: Project, name: str) -> str:
    """A workspace as steps name it: relative to the project's root."""
    return os.path.relpath(workspace_directory(project, name), project.root)


def workspace_directory(project: Project, name: str) -> str:
    """A workspace by its name, or a directory inside the project."""
    if layout.is_name(name):
        parent = targets.workspaces_directory(project.root, project.environment)
        if os.path.isdir(os.path.join(parent, name)) or not os.path.isdir(os.path.join(project.root, name)):
            return _named(project, name, parent)
    directory = os.path.realpath(os.path.join(project.root, name))
    inside = (directory + "/").startswith(os.path.realpath(project.root).rstrip("/") + "/")
    if not inside or not os.path.isdir(directory):
        raise InputError(f"{name!r} is neither the name of a workspace nor a directory inside the project")
    return directory


def _named(project: Project, name: str, parent: str) -> str:
    try:
        return targets.workspace(project.root, name, project.environment).directory
    except SignalError as error:
        hint = "" if os.path.isdir(os.path.join(parent, name)) else f"; to make it: sidecar workspace init {name}"
        raise InputError(f"{error}{hint}") from None


# --- signals


def signal_target(project: Project, workspace: str | None, run_id: str | None, asker: str | None) -> Target:
    """Whom a signal is for: one run, those of a workspace, or all of the project. `asker`: the run whose agent asks,
    where one does. It is meant where nothing is named, and only the settings let its agents name anything else."""
    if workspace is not None and run_id is not None:
        raise InputError("`workspace` and `run_id` exclude each other")
    if asker is not None:
        if workspace is None and run_id is None:
            run_id = asker
        if run_id != asker and project.settings.agent_signals != "project":
            raise InputError(
                f"an agent of run {asker} can stop and abort only that run; workflow_complete with status cancelled "
                "ends a run that you drive, and a person can allow more by the setting `agent_signals: project`"
            )
    if run_id is not None:
        return targets.run(project.root, run_id)
    if workspace is not None:
        return targets.workspace(project.root, workspace, project.environment)
    return targets.project(project.root)


def write_signal(kind: Kind, to: Target, reason: str) -> Json:
    """Write it; which runs it governs."""
    to.refuse_ended()
    signed = files.new_trailers()
    governed = to.open_runs()
    path = files.write(to.directory, kind, reason, signed, inside=to.inside)
    written: Json = {
        "success": True,
        "signal": kind,
        "path": path,
        "signal_id": signed.signal_id,
        "reason": reason,
        "runs": governed,
    }
    # An agent that stops what is over already would otherwise wonder why the next run does nothing.
    return {**written, "message": _NO_OPEN_RUN} if kind == "stop" and not governed else written


def cancel_stop(of: Target) -> Json:
    """Take a stop back; whether there was one."""
    cancelled = files.cancel(of.directory, "stop") is not None
    return {"success": True, "cancelled": cancelled, "path": files.path_of(of.directory, "stop")}


# --- what became of it


def last_turn(database: Database, run_id: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Of a run that is one turn; `state`: as it is now. Nothing where no agent was started."""
    events = Journal(database).events(run_id)
    ended = next((one for one in reversed(events) if one.kind == kinds.AGENT_ENDED), None)
    turn = next((one for one in reversed(events) if one.kind == kinds.TURN_ENDED), None)
    found: dict[str, Any] = {}
    if turn is not None:
        found = {key: turn.data[key] for key in ("session_id", "tokens", "cost_usd")}
        text = found["text"] = str(turn.data.get("text") or state.get(RESULT) or "")
        structured = turn.data.get("structured")
        found["structured"] = json_in(text) if structured is None else json.loads(structured)
    return found | (_process(ended) if ended is not None else {})


def _process(ended: Event) -> dict[str, Any]:
    data = ended.data
    return {
        **{key: data[key] for key in _PROCESS},
        "ended": data["reason"],
        "duration_s": round(data["duration_s"], 3),
    }
