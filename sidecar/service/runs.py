"""Begins, resumes, answers and signals runs: the use cases that the command line, MCP and the web page call."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio
import yaml

from sidecar import layout
from sidecar.agents.adapters.adapter import json_in
from sidecar.analysis import validate
from sidecar.analysis.plan import RunPlan, explain
from sidecar.catalog import agents, prompts, workflows, yaml_format
from sidecar.catalog import definition as definitions
from sidecar.catalog.workflows import Definition
from sidecar.engine import approval, execution, redirects
from sidecar.engine.evaluation import Texts, View
from sidecar.engine.replay import load
from sidecar.engine.steps.user_input import accepted, matching
from sidecar.errors import DefinitionError, InputError, NotFound, Problem, SignalError
from sidecar.model import duration, ulid
from sidecar.model import events as kinds
from sidecar.model.parameters import bind
from sidecar.service.owners import StartOptions, changed_definition, definition_in_thread, in_thread, pending_question
from sidecar.service.status import as_json, describe, describe_all, effective_status, follow, messages
from sidecar.signals import files, run_lock, targets
from sidecar.signals.receipts import clear_ended
from sidecar.state.script import Script
from sidecar.state.world import World
from sidecar.store.db import free, open_database
from sidecar.store.journal import OPEN, Handouts, Journal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from sidecar.config import Project, Settings
    from sidecar.engine.execution import Execution
    from sidecar.engine.owner import Owner
    from sidecar.engine.run import Run
    from sidecar.model.events import Driver, RunEvent
    from sidecar.model.parameters import Parameter
    from sidecar.service.owners import Executor
    from sidecar.signals.files import Kind
    from sidecar.signals.targets import Target
    from sidecar.store.db import Database
    from sidecar.store.journal import Event, StoredRun

Json = dict[str, Any]
WORKSPACE = "workspace"  # an input of this name is the workspace that the run is bound to
RESULT = "answer"  # the field of the state that has what the agent of a run of one turn answered
COMPLETED_BEFORE = "already complete; nothing to do"
_LAST_FILE_S, _LOOK_S = 2.0, 0.005
_MOST_RUNS = 100
_STATUS_BYTES = 8 * 1024 - len('{"runs": [], "more": true}')
_BRIEF = 200  # characters of a text in a list
_PROCESS = ("pid", "exit_code", "rung", "survivors")
_NO_OPEN_RUN = (
    "no run is open there now: the next one to begin there is stopped before its first step; `cancel` takes this back"
)

# --- what is run


def find_workflow(project: Project, name: str, script: Script | None = None) -> Definition:
    """A workflow by its name, checked: what can be known to fail fails here. `script`: checks its expressions."""
    definition = workflows.find(project.root, name)
    with nullcontext(script) if script is not None else Script(worker=False) as checking:
        findings = validate.check(project.root, definition, checking)
    problems = [
        Problem.at(finding.file, (finding.line, finding.column), finding.message)
        for finding in findings
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


def agent_run(project: Project, name: str, workspace: str | None = None) -> Definition:
    """One turn of an agent by its name, in a workspace where one is given."""
    found = agents.find(project.root, name)
    directory = workspace_inside(project, workspace) if workspace else None
    return of_agent(found.name, found.definition.declared, directory)


def prompt_run(project: Project, name: str, agent: str | None = None) -> Definition:
    """A prompt by its name, given to an agent, else to the default one."""
    found = prompts.find(project.root, name)
    agents.find(project.root, agent or project.settings.default_agent)  # before anything is begun
    return of_prompt(found.name, found.parameters, agent)


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
    if kind == "agent":  # what would fail in its first step
        assigned = {key: value for key, value in inputs.items() if value is not None}
        agents.find(project.root, name).definition.assign(name, assigned)
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


def plan(project: Project, prepared: Prepared, script: Script | None = None) -> RunPlan:
    """What the run would do; nothing is begun."""
    with nullcontext(script) if script is not None else Script() as evaluating:
        return explain(prepared.definition, prepared.inputs, evaluating, project.root, project.settings)


def begin(project: Project, prepared: Prepared, *, detached: bool = False, database: Database | None = None) -> str:
    """A run begins that somebody is to execute; its id. `detached`: its steps get the environment of now, whoever
    executes it, and the daemon resumes it."""
    details = {"detached": True, "environment": dict(project.environment)} if detached else None
    with (
        nullcontext(database) if database is not None else open_database(project.root) as opened,
        created(project.root, Journal(opened), prepared, details=details) as run_id,
    ):
        return run_id


# --- a run goes on


async def resume(
    project: Project,
    database: Database,
    run: StoredRun,
    options: StartOptions,
    *,
    asker: str | None = None,
    take_over: bool = False,
    script: Script | None = None,
    report: Callable[[str], None],
) -> StartOptions | None:
    """Have a run go on, executed by whoever is given it then: with the options that this returns. None: it was
    completed before. InputError, or RunBusy: it cannot be resumed like this. `asker`: the run whose agent asks, where
    one does; `report`: gets the warnings."""
    journal = Journal(database)
    await check_resume(project, database, run, options, asker=asker, script=script)
    if run.status == "completed":
        return None
    changed = _changed(project, journal, run, script, wanted=options.with_changes, report=report)
    async with execution.locked(project.root, run.run_id):
        await free(database)
        run = journal.run(run.run_id)
        refuse_handed_out(Handouts(database), run, project.settings, take_over=take_over)
        for warning in begin_again(project.root, journal, run, "server"):
            report(warning)
    return replace(options, with_changes=changed)


async def check_resume(
    project: Project,
    database: Database,
    run: StoredRun,
    options: StartOptions,
    *,
    asker: str | None = None,
    script: Script | None = None,
) -> None:
    """InputError where the run cannot be resumed with these options."""
    holder = run_lock.holder(project.root, run.run_id) if run.driver == "server" else None
    if run.status != "completed" and holder is not None:
        raise InputError(
            f"run {run.run_id} is already being executed, by process {holder}: sidecar logs {run.run_id} -f"
        )
    if options.answer is not None:
        await answer(project, database, run.run_id, options.answer, script)
    approval.check(Journal(database), run, feedback=options.feedback, approve=options.approve, asker=asker)


async def answer(
    project: Project, database: Database, run_id: str, value: Any, script: Script | None = None
) -> StartOptions:
    """The answer to the question that a paused run waits for: with the options that this returns it goes on.
    InputError: it waits for none. AnswerError: the question does not take it."""
    question = pending_question(database, project.root, run_id)
    try:
        await in_thread(accepted_answer, question, value, script)
    except ValueError as error:
        raise AnswerError(str(error)) from None
    return StartOptions(answer=value)


class AnswerError(InputError):
    """A question does not take an answer; the words are often the author's own."""


def accepted_answer(question: Json, value: Any, script: Script | None = None) -> Any:
    """The value of an answer; ValueError says what would be right."""
    with nullcontext(script) if script is not None else Script(worker=False) as evaluating:
        world = World(evaluating)
        try:
            return accepted(question, value, matching(View(Texts(evaluating), world, {})))
        finally:
            world.close()


def redirect(project: Project, run: StoredRun, text: str) -> None:
    """Have the step done again that the run's agents are at, with a text added to the prompt."""
    if not run_lock.is_live(project.root, run.run_id) or run.driver != "server":
        way = f"; resume it with: sidecar resume {run.run_id} --feedback TEXT"
        if run.driver == "agent" and run.status == "running":
            way = "; workflow_resume with feedback adds it to the next step that the agent is handed"
        status = effective_status(project.root, run)
        rest = "" if run.status == "completed" else way
        raise InputError(f"run {run.run_id} is not active (status: {status}){rest}")
    redirects.redirect(project.root, run.run_id, text)


def _changed(
    project: Project,
    journal: Journal,
    run: StoredRun,
    script: Script | None,
    *,
    wanted: bool,
    report: Callable[[str], None],
) -> bool:
    """Whether the run goes on with another workflow than it began with; where that is not wanted, report that there is
    one."""
    try:
        found = changed_definition(project.root, journal, run)
    except (DefinitionError, NotFound) as error:
        if wanted:
            raise
        report(f"the workflow {run.workflow} cannot be read any more ({error}); the run continues as it started")
        return False
    if found is not None and wanted:
        find_workflow(project, run.workflow, script)
    elif found is not None:
        report(
            f"the workflow {run.workflow} has changed since the run started ({found.loaded_from}); the run "
            "continues as it started; --with-changes uses the new one"
        )
    return found is not None and wanted


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


def run_result(owner: Owner, run_id: str, *, with_turn: bool = False) -> Json:
    """The object of `status` with the run's state and messages; `with_turn`: and with the last turn of its agent."""
    image = load(owner, owner.journal.run(run_id))
    try:
        state = image.states[()].state.flattened()
    finally:
        image.states.close()
    turn = last_turn(owner.database, run_id, state) if with_turn else {}
    found = describe(owner.database, owner.root, run_id)
    return {**found, "state": state, "messages": messages(owner.database, run_id), **turn}


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


# --- for those who stay: the MCP server, and the web page


class RunService:
    """The use cases of the runs of one project, for a process that has an owner: plain JSON in and out."""

    def __init__(self, project: Project, owner: Owner, executor: Executor) -> None:
        self.project = project
        self.owner = owner
        self._executor = executor

    async def flow(self, name: str, parameters: Json, **options: Any) -> Json:
        """Run a workflow and give what became of it; `options`: see `_launch`."""
        return await self._launch(await self._find(name), parameters, **options)

    async def agent(self, name: str, parameters: Json, *, workspace: str | None = None, **options: Any) -> Json:
        """One turn of an agent."""
        definition = await in_thread(agent_run, self.project, name, workspace)
        return await self._launch(definition, parameters, workspace=workspace, **options)

    async def prompt(self, name: str, parameters: Json, **options: Any) -> Json:
        """A prompt, given to the default agent."""
        return await self._launch(await in_thread(prompt_run, self.project, name), parameters, **options)

    async def _launch(
        self,
        definition: Definition,
        parameters: Json,
        *,
        on_event: Callable[[RunEvent], None],
        ask: Callable[[Json, str | None], Awaitable[Any]] | None = None,
        dry_run: bool = False,
        workspace: str | None = None,
        detach: bool = False,
    ) -> Json:
        """`on_event` gets what happens, until the run ends or, detached, begins. `ask`: asks the person who called."""
        prepared = prepare(self.project, definition, parameters, workspace)
        if dry_run:
            return await self._plan(prepared)
        await free(self.owner.database)
        run_id = begin(self.project, prepared, detached=True, database=self.owner.database)
        await self._executor.begin(run_id)
        if detach:
            return describe(self.owner.database, self.project.root, run_id)
        await self._follow(run_id, on_event, ask)
        return await self._run_object(run_id)

    async def _follow(
        self,
        run_id: str,
        on_event: Callable[[RunEvent], None],
        ask: Callable[[Json, str | None], Awaitable[Any]] | None,
    ) -> None:
        after = 0
        while True:
            async for event in follow(self.owner.database, self.project.root, run_id, after):
                on_event(event)
                after = event.seq
            await self._last_file(run_id)
            needs = describe(self.owner.database, self.project.root, run_id)["needs"]
            is_asked = ask is not None and self._run(run_id).status == "paused" and needs and needs["kind"] == "answer"
            options = await self._asked(run_id, needs, ask) if is_asked and ask is not None else None
            if options is None:
                return
            await self._executor.begin(run_id, options)

    async def _last_file(self, run_id: str) -> None:
        """Wait until whoever executed the run is done with its signals: one that it took must not meet the next run."""
        with anyio.move_on_after(_LAST_FILE_S):
            while run_lock.is_live(self.project.root, run_id):  # noqa: ASYNC110 - a lock tells nobody
                await anyio.sleep(_LOOK_S)

    async def _asked(self, run_id: str, question: Json, ask: Callable[[Json, str | None], Awaitable[Any]]) -> Any:
        """What the person answers, until it is right; None: nothing."""
        problem: str | None = None
        while True:
            value = await ask(question, problem)
            if value is None:
                return None
            try:
                return await answer(self.project, self.owner.database, run_id, value, self.owner.trials)
            except AnswerError as error:
                problem = str(error)

    async def answer(self, workflow_id: str, value: Any) -> Json:
        """The answer that a paused run waits for; it goes on."""
        self._run(workflow_id)
        options = await answer(self.project, self.owner.database, workflow_id, value, self.owner.trials)
        await self._executor.begin(workflow_id, options)
        return {"success": True, "workflow_id": workflow_id}

    # --- signals

    async def stop(
        self,
        workspace: str | None = None,
        run_id: str | None = None,
        reason: str | None = None,
        cancel: bool = False,
        *,
        asker: str | None = None,
    ) -> Json:
        """Write a .stop file, or take it back. `asker`: the run whose agent asks, where one does."""
        target = signal_target(self.project, workspace, run_id, asker)
        return cancel_stop(target) if cancel else write_signal("stop", target, self._masked(reason or ""))

    async def abort(
        self, reason: str, run_id: str | None = None, workspace: str | None = None, *, asker: str | None = None
    ) -> Json:
        """Write an .abort file. `asker` as above."""
        target = signal_target(self.project, workspace, run_id, asker)
        return write_signal("abort", target, self._masked(reason))

    def _masked(self, reason: str) -> str:
        return self.owner.mask.masked_text(reason)

    async def status(self, workflow_id: str | None = None) -> Json:
        """As `status --json` has it; without an id the newest runs, as many as an agent should pay for."""
        if workflow_id is not None:
            return {"runs": [describe(self.owner.database, self.project.root, workflow_id)]}
        shown: list[Json] = []
        left = _STATUS_BYTES
        for run in map(_brief, self.newest_runs()):
            left -= len(as_json(run).encode(errors="replace")) + len(", ")
            if left < 0:
                return {"runs": shown, "more": True}
            shown.append(run)
        return {"runs": shown}

    def newest_runs(self) -> list[Json]:
        """The newest runs, as `status --json` has them."""
        return describe_all(self.owner.database, self.project.root, limit=_MOST_RUNS)

    async def _find(self, name: str) -> Definition:
        return await in_thread(find_workflow, self.project, name, self.owner.trials)

    async def _plan(self, prepared: Prepared) -> Json:
        return (await in_thread(plan, self.project, prepared, self.owner.trials)).to_json()

    def _run(self, run_id: str) -> StoredRun:
        return self.owner.journal.run(run_id)

    async def _run_object(self, run_id: str) -> Json:
        database = self.owner.database
        return {
            **describe(database, self.project.root, run_id),
            "state": await self._state(run_id),
            "messages": messages(database, run_id),
        }

    async def _state(self, run_id: str) -> Json:
        async with RunReader(self, run_id) as image:
            return image.states[()].state.flattened()

    def open_here(self, run_id: str) -> Execution | None:
        """The run itself, while this process executes it."""
        live = self._executor.live(run_id)
        return live.execution if live is not None else None


def _brief(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _brief(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_brief(one) for one in value]
    return f"{value[: _BRIEF - 1]}…" if isinstance(value, str) and len(value) > _BRIEF else value


class RunReader:
    """A run's image for a moment, whoever has the run."""

    def __init__(self, service: RunService, run_id: str) -> None:
        self._service = service
        self._run_id = run_id

    async def __aenter__(self) -> Run:
        owner = self._service.owner
        held = None  # while the run is loaded
        if self._service.open_here(self._run_id) is None:
            held = await definition_in_thread(owner, owner.journal.run(self._run_id))
        self._live = self._service.open_here(self._run_id)
        if self._live is not None:  # newer than the journal by what waits to be written
            return self._live.run
        self._image = load(owner, owner.journal.run(self._run_id))
        del held
        return self._image

    async def __aexit__(self, *_: object) -> None:
        if self._live is None:
            self._image.states.close()
