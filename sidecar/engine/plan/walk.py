"""The way through a workflow before it is gone: which steps run for sure, which may, and what is known at each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from sidecar.catalog import workflows
from sidecar.engine.cursor import moves
from sidecar.engine.plan import durations
from sidecar.engine.plan.durations import Lasts
from sidecar.engine.plan.known import bare
from sidecar.engine.plan.shape import PlanStep, shown
from sidecar.engine.plan.steps import Account, after, describe, error_policy
from sidecar.engine.plan.writes import Writes
from sidecar.engine.step import needs_agent, of_task
from sidecar.model.parameters import unknown
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sidecar.catalog.imports import Definition
    from sidecar.engine.cursor.actions import FieldName
    from sidecar.engine.plan.known import Known
    from sidecar.engine.plan.shape import Plan
    from sidecar.model.steps import StepBase
    from sidecar.model.steps_control import Step, Steps

    # The plan of a workflow that a step includes, and how it goes on behind it; None where it cannot be told.
    Include = Callable[[IncludeWorkflow, Account], "tuple[Plan, Way] | None"]

ON = frozenset({"on"})
_LEAVING: dict[type[StepBase], str] = {Break: "break", Continue: "continue", Exit: "exit"}
_ITEMS_SHOWN = 20
# Tasks that run tasks multiply, and each level of them costs Python's stack.
_MOST_STEPS = 2000
_DEEPEST = 40


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
        return Way(known, then.ends | else_.ends, durations.either((then.lasts, else_.lasts)), sure)

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
