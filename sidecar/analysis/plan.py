"""Plans a run without executing it: which steps run, under which conditions, with what, and for how long."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from sidecar.analysis.names import target
from sidecar.catalog import agents, prompts, workflows
from sidecar.engine.cursor import moves
from sidecar.engine.evaluation import Texts, View
from sidecar.engine.step import needs_agent, of_task
from sidecar.errors import ExpressionError, InputError, SidecarError
from sidecar.model import duration
from sidecar.model import steps as kinds
from sidecar.model.language import Role, has_template
from sidecar.model.parameters import bind, misfit, unknown
from sidecar.model.steps import Exit
from sidecar.model.steps_control import (
    Break,
    Conditional,
    Continue,
    ForEach,
    IncludeWorkflow,
    Loop,
    ParallelForEach,
    While,
    branches,
)
from sidecar.state import javascript
from sidecar.state.javascript import Placeholder, split_template
from sidecar.state.paths import show
from sidecar.state.reactive import Computed, Graph, Reactive, Write
from sidecar.state.template import Slot, as_text
from sidecar.state.values import truthy
from sidecar.state.world import World
from sidecar.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from sidecar.catalog.imports import Definition
    from sidecar.config import Settings
    from sidecar.engine.cursor.actions import FieldName
    from sidecar.model.steps import StepBase
    from sidecar.model.steps_control import IncludeWorkflow, Step, Steps
    from sidecar.model.workflow import Workflow
    from sidecar.state.script import Script

    Include = Callable[["IncludeWorkflow", "Account"], "tuple[Plan, Way] | None"]
    from collections.abc import Callable, Iterator, Sequence

    from sidecar.model import workflow as model
    from sidecar.model.expressions import Site
    from sidecar.model.updates import Update
    from sidecar.state.reactive import Graph
    from sidecar.state.script import Expression
    from sidecar.state.shell import PreparedCommand
    from sidecar.state.template import Slot


__all__ = ["Plan", "explain"]

# Workflows that include workflows multiply, and each level of them costs Python's stack.
_MOST_INCLUDED = 500
_DEEPEST = 40


def explain(definition: Definition, inputs: Mapping[str, Any], script: Script, root: str, settings: Settings) -> Plan:
    """The plan of a run. InputError where the inputs do not fit, ExpressionError where the run could not begin."""
    parameters = definition.workflow.parameters
    # What was bound once has null for what nobody gave.
    optional = {one.name for one in parameters if not one.is_required}
    given = {name: value for name, value in inputs.items() if value is not None or name not in optional}
    values = bind(parameters, given, f"workflow {definition.name!r}")
    return _Explaining(script, root, settings).plan(definition, values, {}, ())[0]


@dataclass(slots=True)
class _Explaining:
    script: Script
    root: str
    settings: Settings
    included: int = 0

    def plan(
        self,
        definition: Definition,
        known: dict[str, Any],
        unknown_: dict[str, Any],
        chain: tuple[str, ...],
        fields: Collection[str] = (),
    ) -> tuple[Plan, Way]:
        """The plan of one workflow; `unknown_` are the inputs that only the run knows, with the texts for them, and
        `fields` those that also set a field."""
        chain = (*chain, definition.loaded_from)
        start, state = begin(definition.workflow, known, frozenset(unknown_), self.script, fields)
        try:

            def include(step: IncludeWorkflow, account: Account) -> tuple[Plan, Way] | None:
                return self._include(definition, step, account, chain)

            walk = Walk(definition, self.root, self.settings.default_agent, include)
            way = walk.workflow(start)
        finally:
            state.close()
        plan = Plan(
            workflow=definition.name,
            inputs={name: {**known, **unknown_}[name] for name in definition.workflow.inputs},
            steps=tuple(walk.planned),
            skipped=tuple(walk.skipped),
            estimated_duration=way.lasts.text(),
            required_tools=tuple(sorted(walk.tools)),
        )
        return plan, way

    def _include(
        self, includer: Definition, step: IncludeWorkflow, account: Account, chain: tuple[str, ...]
    ) -> tuple[Plan, Way] | None:
        """What an included workflow would do; where that cannot be told, the account says why."""
        account.value("inputs", step.inputs)
        try:
            definition = workflows.included(self.root, includer, step.workflow)
            if definition.loaded_from in chain:
                account.problems.append(f"workflows include each other: {step.workflow} is already under way")
            self.included += 1
            if definition.loaded_from in chain or self.included > _MOST_INCLUDED or len(chain) > _DEEPEST:
                return None
            known, open_ = _inputs(definition.workflow, step, account)
            fields = definition.workflow.raw_fields.intersection(step.inputs)
            plan, way = self.plan(definition, known, open_, chain, fields)
        except SidecarError as error:
            account.problems.append(str(error).partition("; looked in ")[0])
            return None
        # Its names are its own, and so is what is known of them.
        return plan, replace(way, known=account.known, conditions=())


def _inputs(workflow: Workflow, step: IncludeWorkflow, account: Account) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs that an included workflow gets: those that are known, and the texts of those that are not."""
    declared = {one.name: one for one in workflow.parameters}
    takes = {*declared, *workflow.raw_fields}
    known, open_ = {name: one.default for name, one in declared.items()}, dict[str, Any]()
    account.problems += [unknown(name, takes, "input") for name in step.inputs if name not in takes]
    for name in workflow.raw_fields.intersection(step.inputs) - declared.keys():
        seen = account.known.value(step.inputs[name])
        (known if seen.known else open_)[name] = seen.value
    for name, one in declared.items():
        if name not in step.inputs:
            if one.is_required and one.default is None:
                account.problems.append(f"workflow {step.workflow!r}: {name!r} is required")
            continue
        seen = account.known.value(step.inputs[name])
        problem = misfit(seen.value, one) if seen.known else None
        if problem is not None:
            account.problems.append(f"workflow {step.workflow!r}: {name!r} {problem}")
        if seen.known and problem is None:
            known[name] = seen.value
        else:
            open_[name] = seen.value
            del known[name]
    return known, open_


# A plan as programs and people get it.


_LONGEST = 180
_INDENT = "  "
# How a line begins that stands in a branch; the others begin with its name.
_WORDS = {"body": "", "task": "", "on_failure": "on failure", "cleanup_on_error": "on error"}


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a plan. `inside`: the ids of the steps around it; `branch`: for which of their cases it is there."""

    step_id: str
    type: str
    does: str
    description: str = ""
    inside: tuple[str, ...] = ()
    branch: str | None = None
    conditions: tuple[str, ...] = ()  # what has to hold for it to run, and is not known yet
    dependencies: tuple[str, ...] = ()  # the steps that write what it reads
    details: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    plan: Plan | None = None  # of the workflow that it includes

    def to_json(self) -> dict[str, Any]:
        """As `workflow_explain_plan` tells it, with what is known of the step besides."""
        optional = {"description": self.description, "branch": self.branch, "problems": list(self.problems)}
        return {
            "step_id": self.step_id,
            "type": self.type,
            "does": one_line(self.does, _LONGEST),
            "conditions": list(self.conditions),
            "dependencies": list(self.dependencies),
            "inside": list(self.inside),
            **{key: value for key, value in optional.items() if value},
            **self.details,
            **({} if self.plan is None else {"plan": self.plan.to_json()}),
        }

    def line(self) -> str:
        """For people: what would be done."""
        named = "." not in self.step_id  # else it is its position
        text = f"{self.step_id}: {self.does}" if named else self.does
        word = _WORDS.get(self.branch or "body", self.branch)
        return f"{word}: {text}" if word else text


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do."""

    workflow: str
    inputs: dict[str, Any]  # those that are not known have the text that gives them
    steps: tuple[PlanStep, ...]
    skipped: tuple[str, ...]  # the ids of the steps that are known not to run
    estimated_duration: str
    required_tools: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As `workflow_explain_plan` tells it."""
        return {
            "workflow": self.workflow,
            "inputs": self.inputs,
            "steps": [step.to_json() for step in self.steps],
            "skipped": list(self.skipped),
            "estimated_duration": self.estimated_duration,
            "required_tools": list(self.required_tools),
        }

    def lines(self) -> list[str]:
        """For people: one line a step, those inside others indented."""
        given = ", ".join(f"{name}={shown(value)}" for name, value in self.inputs.items() if value is not None)
        title = one_line(f"{self.workflow} with {given}" if given else self.workflow, _LONGEST)
        about = [f"takes: {self.estimated_duration}", f"needs: {', '.join(self.required_tools) or 'nothing'}"]
        if self.skipped:
            about.insert(0, f"not run: {', '.join(self.skipped)}")
        return [title, *self._step_lines(_INDENT), *(one_line(line, _LONGEST) for line in about)]

    def _step_lines(self, indent: str) -> list[str]:
        lines = []
        for step in self.steps:
            own = indent + _INDENT * len(step.inside)
            lines.append(own + one_line(step.line(), _LONGEST))
            # A line of its own, so that it is not what is cut off where the line is long.
            lines += [f"{own}{_INDENT}! would fail: {one_line(problem, _LONGEST)}" for problem in step.problems]
            if step.plan is not None:
                lines += step.plan._step_lines(own + _INDENT)
        return lines


def shown(value: object) -> str:
    """A value inside a line; a text that only the run can fill in stands without quotes."""
    if isinstance(value, str) and has_template(value):
        return one_line(value, 60)
    return one_line(json.dumps(value, ensure_ascii=False), 60)


# The way through a workflow before it is gone: which steps run for sure, which may, and what is known at each.


ON = frozenset({"on"})
_LEAVING: dict[type[StepBase], str] = {Break: "break", Continue: "continue", Exit: "exit"}
_ITEMS_SHOWN = 20
# Tasks that run tasks multiply, and each level of them costs Python's stack.
_MOST_STEPS = 2000


@dataclass(frozen=True, slots=True)
class Lasts:
    """Bounds in seconds. Without `most_s` nothing limits it; `uncounted` is whose time nobody can tell."""

    least_s: float = 0.0
    most_s: float | None = 0.0
    uncounted: frozenset[str] = frozenset()

    def then(self, following: Lasts, *, for_sure: bool) -> Lasts:
        """Both, one after the other; `for_sure`: nothing leaves in between."""
        least_s = self.least_s + following.least_s if for_sure else self.least_s
        most_s = None if self.most_s is None or following.most_s is None else self.most_s + following.most_s
        return Lasts(least_s, most_s, self.uncounted | following.uncounted)

    def times(self, least: int, most: int | None) -> Lasts:
        """Again and again."""
        if most == 0 or (self.most_s == 0 and not self.uncounted):
            return Lasts()
        unlimited = most is None or self.most_s is None
        return replace(self, least_s=self.least_s * least, most_s=None if unlimited else self.most_s * most)  # type: ignore[operator]

    def text(self) -> str:
        """For people."""
        words = sorted(self.uncounted)
        others = " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
        if self.most_s is not None and self.most_s == self.least_s:
            return f"about {duration_text(self.least_s)}" if self.most_s else "at once"
        if self.most_s is not None:
            return f"at least {duration_text(self.least_s)}, at most {duration_text(self.most_s)} by its timeouts"
        return f"at least {duration_text(self.least_s)}" + (f"; {others} not counted" if others else "")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step stands."""

    known: Known
    inside: tuple[str, ...] = ()
    branch: str | None = None
    conditions: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()  # the sub-agent tasks around it
    task_agent: str | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """How it goes on behind a step: `ends` are the ways that it may: on, break, continue, exit.

    `conditions`: what holds, for whatever comes next, because the run would have left otherwise.
    """

    known: Known
    ends: frozenset[str] = ON
    lasts: Lasts = field(default_factory=Lasts)
    conditions: tuple[str, ...] = ()


class Walk:
    """One way through one definition. What it comes by is in `planned`, what it leaves aside in `skipped`."""

    def __init__(self, definition: Definition, root: str, default_agent: str, include: Include) -> None:
        self.planned: list[PlanStep] = []
        self.skipped: list[str] = []
        self.tools: dict[str, None] = {}
        self._definition = definition
        self._root = root
        self._default_agent = default_agent
        self._include = include
        self._writes = Writes(definition)

    def workflow(self, known: Known) -> Way:
        """All of it, with the steps for its failure, before which any step may have run."""
        workflow = self._definition.workflow
        way = self.steps(workflow.steps or (), Place(known))
        handling = workflow.error_handling
        then = Place(known.without(self._writes.of(workflow.steps or ())).hiding("error"))
        failed = replace(then, branch="on_failure", conditions=("the run fails",))
        last = self.steps(handling.on_failure or (), failed)
        most_s = way.lasts.then(last.lasts, for_sure=False).most_s
        again = handling.on_error == "retry_workflow"
        return replace(way, lasts=replace(way.lasts, most_s=None if again else most_s))

    def steps(self, steps: Steps, place: Place) -> Way:
        """Steps that follow each other."""
        known, lasts, left, conditions = place.known, Lasts(), frozenset[str](), place.conditions
        for at, step in enumerate(steps):
            way = self._step(step, replace(place, known=known, conditions=conditions))
            lasts = lasts.then(way.lasts, for_sure=not left)
            known, left = way.known, left | (way.ends - ON)
            conditions += way.conditions
            if not way.ends >= ON:
                self._skip(steps[at + 1 :])
                return Way(known, left, lasts)
        return Way(known, left | ON, lasts, conditions[len(place.conditions) :])

    def _step(self, step: Step, place: Place) -> Way:
        account = Account(place.known, self._root, self._default_agent, place.task_agent)
        if isinstance(step, Conditional):
            return self._conditional(step, place, account)
        if isinstance(step, While):
            return self._while(step, place, account)
        if isinstance(step, ForEach):
            return self._foreach(step, place, account)
        if isinstance(step, ParallelForEach):
            return self._parallel(step, place, account)
        if isinstance(step, IncludeWorkflow):
            return self._included(step, place, account)
        self._note(step, place, account, describe(step, account))
        ends = frozenset({_LEAVING.get(type(step), "on")})
        return Way(place.known.without(self._writes.of_one(step)), ends, account.lasts)

    def _conditional(self, step: Conditional, place: Place, account: Account) -> Way:
        condition = bare(str(step.condition))
        seen = account.known.truth(step.condition)
        account.details["condition"] = condition
        account.problems += seen.problems
        if seen.known:
            taken, other = (step.then, step.else_ or ()) if seen.value else (step.else_ or (), step.then)
            branch = account.details["taken"] = "then" if seen.value else "else"
            holds = f"{condition} {'holds' if seen.value else 'does not hold'}"
            self._note(step, place, account, f"{holds}: {branch if taken else 'nothing to do'}")
            self._skip(other)
            return self.steps(taken, _in(place, step, branch))
        self._note(step, place, account, f"if {condition}")
        negated = f"!({condition})"
        then = self.steps(step.then, _in(place, step, "then", condition))
        else_ = self.steps(step.else_ or (), _in(place, step, "else", negated))
        left = ((then, negated), (else_, condition))
        sure = tuple(text for way, text in left if not way.ends >= ON)
        known = place.known.without([*self._writes.of(step.then), *self._writes.of(step.else_ or ())])
        return Way(known, then.ends | else_.ends, either((then.lasts, else_.lasts)), sure)

    def _while(self, step: While, place: Place, account: Account) -> Way:
        condition = bare(str(step.condition))
        seen = account.known.hiding("loop").truth(step.condition)
        account.details["condition"] = condition
        account.problems += seen.problems
        most = _count(step, "max_iterations", account)
        if seen.known and not seen.value:
            account.details["iterations"] = 0
            self._note(step, place, account, f"{condition} does not hold: no iteration")
            self._skip(step.inner)
            return Way(place.known)
        known = self._in_loop(step, place).hiding("loop")
        always = known.truth(step.condition)
        text = "as long as the loop is not left" if always.known and always.value else f"while {condition}"
        self._note(step, place, account, f"again and again, {text}, {account.details['max_iterations']} times at most")
        asked = () if seen.known else (condition,)
        body = self.steps(step.inner, replace(_in(place, step, "body", *asked), known=known))
        return self._looped(step, place, body, int(seen.known), most)

    def _foreach(self, step: ForEach, place: Place, account: Account) -> Way:
        count = _items(step, account)
        if count is not None:
            account.details["iterations"] = count
        self._note(step, place, account, f"for each of {_of_items(count, account)}, one after the other")
        if count == 0:
            self._skip(step.inner)
            return Way(place.known)
        known = self._in_loop(step, place).hiding("item", "index", "loop")
        body = self.steps(step.inner, replace(_in(place, step, "body"), known=known))
        return self._looped(step, place, body, count or 0, count)

    def _looped(self, step: Loop, place: Place, body: Way, least: int, most: int | None) -> Way:
        """Behind a loop with so many iterations; one that may be left has one at least."""
        if body.ends - {"on", "continue"}:
            least = min(least, 1)
        ends = (body.ends & {"exit"}) | ON
        if least and body.ends == {"exit"}:
            ends = body.ends
        return Way(self._in_loop(step, place), ends, body.lasts.times(least, most))

    def _parallel(self, step: ParallelForEach, place: Place, account: Account) -> Way:
        count = _items(step, account)
        account.details |= {"estimated_sub_agents": count, "sub_agent_task": step.sub_agent_task}
        width = _count(step, "max_parallel", account)
        error_policy(step, account)
        task = self._definition.tasks.get(step.sub_agent_task)
        if task is None:
            account.problems.append(unknown(step.sub_agent_task, self._definition.tasks, "sub-agent task"))
        by_agent = task is not None and self._needs_agent(of_task(task))
        account.details["by_agents"] = by_agent
        who = f"by {account.agent(step.agent, of_tasks=True)}" if by_agent else "by sidecar itself"
        does = f"for each of {_of_items(count, account)}, {account.details['max_parallel']} at a time: "
        does += f"task {step.sub_agent_task} {who}"
        if step.sub_agent_prompt_override is not None:
            inside = account.known.hiding("item", "index", "task_id", "workflow_id", "description")
            account.take("sub_agent_prompt_override", inside.text(step.sub_agent_prompt_override))
        if not step.wait_for_all:
            account.details["wait_for_all"] = False
            does += ", going on when the first is done"
        again = step.sub_agent_task in place.tasks or len(self.planned) >= _MOST_STEPS or len(place.tasks) > _DEEPEST
        self._note(step, place, account, does + (", not shown again" if again else ""))
        if count == 0:
            return Way(place.known)
        after_all = place.known.without(self._writes.of((step,)))
        if task is None or again:
            return Way(after_all, ON, Lasts(0.0, None))
        # Tasks run beside each other: what one writes, another may find.
        known = place.known.without(self._writes.of_task(step.sub_agent_task)).hiding("item", "index")
        given = {name: known.value(value) for name, value in task.inputs.items()}
        known = known.hiding(*given).giving({name: seen.value for name, seen in given.items() if seen.known})
        inner = replace(_in(place, step, "task"), known=known, tasks=(*place.tasks, step.sub_agent_task))
        inner = replace(inner, task_agent=account.details["agent"] if by_agent else place.task_agent)
        body = self.steps(task.steps, inner)
        cleanup = replace(inner, known=known.hiding("error"), branch="cleanup_on_error")
        cleanup = replace(cleanup, conditions=(*place.conditions, "the task fails"))
        self.steps(task.error_handling.cleanup_on_error or (), cleanup)
        return Way(after_all, ON, _side_by_side(step, body.lasts, count, width, by_agent=by_agent))

    def _included(self, step: IncludeWorkflow, place: Place, account: Account) -> Way:
        found = self._include(step, account)
        account.lasts = Lasts(0.0, None) if found is None else found[1].lasts
        inputs = account.details["inputs"].items()
        given = ", ".join(f"{name}={shown(value)}" for name, value in inputs)
        does = f"run the workflow {step.workflow}" + (f" with {given}" if given else "") + after(step, account)
        error_policy(step, account)
        if found is None and not account.problems:
            does += ", not shown any more"
        self._note(step, place, account, does, None if found is None else found[0])
        known = place.known.without(self._writes.of_one(step))
        if found is None:
            return Way(known, ON, account.lasts)
        self.tools |= dict.fromkeys(found[0].required_tools)
        return Way(known, found[1].ends, account.lasts)

    def _in_loop(self, step: Loop, place: Place) -> Known:
        """Inside a loop, and behind it: an earlier iteration may have written all that its steps write."""
        return place.known.without(self._writes.of(step.inner))

    def _needs_agent(self, steps: Steps) -> bool:
        def includes(includer: Definition | None, name: str) -> Definition:
            return workflows.included(self._root, includer or self._definition, name)

        return needs_agent(steps, self._definition.tasks, includes, "server")

    def _note(self, step: Step, place: Place, account: Account, does: str, plan: Plan | None = None) -> None:
        self.tools |= dict.fromkeys(account.tools)
        writers = {one for site in self._writes.sites(step) for one in place.known.writers_of(site)}
        order = {one.step_id: number for number, one in enumerate(self.planned)}
        needed = sorted(writers - {step.id, *place.inside}, key=lambda one: (order.get(one, len(order)), one))
        self.planned.append(
            PlanStep(
                step_id=step.id,
                type=step.type,
                does=does,
                description=step.description,
                inside=place.inside,
                branch=place.branch,
                conditions=place.conditions,
                dependencies=tuple(needed),
                details=account.details,
                problems=tuple(dict.fromkeys(account.problems)),
                plan=plan,
            )
        )

    def _skip(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self.skipped.append(step.id)
            for children in branches(step).values():
                self._skip(children)


def _in(place: Place, step: Step, branch: str, *conditions: str) -> Place:
    return replace(place, inside=(*place.inside, step.id), branch=branch, conditions=(*place.conditions, *conditions))


def _count(
    step: While | ParallelForEach, key: Literal["max_iterations", "max_parallel"], account: Account
) -> int | None:
    """A number of the step, where it is known and one that the run would take."""
    seen = account.value(key, getattr(step, key))
    return seen.value if seen.known and _is_accepted(step, key, seen.value, account) else None


def _items(step: ForEach | ParallelForEach, account: Account) -> int | None:
    """How many items there are, where that is known; a list in the definition has so many, whatever they are."""
    seen = account.known.value(step.items)
    account.problems += seen.problems
    known = seen.known or isinstance(seen.value, list)
    known = known and _is_accepted(step, "items", seen.value, account)
    account.details["items"] = seen.value[:_ITEMS_SHOWN] if known else step.items
    return len(seen.value) if known else None


def _is_accepted(step: StepBase, key: FieldName, value: Any, account: Account) -> bool:
    try:
        moves.accepted(step, key, value)
    except ValueError as error:
        account.problems.append(str(error))
        return False
    return True


def _of_items(count: int | None, account: Account) -> str:
    items = account.details["items"]
    if count is None:
        return shown(items) if not isinstance(items, str) else items
    return f"{count} item{'s' * (count != 1)}" + (
        f" ({', '.join(map(shown, items[:3]))}{', …' * (count > 3)})" * bool(count)
    )


def _side_by_side(step: ParallelForEach, task: Lasts, count: int | None, width: int | None, *, by_agent: bool) -> Lasts:
    """How long a batch takes: as many rounds as it needs, and again for those that fail."""
    rounds = None if count is None or width is None else -(-count // width)
    again = step.on_sub_agent_error.strategy == "retry_failed"
    lasts = task.times(rounds or 0, None if again else rounds)
    if not step.wait_for_all:
        lasts = replace(lasts, least_s=min(lasts.least_s, task.least_s))
    if by_agent:
        lasts = replace(lasts, uncounted=lasts.uncounted | {"agents"})
    return replace(lasts, most_s=None) if by_agent or step.on_error == "retry" else lasts


# What each step that does something would do: in words, in its parts, with which tools, and for how long.


_PROMPT_SHOWN = 110  # characters, so that the line has room for what follows
_OPERATIONS = {
    "set": "set {path} to {value}",
    "append": "append {value} to {path}",
    "increment": "increase {path} by {value}",
    "merge": "merge {value} into {path}",
}


@dataclass(slots=True)
class Account:
    """What is found out about one step, while it is looked at."""

    known: Known
    root: str
    default_agent: str
    task_agent: str | None = None  # the agent of the task that the step belongs to
    details: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    lasts: Lasts = field(default_factory=Lasts)

    def take(self, key: str, seen: Seen) -> Seen:
        """Note something under a key."""
        self.details[key] = seen.value
        self.problems += seen.problems
        return seen

    def value(self, key: str, given: Any) -> Seen:
        """Note a value of the definition."""
        return self.take(key, self.known.value(given))

    def text(self, key: str, given: str) -> str:
        """Note a text of the definition."""
        return str(self.take(key, self.known.text(given)).value)

    def agent(self, given: str | None, *, of_tasks: bool = False) -> str:
        """Note which agent it is; one that is given as null is the default too. `of_tasks`: does further tasks."""
        seen = self.known.value(given)
        name = str(seen.value) if seen.value not in (None, "") else self.default_agent
        if self.task_agent is not None and (given is None or of_tasks):  # else the step has one of its own
            name = self.task_agent
        else:
            self.problems += seen.problems
            self.tools.append(f"agent:{name}")
            if seen.known:
                self._look_up(agents.find, name)
        self.details["agent"] = name
        return name

    def prompt(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Note a prompt that is given by its name, and the text that it comes to."""
        given = self.value("parameters", parameters)
        prompt = self._look_up(prompts.find, name)
        if prompt is None:
            return
        if given.known:
            try:
                bind(prompt.parameters, given.value, f"prompt {name!r}")
            except InputError as error:
                self.problems.append(str(error))
        values = {one.name: one.default for one in prompt.parameters} | given.value
        open_names = [key for key, one in parameters.items() if not self.known.value(one).known]
        self.take("prompt", self.known.giving(values).hiding(*open_names).text(prompt.body))

    def _look_up(self, find: Callable[[str, str], Any], name: str) -> Any:
        try:
            return find(self.root, name)
        except SidecarError as error:
            self.problems.append(str(error).partition("; looked in ")[0])
            return None


def describe(step: kinds.StepBase, account: Account) -> str:
    """What a step would do, in words; everything else goes into the account."""
    does = _DESCRIBERS[type(step)](step, account)
    if isinstance(step, kinds.RunsSomewhere):
        if step.working_dir is not None:
            does += f" in {account.text('working_dir', step.working_dir)}"
        if step.env:
            found = {name: account.known.text(value) for name, value in step.env.items()}
            account.details["env"] = {name: seen.value for name, seen in found.items()}
            account.problems += [problem for seen in found.values() for problem in seen.problems]
    if isinstance(step, kinds.Working):
        does += after(step, account)
    if isinstance(step, kinds.Fallible):
        error_policy(step, account)
    return does


def error_policy(step: kinds.Fallible, account: Account) -> None:
    """What it does about an error, and how long it then takes at most."""
    if step.error_state_update is not None:
        path = account.known.hiding("error").path(step.error_state_update.path)
        account.problems += path.problems
        account.details["error_writes"] = [path.value]
    if step.on_error == "fail":
        return
    account.details["on_error"] = step.on_error
    if step.on_error != "retry":
        return
    count, delay = account.value("retry_count", step.retry_count), account.known.seconds(step.retry_delay_s)
    account.take("retry_delay_s", delay)
    lasts, most_s = account.lasts, None
    constant = count.known and delay.known and step.retry_backoff == "constant"
    if constant and lasts.most_s is not None and isinstance(count.value, int) and delay.value is not None:
        most_s = lasts.most_s * (count.value + 1) + delay.value * count.value
    account.lasts = Lasts(lasts.least_s, most_s, lasts.uncounted)


def updates(given: tuple[Update, ...], account: Account) -> list[dict[str, Any]]:
    """Writes, as far as they are known."""
    found = []
    for update in given:
        path = account.known.path(update.path)
        account.problems += path.problems
        one: dict[str, Any] = {"path": path.value, "operation": update.operation}
        if update.has_value:
            value = account.known.value(update.value)
            account.problems += value.problems
            one["value"] = value.value
        elif update.operation == "increment":
            one["value"] = 1
        found.append(one)
    return found


def after(step: kinds.Working, account: Account) -> str:
    """Its time limit, and where its result goes."""
    text, limit_s = _limit(step.timeout_s, account)
    if limit_s is not None and account.lasts.most_s is None:
        account.lasts = Lasts(account.lasts.least_s, limit_s, account.lasts.uncounted)
    if step.state_update is not None:
        path = account.known.hiding("result", "applied_count").path(step.state_update.path)
        account.problems += path.problems
        account.details["writes"] = [path.value]
        text += f" → {path.value}"
    return text


def _limit(timeout_s: float | str | None, account: Account) -> tuple[str, float | None]:
    """A time limit in words, and in seconds where it is known and there is one."""
    if timeout_s is None:
        return "", None
    seen = account.known.seconds(timeout_s)
    if seen.known and seen.value is None:  # a template that yields null: no limit
        return "", None
    account.take("timeout_s", seen)
    length = duration_text(seen.value) if seen.known else str(seen.value)
    return f", for {length} at most", seen.value if seen.known else None


def _runs(account: Account, given: str | tuple[str, ...]) -> str:
    found = command(given, account.known)
    account.details["command"] = found.text
    account.problems += found.problems
    account.tools += [f"command:{program}" for program in found.programs]
    account.lasts = Lasts(0.0, None, frozenset({"commands"}))
    return found.text


def _shell_command(step: kinds.ShellCommand, account: Account) -> str:
    return f"run `{_runs(account, step.command)}`"


def _agent_shell_command(step: kinds.AgentShellCommand, account: Account) -> str:
    does = f"run `{_runs(account, step.command)}` on the terminal"
    return f"{does} ({account.text('reason', step.reason)})" if step.reason else does


def _agent(step: kinds.AgentStep, account: Account) -> str:
    name = account.agent(step.agent)
    account.lasts = Lasts(0.0, None, frozenset({"agents"}))
    if step.prompt_name is None:
        text = account.text("prompt", str(step.prompt))
        if step.parameters:
            account.value("parameters", step.parameters)
        return f"have {name} do: {one_line(text, _PROMPT_SHOWN)}"
    account.details["prompt_name"] = step.prompt_name
    account.prompt(step.prompt_name, step.parameters)
    given = ", ".join(f"{key}={shown(value)}" for key, value in account.details["parameters"].items())
    return f"have {name} do the prompt {step.prompt_name}" + (f" with {given}" if given else "")


def _mcp_call(step: kinds.McpCall, account: Account) -> str:
    method = account.text("method", step.mcp.method)
    tool = method if step.mcp.server is None else f"{account.text('server', step.mcp.server)}/{method}"
    account.tools.append(f"mcp:{tool}")
    account.lasts = Lasts(0.0, None, frozenset({"MCP tools"}))
    return f"call the MCP tool {tool} with {shown(account.value('params', step.mcp.params).value)}"


def _state_update(step: kinds.StateUpdate, account: Account) -> str:
    found = updates(step.writes, account)
    account.details["updates"] = found
    return ", ".join(_OPERATIONS[one["operation"]].format(path=one["path"], value=shown(one["value"])) for one in found)


def _user_input(step: kinds.UserInput, account: Account) -> str:
    account.lasts = Lasts(0.0, None, frozenset({"answers"}))
    does = f"ask: {account.text('prompt', step.prompt)}"
    if step.choices is not None:
        account.details["choices"] = list(step.choices)
        does += f" ({', '.join(map(shown, step.choices))})"
    if "default" in step.model_fields_set:
        account.value("default", step.default)
    return does


def _user_message(step: kinds.UserMessage, account: Account) -> str:
    return f"say: {account.text('message', step.message)}"


def _apply_hints(step: kinds.ApplyHints, account: Account) -> str:
    account.lasts = Lasts(0.0, None, frozenset({"agents"}))
    name = account.agent(step.agent)
    file, hints = account.text("file", step.file), account.value("hints", step.hints)
    return f"have {name} apply hints to {file}: {shown(hints.value)}"


def _wait(step: kinds.Wait, account: Account) -> str:
    account.lasts = Lasts(0.0, None, frozenset({"waits"}))
    if step.until is not None:
        account.details["until"] = bare(str(step.until))
        account.problems += account.known.truth(step.until).problems
        text, limit_s = _limit(step.timeout_s, account)
        account.lasts = Lasts(0.0, limit_s, account.lasts.uncounted)
        return f"wait until {account.details['until']}{text}"
    length = account.known.seconds(step.duration_s)
    if length.known and length.value is None:
        length = Seen(step.duration_s, known=False, problems=("duration has no value (null)",))
    account.take("duration_s", length)
    if not length.known:
        return f"wait {length.value}"
    account.lasts = Lasts(length.value, length.value)
    return f"wait {duration_text(length.value)}"


def _exit(step: kinds.Exit, account: Account) -> str:
    account.details["status"] = step.status
    does = "end the run" if step.status == "success" else "end the run as failed"
    return f"{does}: {account.text('message', step.message)}" if step.message else does


_DESCRIBERS: dict[type[kinds.StepBase], Callable[[Any, Account], str]] = {
    kinds.ShellCommand: _shell_command,
    kinds.AgentShellCommand: _agent_shell_command,
    kinds.AgentStep: _agent,
    kinds.McpCall: _mcp_call,
    kinds.StateUpdate: _state_update,
    kinds.UserInput: _user_input,
    kinds.UserMessage: _user_message,
    kinds.ApplyHints: _apply_hints,
    kinds.Wait: _wait,
    kinds.Exit: _exit,
    Break: lambda _step, _account: "leave the loop",
    Continue: lambda _step, _account: "go on with the loop's next iteration",
}


# Which fields the steps of a definition write, and which texts they read.


class Writes:
    """The texts of a definition, and of the tasks that it imports, by the step that has them."""

    def __init__(self, definition: Definition) -> None:
        self._tasks = definition.tasks
        # By identity: a step of an imported task may have the id of one of our own.
        self._sites: dict[int, list[Site]] = {}
        for file in (definition, *definition.imports.values()):
            for site in file.sites():
                if site.step is not None:
                    self._sites.setdefault(id(site.step), []).append(site)

    def sites(self, step: StepBase) -> list[Site]:
        """The texts of a step, without those of the steps inside it."""
        return self._sites.get(id(step), [])

    def of(self, steps: Iterable[StepBase], inside: tuple[str, ...] = ()) -> Iterator[Written]:
        """What steps write, and those inside them; `inside`: the tasks that were looked into already."""
        for step in steps:
            yield from self.of_one(step)
            for children in branches(step).values():
                yield from self.of(children, inside)
            if isinstance(step, ParallelForEach):
                yield from self.of_task(step.sub_agent_task, inside)

    def of_task(self, name: str, inside: tuple[str, ...] = ()) -> Iterator[Written]:
        """What the steps of a task write, those for its errors too."""
        task = self._tasks.get(name)
        if task is not None and name not in inside:
            yield from self.of(of_task(task), (*inside, name))

    def of_one(self, step: StepBase) -> Iterator[Written]:
        """What a step itself writes: what it says, and what an included workflow leaves under its id."""
        for site in self.sites(step):
            found = target(site.text) if site.role is Role.PATH else None
            if found is not None:
                yield Written(found[0], found[1], step.id)
        if isinstance(step, IncludeWorkflow):
            yield Written(INCLUDED, step.id, step.id)


# What is known when a workflow begins: its inputs, its defaults, and what is computed from these.


# The engine writes these whenever a step is done, for those who declare them.
_KEPT = frozenset({"steps_completed", "steps_failed", "retry_counts", "last_error", "workflow_errors"})


def begin(
    workflow: model.Workflow,
    inputs: Mapping[str, Any],
    unknown_inputs: frozenset[str],
    script: Script,
    given_fields: Collection[str] = (),
) -> tuple[Known, Reactive]:
    """The knowledge before the first step, and the state that it rests on, to be closed by the caller. `given_fields`
    are the inputs that also set the field of `raw` of that name.

    ExpressionError where a default or a computed field fails: such a run does not begin.
    """
    texts = Texts(script)
    schema, fields = workflow.state_schema, _fields(workflow)
    graph = Graph({name: field.sources for name, field in schema.computed.items()})
    defaults = _defaults(workflow, inputs, unknown_inputs, texts, script)
    defaults |= {f"raw.{name}": (inputs.get(name), name not in unknown_inputs) for name in given_fields}
    unknown = {*_kept(workflow), *(key for key, (_, known) in defaults.items() if not known)}
    plain = {name for section in fields for name in fields[section] if f"{section}.{name}" not in unknown}
    hidden = {key.partition(".")[2] for key in unknown}
    names = frozenset({INPUTS} | (plain - hidden))
    computed = _computable(workflow, graph, unknown=unknown, names=names, unknown_inputs=unknown_inputs, script=script)
    state = Reactive(script, computed, declared=(*schema.raw, *schema.state))
    state.world.set(INPUTS, dict(inputs))  # before anything is computed: transforms may read them
    try:
        writes = [Write(tuple(key.split(".", 1)), value) for key, (value, _) in defaults.items() if key not in unknown]
        state.update(writes)
    except BaseException:
        state.close()
        raise
    names = frozenset((names - schema.computed.keys()) | computed.keys())  # computed over raw over state
    return Known(texts, state.world, graph, fields, names, unknown_inputs), state


def _sections(workflow: model.Workflow) -> tuple[tuple[str, dict[str, Any]], ...]:
    return ("raw", workflow.default_state.raw), ("state", workflow.default_state.state)


def _fields(workflow: model.Workflow) -> dict[str, frozenset[str]]:
    schema, begun = workflow.state_schema, workflow.default_state
    return {"raw": frozenset({*schema.raw, *begun.raw}), "state": frozenset({*schema.state, *begun.state})}


def _kept(workflow: model.Workflow) -> Iterator[str]:
    """The fields that the engine itself writes."""
    yield from (f"raw.{name}" for name in _KEPT & _fields(workflow)["raw"])
    collection = workflow.error_handling.error_collection
    found = target(collection.state_path) if collection is not None and collection.enabled else None
    if found is not None and found[1] is not None:
        yield f"{found[0]}.{found[1]}"


def _defaults(
    workflow: model.Workflow, inputs: Mapping[str, Any], unknown_inputs: frozenset[str], texts: Texts, script: Script
) -> dict[str, tuple[Any, bool]]:
    """The value of each default, and whether it is known: one that asks for the time is not."""
    world = World(script)
    world.set(INPUTS, dict(inputs))
    known = Known(texts, world, Graph({}), {}, frozenset({INPUTS}), unknown_inputs)
    found = {}
    try:
        for section, given in _sections(workflow):
            for name, default in given.items():
                seen = known.value(default)
                if seen.problems:
                    raise ExpressionError(f"default_state.{section}.{name}: {seen.problems[0]}", kind="runtime")
                found[f"{section}.{name}"] = seen.value, seen.known
    finally:
        world.close()
    return found


def _computable(
    workflow: model.Workflow,
    graph: Graph,
    *,
    unknown: set[str],
    names: frozenset[str],
    unknown_inputs: frozenset[str],
    script: Script,
) -> dict[str, Computed]:
    """The computed fields of which everything is known that they follow from, or mention."""
    found: dict[str, Computed] = {}
    lost = set(unknown)
    for name in graph.order:
        field = workflow.state_schema.computed[name]
        codes = [field.transform, *([] if field.validate_ is None else [field.validate_])]
        mentions = {word for code in codes for word in script.compile(code).names} - {"input", "output"}
        of_inputs = [inputs_read(code) for code in codes if INPUTS in mentions] if unknown_inputs else []
        if (
            lost.isdisjoint(source.key for source in graph.sources[name])
            and mentions <= names | found.keys()
            and all(read is not None and unknown_inputs.isdisjoint(read) for read in of_inputs)
        ):
            found[name] = Computed(field.from_, field.transform, field.on_error, field.fallback, field.validate_)
        else:
            lost.add(f"computed.{name}")
    return found


# What is known of a run before it begins: values that no step has changed yet, and texts with these filled in.


INPUTS = "inputs"
INCLUDED = "included"  # the section, so to speak, of what an included workflow leaves behind
_FIELDS = frozenset({"raw", "state"})


@dataclass(frozen=True, slots=True)
class Seen:
    """What a text of the definition comes to. Where it is not known: the text, with what is known filled in.

    `problems`: what a run with these values would fail with.
    """

    value: Any
    known: bool = True
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """That a step writes a field; without a name it is one that only the run knows. `by` is the step's id."""

    section: str
    name: str | None
    by: str


@dataclass(frozen=True, slots=True)
class Known:
    """One place of a plan: which names still have the value that they began with."""

    texts: Texts
    world: World
    graph: Graph  # of all computed fields
    fields: Mapping[str, frozenset[str]]  # by section: those that are declared or begun with
    names: frozenset[str]
    unknown_inputs: frozenset[str] = frozenset()  # a workflow that is included may get some of them from the run
    writers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of names that are not known
    added: Mapping[str, Any] = field(default_factory=dict)  # what the place adds, with values that are known

    # --- what is known

    def without(self, written: Iterable[Written]) -> Known:
        """Behind, or beside, steps that write: the fields, and all that is computed from them, are not known."""
        names, writers = set(self.names), dict(self.writers)
        for one in written:
            for name in self._touched(one):
                names.discard(name)
                writers[name] = tuple(dict.fromkeys((*writers.get(name, ()), one.by)))
        return replace(self, names=frozenset(names), writers=writers)

    def hiding(self, *names: str) -> Known:
        """Inside something that gives these names values which only the run knows."""
        return replace(
            self,
            names=self.names - set(names),
            writers={name: by for name, by in self.writers.items() if name not in names},
            added={name: value for name, value in self.added.items() if name not in names},
        )

    def giving(self, values: Mapping[str, Any]) -> Known:
        """Inside something that gives these names these values."""
        hidden = self.hiding(*values)
        return replace(hidden, added={**hidden.added, **values})

    def writers_of(self, site: Site) -> Iterator[str]:
        """The ids of the steps that wrote what a text reads."""
        for name in sorted(self._names_of(site)):
            if name not in self.added:
                yield from self.writers.get(name, ())

    def knows(self, program: Expression) -> bool:
        """Whether everything that an expression reads is known."""
        return all(self._knows_name(name, program) for name in program.names)

    # --- what texts come to

    def value(self, given: Any) -> Seen:
        """Any value of the definition."""
        if isinstance(given, str):
            return self._text(given) if has_template(given) else Seen(given)
        if isinstance(given, dict):
            keys = [self.text(key) for key in given]
            items = [self.value(item) for item in given.values()]
            return _together(
                dict(zip((key.value for key in keys), (item.value for item in items), strict=True)), *keys, *items
            )
        if isinstance(given, list | tuple):
            items = [self.value(item) for item in given]
            return _together([item.value for item in items], *items)
        return Seen(given)

    def text(self, given: str) -> Seen:
        """A text of the definition, whatever its templates yield."""
        seen = self.value(given)
        return replace(seen, value=as_text(seen.value))

    def truth(self, condition: str | bool) -> Seen:
        """Whether a condition holds; its expression where that is not known."""
        if isinstance(condition, bool):
            return Seen(condition)
        if has_template(condition):
            seen = self.value(condition)
            return Seen(truthy(seen.value)) if seen.known else replace(seen, value=bare(condition))
        try:
            program = self.texts.program(condition)
            return Seen(truthy(self.run(program))) if self.knows(program) else Seen(bare(condition), known=False)
        except SidecarError as error:
            return Seen(bare(condition), known=False, problems=(str(error),))

    def seconds(self, given: float | str | None) -> Seen:
        """A duration, in seconds."""
        if not isinstance(given, str):
            return Seen(given)
        seen = self.value(given)
        if not seen.known or seen.value is None:
            return seen
        try:
            return Seen(duration.seconds(seen.value))
        except ValueError as error:
            return Seen(given, known=False, problems=(str(error),))

    def path(self, text: str) -> Seen:
        """Where a write goes."""
        try:
            compiled = self.texts.path(text)
            slots = [slot for one in compiled.segments if not isinstance(one, int) for slot in one.slots]
            if all(self.knows(slot.expression) for slot in slots):
                return Seen(show(compiled.resolve(self.run)))
        except SidecarError as error:
            return Seen(text, known=False, problems=(str(error),))
        return Seen(text, known=False)

    # --- how

    def _touched(self, one: Written) -> Iterator[str]:
        names = self.fields.get(one.section, ()) if one.name is None else (one.name,)
        for name in names:
            yield name
            if one.section in _FIELDS:
                dependents = self.graph.dependencies(show((one.section, name))).dependents
                yield from (dependent.removeprefix("computed.") for dependent in dependents)

    def _knows_name(self, name: str, program: Expression) -> bool:
        if name in self.added:
            return True
        if name not in self.names:
            return False
        if name != INPUTS or not self.unknown_inputs:
            return True
        read = inputs_read(program.source)
        return read is not None and self.unknown_inputs.isdisjoint(read)

    def _names_of(self, site: Site) -> frozenset[str]:
        try:
            if site.role in (Role.PATTERN, Role.SOURCE):
                return frozenset()
            if site.role is Role.PATH:
                return frozenset(self.texts.path(site.text).names)
            if site.role is Role.CONDITION and not has_template(site.text):
                return frozenset(self.texts.program(site.text).names)
            return frozenset(self.texts.value(site.text).names)
        except SidecarError:
            return frozenset()

    def run(self, program: Expression) -> Any:
        """The value of an expression that reads only what is known."""
        return View(self.texts, self.world, self.added).run(program)

    def _text(self, text: str) -> Seen:
        try:
            parts = self.texts.value(text).parts
        except SidecarError as error:
            return Seen(text, known=False, problems=(str(error),))
        filled = [part for part in parts if not isinstance(part, str) or part.strip()]
        if len(filled) == 1 and isinstance(filled[0], Slot):
            return self._part(filled[0], text)
        seen = [self._part(part, text) for part in parts]
        return _together("".join(as_text(one.value) for one in seen), *seen)

    def _part(self, part: str | Slot, text: str) -> Seen:
        if isinstance(part, str):
            return Seen(part)
        own = text[part.placeholder.offset : part.placeholder.end]
        if not self.knows(part.expression):
            return Seen(own, known=False)
        try:
            return Seen(part.value(self.run))
        except ExpressionError as error:
            return Seen(own, known=False, problems=(str(error),))


def bare(expression: str) -> str:
    """An expression without the braces around it."""
    try:
        parts = [part for part in split_template(expression) if not isinstance(part, str) or part.strip()]
    except SidecarError:
        return expression.strip()
    if len(parts) == 1 and isinstance(parts[0], Placeholder) and not parts[0].filters:
        return parts[0].source
    return expression.strip()


@lru_cache(maxsize=1024)
def inputs_read(source: str) -> frozenset[str] | None:
    """Which inputs an expression reads; None where it looks at all of them, or nobody can tell."""
    found = javascript.scan(source).tokens
    texts = [token.text for token in found] + ["", "", ""]
    read = set()
    for at, token in enumerate(found):
        if token.kind != "word" or token.text != INPUTS or (at and texts[at - 1] in (".", "?.")):
            continue
        if texts[at + 1] in (".", "?.") and found[at + 2 : at + 3] and found[at + 2].kind == "word":
            read.add(texts[at + 2])
        elif (
            texts[at + 1] == "["
            and texts[at + 3] == "]"
            and found[at + 2].kind == "string"
            and "\\" not in texts[at + 2]
        ):
            read.add(texts[at + 2][1:-1])
        else:
            return None
    return frozenset(read)


def _together(value: Any, *parts: Seen) -> Seen:
    problems = tuple(problem for part in parts for problem in part.problems)
    return Seen(value, all(part.known for part in parts), problems)


# A shell command before it runs: as a person would type it, and the programs that it starts.


# A character that no command has: between two of them stands the number of a hole that only the run can fill.
_MARK = "\ue000"
_MARKED = re.compile(f"{_MARK}([0-9]+){_MARK}")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_PROGRAM = re.compile(r"[A-Za-z0-9_@%+:,./~-]+")
_SEPARATORS = frozenset(";|&()\n")
# Words before a command, and words whose arguments are no commands.
_BEFORE = frozenset(
    ["if", "then", "else", "elif", "while", "until", "do", "!", "{", "time", "exec", "command", "env", "nohup"]
)
_NO_COMMAND = frozenset(["for", "case", "select", "function"])
# What the shell does itself needs nobody to install it.
_BUILTIN = frozenset(
    [
        ".",
        ":",
        "[",
        "alias",
        "bg",
        "break",
        "cd",
        "continue",
        "done",
        "echo",
        "esac",
        "eval",
        "exit",
        "export",
        "false",
        "fc",
        "fg",
        "fi",
        "getopts",
        "hash",
        "jobs",
        "kill",
        "local",
        "printf",
        "pwd",
        "read",
        "readonly",
        "return",
        "set",
        "shift",
        "source",
        "test",
        "times",
        "trap",
        "true",
        "type",
        "ulimit",
        "umask",
        "unalias",
        "unset",
        "wait",
        "}",
    ]
)


@dataclass(frozen=True, slots=True)
class Command:
    """What is known of a command; `text` has the author's `{{ }}` wherever a value is not known."""

    text: str
    problems: tuple[str, ...]
    programs: tuple[str, ...]


def command(given: str | tuple[str, ...], known: Known) -> Command:
    """A command with everything in it that is known."""
    try:
        compiled = known.texts.command(given)
    except SidecarError as error:
        return Command(given if isinstance(given, str) else " ".join(given), (str(error),), ())
    slots = compiled.slots
    problems: list[str] = []
    values: list[Any] = [f"{_MARK}{number}{_MARK}" for number in range(len(slots))]
    complete = True
    for number, slot in enumerate(slots):
        if not known.knows(slot.expression):
            complete = False
            continue
        try:
            values[number] = slot.evaluate(known.run)
        except ExpressionError as error:
            problems.append(str(error))
    try:
        typed = _typed(compiled.fill(values))
    except SidecarError as error:
        if complete and not problems:  # else it may be the mark that is wrong there
            problems.append(str(error))
        typed = _pasted(compiled.parts, values)
    shown = _MARKED.sub(lambda match: compiled.placeholders[int(match[1])], typed)
    return Command(shown, tuple(problems), tuple(dict.fromkeys(_programs(typed))))


def _typed(prepared: PreparedCommand) -> str:
    """The command with its values in it, each quoted for its place."""
    if not prepared.values:
        return prepared.body
    names = "|".join(map(re.escape, prepared.values))
    # In one pass: a value may look like a reference to another.
    reference = rf"'\"\$\{{({names})\}}\"'|\"\$\{{({names})\}}\"|\$\{{({names})\}}"

    def value(match: re.Match[str]) -> str:
        given = prepared.values[match[1] or match[2] or match[3]]
        mark = _MARKED.search(given)
        if mark:
            return mark[0]
        if match[1]:
            return given.replace("'", "'\\''")
        return shlex.quote(given) if match[2] else re.sub(r'(["\\$`])', r"\\\1", given)

    return re.sub(reference, value, prepared.body)


def _pasted(parts: Sequence[str | Slot], values: Sequence[Any]) -> str:
    """The command with its values as they are: to look at, where it cannot be made ready."""
    left = iter(values)
    return "".join(part if isinstance(part, str) else as_text(next(left)) for part in parts)


def _programs(script: str) -> Iterator[str]:
    """The first words of its commands, as far as they can be told without running it."""
    try:
        words = list(_words(script))
    except ValueError:  # a quote that is not closed
        return
    expected, of_redirection = True, False
    for word in words:
        if set(word) <= _SEPARATORS:
            expected = True
        elif set(word) <= frozenset("<>&|"):
            of_redirection = True
        elif of_redirection:
            of_redirection = False
        elif expected and not _ASSIGNMENT.match(word) and word not in _BEFORE:
            expected = False
            if _PROGRAM.fullmatch(word) and word not in _BUILTIN | _NO_COMMAND:
                yield word


def _words(script: str) -> Iterator[str]:
    lines = script.replace("\\\n", " ").split("\n")
    if "<<" in script:  # what follows may be a text for the command
        lines = lines[: 1 + next(number for number, line in enumerate(lines) if "<<" in line)]
    # A line is over where a command is; inside quotes the mark for that does no harm, because only first words count.
    joined = " ; ".join(line for line in lines if not line.lstrip().startswith("#"))
    reader = shlex.shlex(joined, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    reader.commenters = ""
    return iter(reader)


# How long something takes, as far as its definition says: waits are counted, timeouts are the most.


_UNITS_S = (("d", 86400), ("h", 3600), ("m", 60))


def either(ways: Iterable[Lasts]) -> Lasts:
    """One of several, nobody knows which."""
    each = list(ways)
    most = [way.most_s for way in each]
    most_s = None if None in most else max(one for one in most if one is not None)
    return Lasts(min(way.least_s for way in each), most_s, frozenset().union(*(way.uncounted for way in each)))


def duration_text(seconds_s: float) -> str:
    """A duration as the language has it: 500ms, 2s, 1h30m."""
    if seconds_s < 1:
        return f"{round(seconds_s * 1000)}ms" if seconds_s else "0s"
    text, left_s = "", seconds_s
    for unit, length_s in _UNITS_S:
        count, left_s = divmod(left_s, length_s)
        text += f"{int(count)}{unit}" if count else ""
    return text + (f"{left_s:.3g}s" if left_s or not text else "")
