"""Plans a run without executing it: its steps with their conditions and dependencies, its tools and its duration.

An expression is evaluated where all that it reads is constant: the inputs, the fields that no step writes and whose
default no clock decides, and what is computed from these. Everything else stays as it is written, with its `{{ }}`.
What agents write by themselves, with the MCP tools, cannot be foreseen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sidecar.analysis.names import Constants, as_template, bare
from sidecar.catalog import agents, workflows
from sidecar.catalog.workflows import Definition
from sidecar.config import Settings
from sidecar.engine.cursor import moves
from sidecar.engine.cursor.actions import FieldName
from sidecar.engine.evaluation import Texts
from sidecar.engine.run import WorkflowStates
from sidecar.engine.step import needs_agent, of_task
from sidecar.errors import SidecarError
from sidecar.model import duration
from sidecar.model import steps as step_types
from sidecar.model.language import has_template
from sidecar.model.parameters import bind
from sidecar.model.steps import Step, Steps, Update, branches
from sidecar.state import shell
from sidecar.state.script import Script
from sidecar.state.template import as_text
from sidecar.state.values import truthy
from sidecar.text import one_line

_LONGEST = 180  # characters of a line
_PROMPT_SHOWN = 110  # so that the line has room for what follows
_INDENT = "  "
# How a line begins in a branch; in others with its name.
_BRANCHES = {None: "", "body": "", "task": "", "on_failure": "on failure: ", "cleanup_on_error": "on error: "}
_OPTIONAL = ("description", "branch", "estimated_sub_agents", "problems", "plan")
_ON = frozenset({"on"})
_OPERATIONS = {"set": "set {1} to {0}", "append": "append {0} to {1}", "merge": "merge {0} into {1}"}
# Tasks and workflows that lead to others multiply, and each level of them costs Python's stack.
_MOST_STEPS, _MOST_INCLUDED, _DEEPEST = 2000, 500, 40


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a plan. `inside`: the ids of the steps around it; `branch`: in which of their lists it is."""

    step_id: str
    type: str
    does: str
    conditions: tuple[str, ...]  # what has to hold for it to run, and is not known yet
    dependencies: tuple[str, ...]  # the steps that write what it reads
    inside: tuple[str, ...]
    description: str
    branch: str | None
    estimated_sub_agents: int | None  # of a `parallel_foreach`, where it is known
    problems: tuple[str, ...]  # what it would fail with
    plan: RunPlan | None  # of the workflow that it includes


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run would do."""

    workflow: str
    inputs: dict[str, Any]  # one that is not known has the text that gives it
    steps: tuple[PlanStep, ...]
    skipped: tuple[str, ...]  # the ids of the steps that are known not to run
    estimated_duration: str
    required_tools: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The result of `workflow_explain_plan`."""
        return asdict(self, dict_factory=_as_json)

    def lines(self) -> list[str]:
        """For people: one line a step, those inside others indented."""
        given = ", ".join(f"{name}={_shown(value)}" for name, value in self.inputs.items() if value is not None)
        title = one_line(f"{self.workflow} with {given}" if given else self.workflow, _LONGEST)
        about = [f"takes: {self.estimated_duration}", f"needs: {', '.join(self.required_tools) or 'nothing'}"]
        if self.skipped:
            about.insert(0, f"not run: {', '.join(self.skipped)}")
        return [title, *self._step_lines(_INDENT), *(one_line(line, _LONGEST) for line in about)]

    def _step_lines(self, indent: str) -> Iterator[str]:
        for step in self.steps:
            own = indent + _INDENT * len(step.inside)
            name = "" if "." in step.step_id else f"{step.step_id}: "  # else the id is its position
            branch = _BRANCHES.get(step.branch, f"{step.branch}: ")
            yield own + one_line(f"{branch}{name}{step.does}", _LONGEST)
            # A line of its own, so that it is not what is cut off where the line is long.
            yield from (f"{own}{_INDENT}! would fail: {one_line(problem, _LONGEST)}" for problem in step.problems)
            if step.plan is not None:
                yield from step.plan._step_lines(own + _INDENT)


def explain(
    definition: Definition, inputs: Mapping[str, Any], script: Script, root: str, settings: Settings
) -> RunPlan:
    """The plan of a run. InputError where the inputs do not fit, ExpressionError where the run could not begin."""
    parameters = definition.workflow.parameters
    # Inputs that were bound before have null for the optional ones that were not given.
    optional = {one.name for one in parameters if not one.is_required}
    given = {name: value for name, value in inputs.items() if value is not None or name not in optional}
    values = bind(parameters, given, f"workflow {definition.name!r}")
    return _Planner(definition, _Shared(script, root, settings.default_agent), ()).plan(values, {})


def _as_json(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a plan, or of a step without those that are optional and empty."""
    kept = {name: value for name, value in fields if value not in (None, "", ()) or name not in _OPTIONAL}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}


def _shown(value: object) -> str:
    """A value inside a line; a text that only the run can fill in stands without quotes."""
    is_open = isinstance(value, str) and has_template(value)
    return one_line(str(value) if is_open else json.dumps(value, ensure_ascii=False), 60)


# --- the values of one step


@dataclass(slots=True)
class _Values:
    """Evaluates the texts of one step, and collects what it would fail with."""

    constants: Constants
    hidden: frozenset[str]  # names that loops and tasks around it give
    problems: list[str] = field(default_factory=list)
    sub_agents: int | None = None

    def value(self, given: Any) -> tuple[Any, bool]:
        """A value of the definition with its constant expressions evaluated, and whether these are all."""
        return self.constants.value(given, self.hidden, self.problems)

    def text(self, given: str) -> str:
        """A text of the definition with its constant expressions evaluated."""
        return as_text(self.value(given)[0])

    def truth(self, condition: str | bool) -> bool | None:
        """Whether a condition holds; None where only the run knows."""
        value, is_known = self.value(as_template(condition) if isinstance(condition, str) else condition)
        return truthy(value) if is_known else None

    def length(self, given: float | str | None) -> tuple[str, float | None]:
        """A duration as text, and in seconds where it is known."""
        value, is_known = self.value(given)
        try:
            seconds_s = duration.seconds(value) if is_known and isinstance(given, str) else value if is_known else None
        except ValueError as error:
            self.problems.append(str(error))
            seconds_s = None
        return str(given) if seconds_s is None else duration.text(seconds_s), seconds_s

    def accepted(self, step: Step, key: FieldName, given: Any) -> tuple[Any, bool]:
        """A value that the run checks when it enters the step; not known where the run would refuse it."""
        value, is_known = self.value(given)
        try:
            if is_known or isinstance(given, list | tuple):
                return moves.checked_answer(step, key, value), True
        except ValueError as error:
            self.problems.append(str(error))
        return given, False

    def command(self, given: str | tuple[str, ...]) -> tuple[str, list[str]]:
        """A command as a person would type it, and the programs that it starts."""
        try:
            compiled = self.constants.texts.command(given)
            values = [
                self.constants.slot(slot, self.hidden, self.problems, is_filtered=False) for slot in compiled.slots
            ]
            if shell.UNKNOWN not in values:
                compiled.fill(values)
            return compiled.typed(values), compiled.programs(values)
        except SidecarError as error:
            self.problems.append(str(error))
            return given if isinstance(given, str) else " ".join(given), []


# --- from step to step


@dataclass(frozen=True, slots=True)
class _Position:
    """The position of a step. `hidden`: names that loops and tasks give; `beside`: the ids of the steps in loops and
    tasks around it, which may run before it."""

    hidden: frozenset[str] = frozenset()
    inside: tuple[str, ...] = ()
    branch: str | None = None
    conditions: tuple[str, ...] = ()
    beside: frozenset[str] = frozenset()
    tasks: tuple[str, ...] = ()
    task_agent: str | None = None

    def into(
        self, step: Step, branch: str, *conditions: str, hide: Iterable[str] = (), repeat: Steps = ()
    ) -> _Position:
        inside, conditions = (*self.inside, step.id), (*self.conditions, *conditions)
        hidden, beside = self.hidden.union(hide), self.beside.union(_ids(repeat))
        return replace(self, hidden=hidden, inside=inside, branch=branch, conditions=conditions, beside=beside)


@dataclass(frozen=True, slots=True)
class _Flow:
    """How the flow leaves a step. `ends`: any of on, break, continue, exit; `least_s`: the least time that it waits;
    `conditions` hold for all steps that follow, because the flow does not reach them otherwise."""

    ends: frozenset[str] = _ON
    least_s: float = 0.0
    conditions: tuple[str, ...] = ()


@dataclass(slots=True)
class _Shared:
    """Shared by the planners of a workflow and of those that it includes."""

    script: Script
    root: str
    default_agent: str
    included: int = 0


class _Planner:
    """Plans one definition: `planned` are the steps that may run, `skipped` those that are known not to run."""

    def __init__(self, definition: Definition, shared: _Shared, chain: tuple[str, ...]) -> None:
        self.planned: list[PlanStep] = []
        self.skipped: list[str] = []
        self.tools: set[str] = set()
        self.uncounted: set[str] = set()  # what takes a time that cannot be foreseen
        self.flow = _Flow()
        self._definition, self._shared, self._chain = definition, shared, (*chain, definition.loaded_from)

    def plan(self, inputs: dict[str, Any], raw: dict[str, Any], *, is_known: bool = True) -> RunPlan:
        """The plan with these inputs, and fields of `raw` that are given; `is_known`: whether all of them are."""
        states, texts = WorkflowStates(self._shared.script), Texts(self._shared.script)
        handling = self._definition.workflow.error_handling
        try:
            state = states.begin((), self._definition, inputs, raw) if is_known else None
            self._constants = Constants(self._definition, texts, state)
            self.flow = self._steps(self._definition.workflow.steps or (), _Position())
            failed = _Position(hidden=frozenset({"error"}), branch="on_failure", conditions=("the run fails",))
            self._steps(handling.on_failure or (), failed)
        finally:
            states.close()
        if handling.on_error == "retry_workflow":
            self.uncounted.add("retries")
        shown = {name: inputs.get(name) for name in self._definition.workflow.inputs}
        lasts, tools = _estimated(self.flow.least_s, sorted(self.uncounted)), tuple(sorted(self.tools))
        return RunPlan(self._definition.name, shown, tuple(self.planned), tuple(self.skipped), lasts, tools)

    def _steps(self, steps: Sequence[Step], position: _Position) -> _Flow:
        ends, least_s, conditions = frozenset[str](), 0.0, position.conditions
        for at, step in enumerate(steps):
            flow = self._step(step, replace(position, conditions=conditions))
            least_s += flow.least_s * (not ends)
            self.uncounted.update(["branches"] * bool(ends and flow.least_s))
            ends |= flow.ends - _ON
            conditions += flow.conditions
            if not flow.ends >= _ON:
                self.skipped += _ids(steps[at + 1 :])
                return _Flow(ends, least_s)
        return _Flow(ends | _ON, least_s, conditions[len(position.conditions) :])

    def _step(self, step: Step, position: _Position) -> _Flow:
        values = _Values(self._constants, position.hidden)
        if isinstance(step, step_types.Conditional):
            return self._conditional(step, position, values)
        if isinstance(step, step_types.While | step_types.ForEach):
            return self._loop(step, position, values)
        if isinstance(step, step_types.ParallelForEach):
            return self._parallel(step, position, values)
        flow, plan = _Flow(frozenset({step.type}) if step.type in ("break", "continue", "exit") else _ON), None
        if isinstance(step, step_types.IncludeWorkflow):
            does, plan, flow = self._include(step, values)
        elif isinstance(step, step_types.Wait) and step.until is None:
            length, seconds_s = values.length(step.duration_s)
            does, flow = f"wait {length}", _Flow(_ON, seconds_s or 0.0)
            self.uncounted.update(["waits"] * (seconds_s is None))
        else:
            does = self._does(step, position, values)
        if isinstance(step, step_types.RunsSomewhere) and step.working_dir is not None:
            does += f" in {values.text(step.working_dir)}"
        if isinstance(step, step_types.Working | step_types.Wait) and step.timeout_s is not None:
            does += f", for {values.length(step.timeout_s)[0]} at most"
        if isinstance(step, step_types.Working) and step.state_update is not None:
            does += f" → {values.text(step.state_update.path)}"
        self._add(step, position, values, does, plan)
        return flow

    def _conditional(self, step: step_types.Conditional, position: _Position, values: _Values) -> _Flow:
        condition, holds = bare(str(step.condition)), values.truth(step.condition)
        negated, else_ = f"!({condition})", step.else_ or ()
        if holds is None:
            self._add(step, position, values, f"if {condition}")
            yes = self._steps(step.then, position.into(step, "then", condition))
            no = self._steps(else_, position.into(step, "else", negated))
            sure = tuple(text for flow, text in ((yes, negated), (no, condition)) if not flow.ends >= _ON)
            self.uncounted.update(["branches"] * (yes.least_s != no.least_s))
            return _Flow(yes.ends | no.ends, min(yes.least_s, no.least_s), sure)
        branch, taken, other = ("then", step.then, else_) if holds else ("else", else_, step.then)
        does = f"{condition} {'is true' if holds else 'is false'}: {branch if taken else 'nothing to do'}"
        self._add(step, position, values, does)
        self.skipped += _ids(other)
        return self._steps(taken, position.into(step, branch))

    def _loop(self, step: step_types.While | step_types.ForEach, position: _Position, values: _Values) -> _Flow:
        if isinstance(step, step_types.While):
            condition, hide = bare(str(step.condition)), {"loop"}
            holds = replace(values, hidden=values.hidden | hide).truth(step.condition)
            limit, _ = values.accepted(step, "max_iterations", step.max_iterations)
            least, asked = int(holds is True), [condition] * (not holds)
            text = "until the loop is left" if holds else f"while {condition}"
            does = f"repeat {text} (max {limit})"
            if holds is False:
                does = f"{condition} is false: no iteration"
            is_empty, is_counted = holds is False, False
        else:
            hide = {"item", "index", "loop"}
            count, items = self._items(step, values)
            does = f"for each of {items}, one after the other"
            least, asked, is_empty, is_counted = count or 0, [], count == 0, count is not None
        self._add(step, position, values, does)
        if is_empty:
            self.skipped += _ids(step.inner)
            return _Flow()
        body = self._steps(step.inner, position.into(step, "body", *asked, hide=hide, repeat=step.inner))
        is_left = bool(body.ends - {"on", "continue"})
        self.uncounted.update(["loops"] * (body.least_s > 0 and (is_left or not is_counted)))
        ends = body.ends if least and body.ends == {"exit"} else (body.ends & {"exit"}) | _ON
        return _Flow(ends, body.least_s * (min(least, 1) if is_left else least))

    def _parallel(self, step: step_types.ParallelForEach, position: _Position, values: _Values) -> _Flow:
        count, items = self._items(step, values)
        width, is_known = values.accepted(step, "max_parallel", step.max_parallel)
        values.sub_agents = count
        name, tasks = step.sub_agent_task, self._definition.tasks
        task = tasks.get(name)
        steps = () if task is None else of_task(task)
        who, agent = "sidecar itself", position.task_agent
        if needs_agent(steps, tasks, self._included, "server"):
            who = agent = self._agent(step.agent, position, values, of_tasks=True)
        does = f"for each of {items}, {width} at a time: task {name} by {who}"
        does += "" if step.wait_for_all else ", going on when the first is done"
        again = name in position.tasks or len(self.planned) >= _MOST_STEPS or len(position.tasks) > _DEEPEST
        self._add(step, position, values, does + (", not shown again" if again else ""))
        if task is None or again or count == 0:
            return _Flow()
        inner = position.into(step, "task", hide=("item", "index", *task.inputs), repeat=steps)
        inner = replace(inner, tasks=(*position.tasks, name), task_agent=agent)
        body = self._steps(task.steps, inner)
        failed = replace(inner, branch="cleanup_on_error", conditions=(*position.conditions, "the task fails"))
        cleanup = task.error_handling.cleanup_on_error or ()
        self._steps(cleanup, replace(failed, hidden=failed.hidden | {"error"}))
        rounds = -(-count // width) if count is not None and is_known else 0
        self.uncounted.update(["tasks"] * (body.least_s > 0 and not rounds))
        return _Flow(_ON, body.least_s * (rounds if step.wait_for_all else min(rounds, 1)))

    def _include(self, step: step_types.IncludeWorkflow, values: _Values) -> tuple[str, RunPlan | None, _Flow]:
        given, is_known = values.value(step.inputs)
        listed = ", ".join(f"{name}={_shown(value)}" for name, value in given.items())
        does = f"run the workflow {step.workflow}" + (f" with {listed}" if listed else "")
        try:
            definition = self._included(self._definition, step.workflow)
            workflow = definition.workflow
            self._shared.included += 1
            is_again = definition.loaded_from in self._chain
            if is_again or self._shared.included > _MOST_INCLUDED or len(self._chain) > _DEEPEST:
                return f"{does}, not shown {'again' if is_again else 'any more'}", None, _Flow()
            raw = {name: value for name, value in given.items() if name in workflow.raw_fields}
            declared = {name: value for name, value in given.items() if name not in raw or name in workflow.inputs}
            inputs = bind(workflow.parameters, declared, f"workflow {step.workflow!r}") if is_known else declared
            inner = _Planner(definition, self._shared, self._chain)
            plan = inner.plan({**raw, **inputs}, raw, is_known=is_known)
        except SidecarError as error:
            values.problems.append(str(error).partition("; looked in ")[0])
            return does, None, _Flow()
        self.tools |= inner.tools
        self.uncounted |= inner.uncounted
        return does, plan, replace(inner.flow, conditions=())

    def _included(self, includer: Definition | None, name: str) -> Definition:
        return workflows.included(self._shared.root, includer or self._definition, name)

    def _does(self, step: Step, position: _Position, values: _Values) -> str:  # noqa: C901 - one for each type
        match step:
            case step_types.ShellCommand() | step_types.AgentShellCommand():
                text, programs = values.command(step.command)
                self._uses("commands", *(f"command:{program}" for program in programs))
                if isinstance(step, step_types.ShellCommand):
                    return f"run `{text}`"
                return f"run `{text}` on the terminal" + (f" ({values.text(step.reason)})" if step.reason else "")
            case step_types.AgentStep():
                who = self._agent(step.agent, position, values)
                if step.prompt_name is None:
                    return f"have {who} do: {one_line(values.text(str(step.prompt)), _PROMPT_SHOWN)}"
                given = ", ".join(f"{key}={_shown(value)}" for key, value in values.value(step.parameters)[0].items())
                return f"have {who} do the prompt {step.prompt_name}" + (f" with {given}" if given else "")
            case step_types.ApplyHints():
                who, hints = self._agent(step.agent, position, values), values.value(step.hints)[0]
                return f"have {who} apply hints to {values.text(step.file)}: {_shown(hints)}"
            case step_types.McpCall():
                method = values.text(step.mcp.method)
                tool = method if step.mcp.server is None else f"{values.text(step.mcp.server)}/{method}"
                self._uses("MCP tools", f"mcp:{tool}")
                return f"call the MCP tool {tool} with {_shown(values.value(step.mcp.params)[0])}"
            case step_types.StateUpdate():
                return ", ".join(_written(update, values) for update in step.writes)
            case step_types.UserInput():
                self._uses("answers")
                choices = "" if step.choices is None else f" ({', '.join(map(_shown, step.choices))})"
                return f"ask: {values.text(step.prompt)}{choices}"
            case step_types.UserMessage():
                return f"say: {values.text(step.message)}"
            case step_types.Wait():
                self._uses("waits")
                return f"wait until {bare(str(step.until))}"
            case step_types.Exit():
                does = "end the run" if step.status == "success" else "end the run as failed"
                return f"{does}: {values.text(step.message)}" if step.message else does
        return "leave the loop" if step.type == "break" else "continue with the loop's next iteration"

    def _agent(self, given: str | None, position: _Position, values: _Values, *, of_tasks: bool = False) -> str:
        """Which agent does a step, or further tasks: its own, that of the task around it, or the default one."""
        value, is_known = values.value(given)
        name = str(value) if value not in (None, "") else self._shared.default_agent
        if position.task_agent is not None and (given is None or of_tasks):
            name = position.task_agent
        self._uses("agents", f"agent:{name}")
        try:
            if is_known:
                agents.find(self._shared.root, name)
        except SidecarError as error:
            values.problems.append(str(error).partition("; looked in ")[0])
        return name

    def _uses(self, uncounted: str, *tools: str) -> None:
        self.uncounted.add(uncounted)
        self.tools.update(tools)

    def _items(self, step: step_types.ForEach | step_types.ParallelForEach, values: _Values) -> tuple[int | None, str]:
        """How many items there are, where that is known, and a text for them."""
        items, is_known = values.accepted(step, "items", step.items)
        if not is_known:
            return None, items if isinstance(items, str) else _shown(items)
        some = f" ({', '.join(map(_shown, items[:3]))}{', …' * (len(items) > 3)})" if items else ""
        return len(items), f"{len(items)} item{'s' * (len(items) != 1)}{some}"

    def _add(self, step: Step, position: _Position, values: _Values, does: str, plan: RunPlan | None = None) -> None:
        order = {one.step_id: number for number, one in enumerate(self.planned)}
        writers = self._constants.writers_of(step, position.hidden) - {step.id, *position.inside}
        needed = [one for one in writers if one in order or one in position.beside]
        self.planned.append(
            PlanStep(
                step_id=step.id,
                type=step.type,
                does=one_line(does, _LONGEST),
                conditions=position.conditions,
                dependencies=tuple(sorted(needed, key=lambda one: (order.get(one, len(order)), one))),
                inside=position.inside,
                description=step.description,
                branch=position.branch,
                estimated_sub_agents=values.sub_agents,
                problems=tuple(dict.fromkeys(values.problems)),
                plan=plan,
            )
        )


def _ids(steps: Iterable[Step]) -> Iterator[str]:
    for step in steps:
        yield step.id
        for children in branches(step).values():
            yield from _ids(children)


def _written(update: Update, values: _Values) -> str:
    path, value = values.text(update.path), _shown(values.value(update.value)[0])
    if update.operation == "increment":
        return f"increase {path} by {value if update.has_value else 1}"
    return _OPERATIONS[update.operation].format(value, path)


def _estimated(least_s: float, uncounted: Sequence[str]) -> str:
    """How long it takes: the waits that are sure, and what is not counted."""
    if not uncounted:
        return f"about {duration.text(least_s)}" if least_s else "at once"
    others = " and ".join([", ".join(uncounted[:-1]), uncounted[-1]] if len(uncounted) > 1 else uncounted)
    return f"at least {duration.text(least_s)}; {others} not counted"
