"""`agent` and `apply_hints`: a prompt goes to an agent, and its final answer is the result of the step.

A task of a `parallel_foreach` that has an agent of its own takes its turn here, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import anyio

from sidecar import layout
from sidecar.agents.adapters import ADAPTERS
from sidecar.agents.adapters.adapter import (
    Denied,
    Failed,
    McpConfiguration,
    MessagePiece,
    Resumed,
    SessionStarted,
    TokenUsage,
    ToolBegan,
    ToolEnded,
    Used,
    Waiting,
    json_in,
)
from sidecar.agents.output import OutputLines
from sidecar.agents.supervisor import Agent, Launch
from sidecar.agents.turn import AgentStarted, Files, TurnEvent, TurnOutcome, TurnSetting, take_turn
from sidecar.catalog import agents, prompts
from sidecar.engine.evaluation import positive_s
from sidecar.engine.steps.context import Context
from sidecar.engine.steps.output import COUNT, ProcessOutput, answer_value, applied_hints
from sidecar.errors import AgentFailed, DefinitionError, InputError, NotFound, StepFailed
from sidecar.model import events as kinds
from sidecar.model.agent import AgentDefinition, Assignment
from sidecar.model.parameters import bind
from sidecar.model.steps import AgentStep, ApplyHints
from sidecar.signals import files

PROMPT_NAME = "sub-agent"  # the standard prompt for the agent of a task
# The braces of the example are no JSON: an agent that repeats its prompt has not answered.
_HINTS_PROMPT = """\
Apply hints to one file.

The file, relative to the working directory: {file}

The hints:

{hints}

Change this file only, and only as the hints say. Leave out a hint that does not apply to it, or that is met already.

When you are done, end your answer with one line that is a JSON object and nothing else: the number of hints that you
applied, as in {{"applied_count": N}}. Where none applied, the number is 0.
"""
_SHOWN_CHARACTERS = 16 * 1024  # of a line, for listeners; the log has all of it
_KEPT_CHARACTERS = 64 * 1024  # of the answer of an agent that failed
_ACTIVITIES: Mapping[type, str] = {
    SessionStarted: "session_started",
    MessagePiece: "message",
    ToolBegan: "tool_started",
    ToolEnded: "tool_ended",
    Used: "usage",
    Waiting: "waiting",
    Resumed: "resumed",
    Denied: "denied",
    Failed: "failed",
}


async def run_agent(step: AgentStep, context: Context) -> Any:
    """The answer, in the step's `output_format`."""
    view = context.view
    parameters: dict[str, Any] = view.value(step.parameters)
    if step.prompt_name is not None:
        prompt, parameters = named_prompt(context, step.prompt_name, parameters), {}
    else:
        assert step.prompt is not None
        if "prompt" in parameters:
            raise StepFailed("both `parameters` and the step have a `prompt`: remove one")
        prompt = view.text(step.prompt)
    result = await _take_turn(
        context,
        TurnRequest(
            agent=step.agent,
            prompt=prompt,
            parameters=parameters,
            cwd=context.directory(step.working_dir),
            env=context.variables(step.env),
            timeout=step.timeout_s,
        ),
    )
    text, structured = result.answer(), result.outcome.summary.structured
    if step.output_format == "json":
        return answer_value(text, "json") if structured is None or _as_json(structured) is None else structured
    # An answer has lost its last line break already, and a format would take the one before it for the last.
    return answer_value(text + "\n" if text else "", step.output_format)


async def run_apply_hints(step: ApplyHints, context: Context) -> dict[str, Any]:
    """The object at the end of the agent's answer; `applied_count` in it is a whole number."""
    view = context.view
    prompt = _HINTS_PROMPT.format(file=view.text(step.file), hints=_listed(view.value(step.hints)))
    cwd = context.directory(None)
    result = await _take_turn(context, TurnRequest(agent=step.agent, prompt=prompt, cwd=cwd, timeout=step.timeout_s))
    text, structured = result.answer(), result.outcome.summary.structured
    found = applied_hints(structured if isinstance(structured, dict) and COUNT in structured else text)
    if found is None:
        message = f'agent {result.agent!r} did not end its answer with {{"{COUNT}": a whole number}}'
        raise StepFailed(message, kind="agent", agent=result.agent, answer=text[-500:])
    return found


def _listed(hints: Any) -> str:
    """The hints as an agent reads them best: texts as a list, everything else as JSON."""
    if isinstance(hints, str):
        return hints
    if isinstance(hints, list) and hints and all(isinstance(hint, str) for hint in hints):
        return "\n".join("- " + hint.strip().replace("\n", "\n  ") for hint in hints)
    return json.dumps(hints, ensure_ascii=False, indent=2)


async def run_task_agent(
    context: Context, *, agent_name: str | None, prompt_override: str | None, description: str
) -> TurnResult:
    """One turn of the agent of a task, which asks the run for the task's steps. StepFailed: it could not begin.

    `agent_name` and `prompt_override` are texts of the definition; `task_id`, `workflow_id` and `description` are names
    in the override.
    """
    names = {"task_id": context.task_id or "", "workflow_id": context.services.run_id, "description": description}
    if prompt_override is not None:
        prompt = context.view.with_names(**names).text(prompt_override)
    else:
        given = {name: value for name, value in names.items() if value.strip()}
        # A project may have a standard prompt of its own, which need not declare all of them.
        prompt = named_prompt(context, PROMPT_NAME, given, strict=False)
    return await _take_turn(context, TurnRequest(agent=agent_name, prompt=prompt, cwd=context.directory(None)))


def named_prompt(context: Context, name: str, given: Mapping[str, Any], *, strict: bool = True) -> str:
    """A prompt of the catalog, rendered with parameters. Not `strict`: parameters that it does not declare are ignored.

    A parameter that is null counts as not given.
    """
    try:
        prompt = prompts.find(context.services.root, name)
        declared = {parameter.name for parameter in prompt.parameters}
        used = {key: value for key, value in given.items() if value is not None and (strict or key in declared)}
        values = bind(prompt.parameters, used, f"prompt {name!r}")
    except (NotFound, DefinitionError, InputError) as error:
        raise StepFailed(str(error), kind="prompt") from None
    return context.view.with_names(**values).text(prompt.body)


def _as_json(value: Any) -> str | None:
    """JSON text; None for a value that has none, such as the NaN that Python reads out of what calls itself JSON."""
    try:
        return json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None


# --- one turn of an agent


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """What a step wants of an agent. `agent` and `timeout` are as the definition has them: templates, or None."""

    agent: str | None
    prompt: str
    cwd: str
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the agent's definition, besides the prompt
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float | str | None = None


@dataclass(frozen=True, slots=True)
class TurnResult:
    """A turn that has ended, well or not."""

    agent: str
    outcome: TurnOutcome
    error_line: str  # the last line on its stderr
    timed_by_step: bool = False  # a timeout is then the step's failure, as of any other step, and no limit of the agent

    @property
    def failure(self) -> StepFailed | None:
        """Why the turn failed; None where it ended well."""
        found = self._reason()
        if found is None:
            return None
        kind, why = found
        ended = self.outcome.ended
        facts: dict[str, object] = {"exit_code": ended.exit_code, "reason": ended.reason, "stderr": self.error_line}
        if kind in ("stall", "budget") or (kind == "timeout" and not self.timed_by_step):
            facts["limit"] = kind
        return StepFailed(f"agent {self.agent!r}: {why}", kind=kind, agent=self.agent, **facts)

    def answer(self) -> str:
        """The final answer of a turn that ended well; StepFailed otherwise."""
        if (failure := self.failure) is not None:
            raise failure
        return self.outcome.summary.text

    def _reason(self) -> tuple[str, str] | None:
        outcome = self.outcome
        limit, reason = outcome.limit, outcome.ended.reason
        # A limit that is noticed after the agent was ended for another reason did not decide anything.
        if limit is not None and reason in ("exited", limit.reason):
            return limit.reason, limit.message
        if reason != "exited":
            problem = outcome.ended.problem
            return "agent", f"it was ended: {reason}{f' ({problem})' if problem else ''}"
        if outcome.failure is None:
            return None
        if outcome.summary.budget_reached:
            return "budget", outcome.failure
        explained = outcome.summary.error is not None or not self.error_line
        return "agent", outcome.failure if explained else f"{outcome.failure}: {self.error_line}"


async def _take_turn(context: Context, request: TurnRequest) -> TurnResult:
    """Start an agent, give it the prompt, and wait for its end. StepFailed: it could not begin.

    Cancelled, it returns when the agent's whole process tree is gone. What the agent has spent counts all the same.
    """
    assignment = _assignment(context, request)
    listener = _TurnListener(context, prints_json=ADAPTERS[assignment.definition.adapter].prints_json)

    async def start(launch: Launch) -> Agent:
        return await context.start(launch, assignment.name)

    setting = _setting(context, request, assignment.definition)
    result: TurnResult | None = None
    try:
        outcome = await take_turn(assignment, setting, start, listener)
        result = TurnResult(assignment.name, outcome, listener.last_error_line, request.timeout is not None)
    except AgentFailed as error:
        raise StepFailed(str(error), kind="agent", agent=assignment.name) from None
    finally:
        listener.end(result)
    if outcome.ended.reason == "exited":  # the text of an agent that was ended is not its answer
        await apply_abort_line(context, outcome.summary.text)
    return result


def _assignment(context: Context, request: TurnRequest) -> Assignment:
    """The definition of the agent with this prompt, the step's variables, and the limits of the step and the run."""
    name = None if request.agent is None else context.view.value(request.agent)
    if name is None or name == "":
        name = context.services.settings.default_agent
    if not isinstance(name, str):
        raise StepFailed(f"`agent` has to be the name of one, not {name!r}", kind="agent")
    if context.cost_remaining_usd is not None and context.cost_remaining_usd <= 0:
        raise StepFailed(f"agent {name!r}: nothing is left of the run's budget", kind="budget", agent=name)
    try:
        definition = _limited(context, request, agents.find(context.services.root, name).definition)
        # A parameter that is null counts as not given, so that an input can be passed on as it is.
        given = {key: value for key, value in request.parameters.items() if value is not None}
        if request.prompt or any(parameter.name == "prompt" for parameter in definition.declared):
            given["prompt"] = request.prompt
        assignment = definition.assign(name, given)
    except (NotFound, DefinitionError, InputError) as error:
        raise StepFailed(str(error), kind="agent", agent=name) from None
    if not context.additions:
        return assignment
    # Additions follow everything that the author wrote: the last word is the person's.
    return replace(assignment, prompt="\n\n".join((assignment.prompt.rstrip("\n"), *context.additions)))


def _limited(context: Context, request: TurnRequest, definition: AgentDefinition) -> AgentDefinition:
    limits = definition.limits
    changes = {
        "timeout_s": _least(limits.timeout_s, positive_s(context.view, request.timeout, "timeout")),
        "max_cost_usd": _least(limits.max_cost_usd, context.cost_remaining_usd),
    }
    return definition.model_copy(
        update={"limits": limits.model_copy(update=changes), "env": {**definition.env, **request.env}}
    )


def _least(*limits: float | None) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _setting(context: Context, request: TurnRequest, definition: AgentDefinition) -> TurnSetting:
    services, task_id = context.services, context.task_id
    secrets = services.settings.secret_values(definition.env)
    services.mask.learn(secrets)
    mcp: McpConfiguration | None = services.mcp
    if mcp is not None and task_id is not None:
        # Not every tool passes its own environment on to its MCP servers (codex: three variables).
        mcp = {**mcp, "env": {**mcp["env"], "SIDECAR_TASK_ID": task_id}}
    return TurnSetting(
        cwd=request.cwd,
        environment=services.environment,
        run_id=services.run_id,
        log_path=context.log_path(),
        task_id=task_id,
        secrets=(*services.secrets, *secrets),
        kill_after_s=services.settings.kill_after_s,
        mcp=mcp,
        files=Files((services.root, request.cwd), services.workspace),
    )


class _TurnListener(ProcessOutput):
    """Emits the output and the activity of an agent, and its usage at the end."""

    def __init__(self, context: Context, *, prints_json: bool) -> None:
        super().__init__(context, line_characters=_SHOWN_CHARACTERS)
        self._context = context
        self._prints_json = prints_json
        self._agent_id: str | None = None
        self._session_id: str | None = None
        self._used = Used(TokenUsage(), None)

    def __call__(self, event: TurnEvent) -> None:
        if isinstance(event, AgentStarted):
            self._agent_id = event.agent_id
            return
        if isinstance(event, OutputLines):
            self.add(self._agent_id, event, json=self._prints_json and event.stream == "stdout")
            return
        if isinstance(event, Used):
            self._used = event
        elif isinstance(event, SessionStarted):
            self._session_id = event.session_id
        data = {"agent_id": self._agent_id, "activity": _ACTIVITIES[type(event)], **asdict(event)}
        if isinstance(event, MessagePiece):
            data["text"] = event.text[:_SHOWN_CHARACTERS]
        self._context.emit(kinds.ACTIVITY, {**data, "json": self._prints_json})

    def end(self, result: TurnResult | None) -> None:
        """Count what was spent, and journal how the turn ended; None: it was cancelled."""
        if self._agent_id is None:
            return
        self._context.spend(self._used.cost_usd, self._used.tokens.total)
        data = {"agent_id": self._agent_id, "session_id": self._session_id, **asdict(self._used)}
        if result is not None:
            summary = result.outcome.summary
            same = summary.structured is None or summary.structured == json_in(summary.text)
            # As JSON text: the journal limits how deep a value may be nested, and an agent must not reach that limit.
            data["structured"] = None if same else _as_json(summary.structured)
            if result.failure is not None:
                data["text"] = summary.text[-_KEPT_CHARACTERS:]
        self._context.emit(kinds.TURN_ENDED, data)


# --- `ABORT ERROR`: how agents asked for an abort before they had a tool for it


MARK = "ABORT ERROR"
_AROUND = " \t:.,;!*_`#>-–—\"'"  # what a sentence or Markdown puts between the mark and the reason, or behind it
_LONGEST_REASON = 500
_LOOK_S = 0.05


def abort_line_reason(answer: str) -> str | None:
    """The reason that an agent's final answer gives for an abort; None where it asks for none.

    Only the last line that is not blank counts, and only its beginning: an agent may quote the mark or write about it.
    """
    line = answer.rstrip().rpartition("\n")[2]
    if not line.startswith(MARK):
        return None
    reason = line.removeprefix(MARK).strip(_AROUND)[:_LONGEST_REASON]
    return reason or f"the agent answered {MARK}"


async def apply_abort_line(context: Context, answer: str) -> None:
    """Abort the run if the answer asks for it: then this does not return, it is cancelled as by any other abort."""
    services = context.services
    reason = abort_line_reason(answer) if services.settings.legacy_abort_text else None
    if reason is None:
        return
    warning = (
        f"the agent's answer ends with {MARK}, which aborts the run: that text is deprecated, agents have the tool "
        "`abort` (the setting `legacy_abort_text: false` makes it a text like any other)"
    )
    context.emit(kinds.WARNING, {"text": warning})
    directory = layout.run_directory(services.root, services.run_id)
    path = files.write(directory, "abort", reason, files.new_trailers(run_id=services.run_id))
    # The step must not complete meanwhile, and be the last one: then the run would be completed.
    while files.present(path):  # noqa: ASYNC110 - it ends by being cancelled
        await anyio.sleep(_LOOK_S)
    raise StepFailed(f"the agent's answer ends with {MARK}, but the abort was cancelled: {reason}", kind="agent")
