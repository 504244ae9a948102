"""`agent`: a prompt goes to an agent, and its final answer is the step's result."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio

from sidecar import layout
from sidecar.agents.adapters import ADAPTERS, events
from sidecar.agents.adapters.account import json_in
from sidecar.agents.evidence import Files
from sidecar.agents.stream import Output
from sidecar.agents.turn import Setting, Started, Turn
from sidecar.catalog import agents, prompts
from sidecar.engine.evaluation import positive_s
from sidecar.engine.steps import output
from sidecar.engine.steps.output import fenced, last_count, last_object
from sidecar.errors import AgentFailed, DefinitionError, InputError, NotFound, StepFailed
from sidecar.model import events as kinds
from sidecar.model.parameters import bind
from sidecar.signals import files, trailers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.agents.adapters.adapter import McpConfiguration
    from sidecar.agents.agent import Agent
    from sidecar.agents.launch import Launch
    from sidecar.agents.turn import Outcome, Told
    from sidecar.engine.steps.context import Context
    from sidecar.model.agent import AgentDefinition, Assignment
    from sidecar.model.steps import AgentStep, ApplyHints, OutputFormat


async def run_agent(step: AgentStep, context: Context) -> Any:
    """The answer, as `output_format` wants it."""
    prompt, parameters = _prompt(step, context)
    order = Order(
        agent=step.agent,
        prompt=prompt,
        parameters=parameters,
        cwd=context.directory(step.working_dir),
        env={name: context.view.text(value) for name, value in step.env.items()},
        timeout=step.timeout_s,
        task_id=context.task_id,
    )
    return _result(await take_turn(context, order), step.output_format)


def _prompt(step: AgentStep, context: Context) -> tuple[str, dict[str, Any]]:
    """What the agent is told, and what its definition gets besides."""
    parameters: dict[str, Any] = context.view.value(step.parameters)
    if step.prompt_name is not None:
        return named_prompt(context, step.prompt_name, parameters), {}
    assert step.prompt is not None
    if "prompt" in parameters:
        raise StepFailed("`parameters` has a `prompt`, and so has the step: only one of them can hold")
    return context.view.text(step.prompt), parameters


def _result(taken: Taken, wanted: OutputFormat) -> Any:
    text = taken.answer()
    if wanted == "json":
        return _json(text, taken.outcome.summary.structured)
    # An answer has lost its last line break already, and a format would take the one before it for the last.
    return output.formatted(text + "\n" if text else "", wanted)


def _json(text: str, structured: Any) -> Any:
    """The tool's own structured output, else the whole answer, else the last fenced block that is JSON: models wrap
    JSON in a fence, however they are asked not to."""
    if structured is not None and _is_json(structured):
        return structured
    try:
        return output.formatted(text, "json")
    except StepFailed:
        for block in fenced(text):
            try:
                return output.formatted(block, "json")
            except StepFailed:
                continue
        raise


def _is_json(value: Any) -> bool:
    """Python reads NaN and Infinity out of a text that calls itself JSON; nobody else would."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


# `apply_hints`: an agent applies hints to a file, and says how many it applied.


_COUNT = "applied_count"
# The braces of the example are no JSON: an agent that repeats what it was told has not answered.
_PROMPT = """\
Apply hints to one file.

The file, relative to the working directory: {file}

The hints:

{hints}

Change this file only, and only as the hints say. Leave out a hint that does not apply to it, or that is met already.

When you are done, end your answer with one line that is a JSON object and nothing else: the number of hints that you
applied, as in {{"applied_count": N}}. Where none applied, the number is 0.
"""


async def run_apply_hints(step: ApplyHints, context: Context) -> dict[str, Any]:
    """The object at the end of the agent's answer; `applied_count` in it is a whole number."""
    view = context.view
    prompt = _PROMPT.format(file=view.text(step.file), hints=_listed(view.value(step.hints)))
    order = Order(
        agent=step.agent,
        prompt=prompt,
        cwd=context.directory(None),
        timeout=step.timeout_s,
        task_id=context.task_id,
    )
    return _answer(await take_turn(context, order))


def _listed(hints: Any) -> str:
    """The hints as an agent reads them best: texts as a list, everything else as JSON."""
    if isinstance(hints, str):
        return hints
    if isinstance(hints, list) and hints and all(isinstance(hint, str) for hint in hints):
        return "\n".join("- " + hint.strip().replace("\n", "\n  ") for hint in hints)
    return json.dumps(hints, ensure_ascii=False, indent=2)


def _answer(taken: Taken) -> dict[str, Any]:
    text = taken.answer()
    structured = taken.outcome.summary.structured
    found = structured if isinstance(structured, dict) and _COUNT in structured else last_object(text, _COUNT)
    count = _whole(found[_COUNT]) if found is not None else last_count(text)
    if count is None:
        message = f'agent {taken.agent!r} did not end its answer with {{"{_COUNT}": a whole number}}'
        raise StepFailed(message, kind="agent", agent=taken.agent, answer=text[-500:])
    return {**(found or {}), _COUNT: count}


def _whole(value: Any) -> int | None:
    """A count, as lenient as is safe: 3, 3.0 and "3" are one."""
    if isinstance(value, str):
        return last_count(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < 0:
        return None
    return int(value)


# An agent of its own for one task of a `parallel_foreach`: it asks the run for the task's steps, and does them.


PROMPT_NAME = "sub-agent"


async def run_task_agent(
    context: Context, *, agent_name: str | None, prompt_override: str | None, task_id: str, description: str
) -> Taken:
    """One turn of it, however it ended: `failure` says what went wrong with the agent, the task's steps what is done.

    `agent_name` and `prompt_override` are the step's own words, templates included; `task_id`, `workflow_id` and
    `description` are names in the override. StepFailed: the turn could not begin.
    """
    names = {"task_id": task_id, "workflow_id": context.services.run_id, "description": description}
    if prompt_override is not None:
        prompt = context.view.with_names(**names).text(prompt_override)
    else:
        given = {name: value for name, value in names.items() if value.strip()}
        # A project may have a standard prompt of its own, which need not ask for everything.
        prompt = named_prompt(context, PROMPT_NAME, given, strict=False)
    order = Order(agent=agent_name, prompt=prompt, cwd=context.directory(None), task_id=task_id)
    return await take_turn(context, order)


# One turn of an agent on behalf of a step: who takes it, within which limits, what it cost, and why it failed.


# Whoever watches a run needs no more of a line than this; the log has all of it.
_SHOWN_CHARACTERS = 16 * 1024
_COMPLAINT_CHARACTERS = 500
_KEPT_CHARACTERS = 64 * 1024  # of what an agent said that failed
_LIMITS = frozenset({"timeout", "stall", "budget"})
_ACTIVITIES: Mapping[type, str] = {
    events.SessionStarted: "session_started",
    events.Said: "message",
    events.ToolBegan: "tool_started",
    events.ToolEnded: "tool_ended",
    events.Used: "usage",
    events.Waiting: "waiting",
    events.Resumed: "resumed",
    events.Denied: "denied",
    events.Failed: "failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is asked of an agent. `agent` and `timeout` are as the definition has them: templates, or nothing."""

    agent: str | None
    prompt: str
    cwd: str
    parameters: Mapping[str, Any] = field(default_factory=dict)  # what the agent's definition asks for besides
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float | str | None = None
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """A turn that is over."""

    agent: str
    outcome: Outcome
    complaint: str  # the last line on its stderr
    timed_by_step: bool = False  # a timeout is then the step's failure, as of any other step, and no limit of the agent

    @property
    def text(self) -> str:
        """The agent's final answer."""
        return self.outcome.summary.text

    @property
    def failure(self) -> StepFailed | None:
        """Why it came to nothing; None where it ended well."""
        found = self._why()
        if found is None:
            return None
        kind, why = found
        ended = self.outcome.ended
        known: dict[str, object] = {"exit_code": ended.exit_code, "reason": ended.reason, "stderr": self.complaint}
        if kind in _LIMITS and not (kind == "timeout" and self.timed_by_step):
            known["limit"] = kind
        return StepFailed(f"agent {self.agent!r}: {why}", kind=kind, agent=self.agent, **known)

    def answer(self) -> str:
        """The final answer of a turn that ended well; StepFailed otherwise."""
        if (failure := self.failure) is not None:
            raise failure
        return self.text

    def _why(self) -> tuple[str, str] | None:
        outcome = self.outcome
        limit, reason = outcome.limit, outcome.ended.reason
        # A limit that is noticed when somebody else has already ended the agent did not decide anything.
        if limit is not None and reason in ("exited", limit.reason):
            return limit.reason, limit.message
        if reason != "exited":
            problem = outcome.ended.problem
            return "agent", f"it was ended: {reason}{f' ({problem})' if problem else ''}"
        if outcome.failure is None:
            return None
        if outcome.summary.budget_reached:
            return "budget", outcome.failure
        told = outcome.summary.error is not None or not self.complaint
        return "agent", outcome.failure if told else f"{outcome.failure}: {self.complaint}"


async def take_turn(context: Context, order: Order) -> Taken:
    """Start an agent, give it the prompt, and wait for its end. StepFailed: it could not even begin.

    Cancelled, it returns when the agent's whole tree is gone. What it has spent counts all the same.
    """
    assignment = _assignment(context, order)
    ear = _Ear(context, prints_json=ADAPTERS[assignment.definition.adapter].prints_json)

    async def start(launch: Launch) -> Agent:
        return await context.start(launch, assignment.name)

    turn = Turn(assignment, _setting(context, order, assignment.definition), ear)
    taken: Taken | None = None
    try:
        outcome = await turn.take(start)
        taken = Taken(assignment.name, outcome, ear.complaint, order.timeout is not None)
    except AgentFailed as error:
        raise StepFailed(str(error), kind="agent", agent=assignment.name) from None
    finally:
        ear.settle(taken)
    if outcome.ended.reason == "exited":  # what an agent says that is being ended is not its answer
        await apply_abort_line(context, outcome.summary.text)
    return taken


def named_prompt(context: Context, name: str, given: Mapping[str, Any], *, strict: bool = True) -> str:
    """A prompt of the catalog with its parameters filled in; not `strict`: what it does not ask for is left out."""
    try:
        prompt = prompts.find(context.services.root, name)
        given = {key: value for key, value in given.items() if value is not None}  # null: not given
        if not strict:
            declared = {parameter.name for parameter in prompt.parameters}
            given = {key: value for key, value in given.items() if key in declared}
        values = bind(prompt.parameters, given, f"prompt {name!r}")
    except (NotFound, DefinitionError, InputError) as error:
        raise StepFailed(str(error), kind="prompt") from None
    return context.view.with_names(**values).text(prompt.body)


def _assignment(context: Context, order: Order) -> Assignment:
    name = _agent_name(context, order.agent)
    if context.cost_left_usd is not None and context.cost_left_usd <= 0:
        raise StepFailed(f"agent {name!r}: nothing is left of the run's budget", kind="budget", agent=name)
    try:
        definition = _limited(context, order, agents.find(context.services.root, name).definition)
        assignment = definition.assign(name, _given(order, definition))
    except (NotFound, DefinitionError, InputError) as error:
        raise StepFailed(str(error), kind="agent", agent=name) from None
    if not context.additions:
        return assignment
    # What was added stands behind everything that the author wrote: the last word is the person's.
    return replace(assignment, prompt="\n\n".join((assignment.prompt.rstrip("\n"), *context.additions)))


def _given(order: Order, definition: AgentDefinition) -> dict[str, Any]:
    """What the agent's definition gets. What is null was not given, so that an input can be passed on as it is."""
    given = {key: value for key, value in order.parameters.items() if value is not None}
    asks = any(parameter.name == "prompt" for parameter in definition.declared)
    return {**given, "prompt": order.prompt} if order.prompt or asks else given


def _agent_name(context: Context, given: str | None) -> str:
    name = None if given is None else context.view.value(given)
    if name is None or name == "":
        return context.services.settings.default_agent
    if not isinstance(name, str):
        raise StepFailed(f"`agent` has to be the name of one, not {name!r}", kind="agent")
    return name


def _limited(context: Context, order: Order, definition: AgentDefinition) -> AgentDefinition:
    """The definition with the step's variables, and with limits that are at most the step's and the run's."""
    limits = definition.limits
    changes = {
        "timeout_s": _least(limits.timeout_s, positive_s(context.view, order.timeout, "timeout")),
        "max_cost_usd": _least(limits.max_cost_usd, context.cost_left_usd),
    }
    return definition.model_copy(
        update={"limits": limits.model_copy(update=changes), "env": {**definition.env, **order.env}}
    )


def _least(*limits: float | None) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _setting(context: Context, order: Order, definition: AgentDefinition) -> Setting:
    services = context.services
    given = services.settings.secret_values(definition.env)
    services.mask.learn(given)
    return Setting(
        cwd=order.cwd,
        environment=services.environment,
        run_id=services.run_id,
        log_path=context.log_path(),
        task_id=order.task_id,
        secrets=(*services.secrets, *given),
        kill_after_s=services.settings.kill_after_s,
        mcp=_mcp(services.mcp, order.task_id),
        files=Files((services.root, order.cwd), services.workspace),
    )


def _mcp(mcp: McpConfiguration | None, task_id: str | None) -> McpConfiguration | None:
    if mcp is None or task_id is None:
        return mcp
    # Not every tool passes its own environment on to its MCP servers (codex: three variables).
    return {**mcp, "env": {**mcp["env"], "SIDECAR_TASK_ID": task_id}}


def _structured(summary: events.Summary) -> str | None:
    """The tool's own structured answer, where the text is not the same. As JSON text: the journal has its own limit for
    how deep a value may be nested, and it is not for an agent to reach that."""
    if summary.structured is None or summary.structured == json_in(summary.text):
        return None
    try:
        return json.dumps(summary.structured, allow_nan=False)
    except (ValueError, RecursionError):
        return None


class _Ear:
    """Passes on what a turn tells, and remembers what it cost and what it complained of last."""

    def __init__(self, context: Context, *, prints_json: bool) -> None:
        self._context = context
        self._prints_json = prints_json
        self._agent_id: str | None = None
        self._session_id: str | None = None
        self._used: events.Used | None = None
        self.complaint = ""

    def __call__(self, told: Told) -> None:
        if isinstance(told, Started):
            self._agent_id = told.agent_id
        elif isinstance(told, Output):
            self._said(told)
        else:
            if isinstance(told, events.Used):
                self._used = told
            elif isinstance(told, events.SessionStarted):
                self._session_id = told.session_id
            self._does(told)

    def settle(self, taken: Taken | None) -> None:
        """Count what was spent, and keep what the turn came to, however it ended; None: somebody ended it."""
        if self._agent_id is None:
            return
        used = self._used or events.Used(events.Tokens(), None)
        self._context.spend(used.cost_usd, used.tokens.total)
        data = {"agent_id": self._agent_id, "session_id": self._session_id, **asdict(used)}
        if taken is not None:
            data |= {"structured": _structured(taken.outcome.summary)}
            data |= {"text": taken.text[-_KEPT_CHARACTERS:]} if taken.failure is not None else {}
        self._context.emit(kinds.TURN_ENDED, data)

    def _said(self, output: Output) -> None:
        if output.stream == "stderr":
            self.complaint = next((line.strip() for line in reversed(output.lines) if line.strip()), self.complaint)
            self.complaint = self.complaint[:_COMPLAINT_CHARACTERS]
        lines = [line[:_SHOWN_CHARACTERS] for line in output.lines]
        data: dict[str, Any] = {"agent_id": self._agent_id, "stream": output.stream, "lines": lines}
        data["json"] = self._prints_json and output.stream == "stdout"
        if output.dropped:
            data["dropped"] = output.dropped
        self._context.emit(kinds.AGENT_OUTPUT, data)

    def _does(self, event: events.Event) -> None:
        data = {"agent_id": self._agent_id, "activity": _ACTIVITIES[type(event)], **asdict(event)}
        data["json"] = self._prints_json
        if isinstance(event, events.Said):
            data["text"] = event.text[:_SHOWN_CHARACTERS]
        self._context.emit(kinds.ACTIVITY, data)


# `ABORT ERROR`: how agents asked for an abort before there was a tool for it. It becomes the run's own `.abort`.


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
    told = line.removeprefix(MARK).strip(_AROUND)[:_LONGEST_REASON]
    return told or f"the agent answered {MARK}"


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
    path = files.write(directory, "abort", reason, trailers.signed(run_id=services.run_id))
    # The step must not complete meanwhile, and be the last one: then the run would be completed.
    while files.present(path):  # noqa: ASYNC110 - it ends by being cancelled
        await anyio.sleep(_LOOK_S)
    raise StepFailed(f"the agent's answer ends with {MARK}, but the abort was taken back: {reason}", kind="agent")
