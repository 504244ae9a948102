"""Random workflows: the cursor does what a plain recursive evaluator does, whatever interrupts it."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.engine.cursor import actions
from sidecar.engine.cursor.moves import Cursor
from sidecar.engine.cursor.position import StepList
from sidecar.model.language import has_template
from sidecar.model.steps import (
    Break,
    Conditional,
    Continue,
    Exit,
    Fallible,
    ForEach,
    IncludeWorkflow,
    Loop,
    ParallelForEach,
    While,
    branches,
)
from sidecar.model.workflow import Workflow, numbered

ERROR = {"message": "it failed"}
DEEPEST = 3
Ids = tuple[str, ...]
Counts = tuple[int, ...]


# Workflows


@st.composite
def policies(draw: st.DrawFn) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "on_error": draw(st.sampled_from(["fail", "continue", "continue", "continue", "retry", "retry", "retry"]))
    }
    if chosen["on_error"] == "retry":
        chosen["retry_count"] = draw(st.sampled_from([0, 1, 2, "{{ n }}"]))
        chosen["retry_delay"] = draw(st.sampled_from([0, 5, "{{ n }}"]))
    if draw(st.booleans()):
        chosen["fallback_value"] = None
    if draw(st.booleans()):
        chosen["error_state_update"] = {"path": "raw.e", "value": True}
    return chosen


@st.composite
def step_lists(draw: st.DrawFn, depth: int, in_loop: bool, includes: tuple[str, ...]) -> list[dict[str, Any]]:
    length = draw(st.sampled_from([3, 4, 5] if depth == 0 else [0, 1, 2, 2, 3]))
    return [draw(steps(depth, in_loop, includes)) for _ in range(length)]


@st.composite
def steps(draw: st.DrawFn, depth: int, in_loop: bool, includes: tuple[str, ...]) -> dict[str, Any]:
    kinds = ["user_message", "user_message", "parallel_foreach"]
    if depth < DEEPEST:
        kinds += ["conditional", "while", "foreach", "conditional", "while", "foreach"]
    kinds += ["conditional jump"] * 2 if in_loop else []
    kinds += ["include_workflow"] if includes else []
    kind = draw(st.sampled_from([*kinds, "exit"] if draw(st.integers(0, 19)) == 7 else kinds))
    if kind == "conditional jump":
        jump = {"type": draw(st.sampled_from(["break", "continue"]))}
        return {
            "type": "conditional",
            "condition": "{{ c }}",
            "then": [],
            draw(st.sampled_from(["then", "else"])): [jump],
        }
    step: dict[str, Any] = {"type": kind}
    if kind in ("conditional", "while"):
        step["condition"] = draw(
            st.sampled_from(["{{ c }}", "{{ c }}", "{{ c }}", "{{ c }}", False, kind == "conditional"])
        )
    if kind == "conditional":
        step["then"] = draw(step_lists(depth + 1, in_loop, includes))
        if draw(st.booleans()):
            step["else"] = draw(step_lists(depth + 1, in_loop, includes))
    if kind in ("while", "foreach"):
        step["body"] = draw(step_lists(depth + 1, True, includes))
    if kind in ("foreach", "parallel_foreach"):
        step["items"] = "{{ items }}"
    if kind == "while":
        step["max_iterations"] = draw(st.sampled_from([3, 9, 9, "{{ n }}"]))
    if kind == "parallel_foreach":
        step |= {"sub_agent_task": "t", "wait_for_all": draw(st.booleans())}
        step["max_parallel"] = draw(st.sampled_from([1, "{{ n }}"]))
        strategy = draw(st.sampled_from(["retry_failed", "continue", "fail_all"]))
        step["on_sub_agent_error"] = {"strategy": strategy, "max_retries": draw(st.sampled_from([0, 2, "{{ n }}"]))}
    if kind == "include_workflow":
        step["workflow"] = draw(st.sampled_from(includes))
    if kind == "exit":
        step |= {"status": draw(st.sampled_from(["success", "failed"])), "message": "{{ m }}"}
    if kind in ("user_message", "parallel_foreach", "include_workflow"):
        step |= draw(policies())
    return step | ({"message": "m"} if kind == "user_message" else {})


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, StepList]:
    """The workflow `main` and two that it can include; the one that comes later is included by the other only."""
    names = ("main", "a", "b")
    world = {}
    for place, name in enumerate(names):
        body = draw(step_lists(0, False, names[place + 1 :]))
        handling = {"on_error": draw(st.sampled_from(["checkpoint_and_fail", "checkpoint_and_fail", "continue"]))}
        definition = {"steps": body, "error_handling": handling}
        world[name] = StepList.of_workflow(numbered(Workflow.model_validate(definition)))
    return world


class Oracle:
    """Says what comes of everything, by its place alone, so that two who ask the same are told the same."""

    def __init__(self, seed: int, task_attempts: bool = True) -> None:
        self.seed = seed
        self.task_attempts = task_attempts

    def number(self, *key: object) -> int:
        return zlib.crc32(repr((self.seed, key)).encode()) // 7

    def fails(self, *key: object) -> bool:
        return self.number("fails", key) % 5 == 0

    def task_fails(self, batch: int, index: int, attempt: int) -> bool:
        return self.fails("task", batch, index, attempt if self.task_attempts else 0)

    def field(self, field: str, ids: Ids, counts: Counts) -> tuple[bool, Any]:
        """Whether it can be evaluated, and to what. Some numbers are not what the field needs."""
        number = self.number(field, ids, counts)
        if number % 41 == 0:
            return False, None
        if field == "condition":
            return True, number % 5 > 1
        if field == "items":
            return True, [f"item {each}" for each in range(number % 4)]
        if field == "message":
            return True, f"message {number}"
        return True, (number // 4) % 16 % 5


# The simple evaluator


class StepError(Exception):
    pass


class BreakLoop(Exception):  # noqa: N818 - no error
    pass


class ContinueLoop(Exception):  # noqa: N818 - no error
    pass


class RunEnds(Exception):  # noqa: N818 - no error
    pass


class Reference:
    """Walks a workflow by plain recursion; `log` is everything that it did, in order."""

    def __init__(self, world: dict[str, StepList], oracle: Oracle) -> None:
        self.world = world
        self.oracle = oracle
        self.log: list[tuple[Any, ...]] = []
        self.batches = 0
        self.task_attempts: Counter[tuple[int, int]] = Counter()
        self.behind: list[tuple[int, ParallelForEach, list[int], int, dict[int, int]]] = []

    def run(self) -> str:
        status = "completed"
        try:
            self.walk(self.world["main"].steps, self.world["main"], (), ())
        except StepError:
            status = "failed"
        except RunEnds as end:
            status = str(end)
        for number, step, todo, retries, failures in self.behind:
            try:
                while todo:
                    self.task(number, step, todo, retries, failures)
            except StepError:
                if step.on_error != "continue" and status == "completed":
                    status = "failed"
        return status

    def walk(self, steps: Any, part: StepList, ids: Ids, counts: Counts) -> None:
        for step in steps:
            try:
                self.tried(step, part, (*ids, step.id), counts)
            except StepError:
                if not part.continue_on_error:
                    raise

    def ask(self, step: Any, field: str, ids: Ids, counts: Counts) -> Any:
        written = {"retry_delay": "retry_delay_s"}.get(field, field)
        value = step.on_sub_agent_error.max_retries if field == "max_retries" else getattr(step, written)
        if not (has_template(value) or field == "items"):
            return value
        self.log.append(("ask", field, ids, counts))
        known, answer = self.oracle.field(field, ids, counts)
        if not known or (field in ("max_iterations", "max_parallel") and answer < 1):
            raise StepError
        return answer

    def tried(self, step: Any, part: StepList, ids: Ids, counts: Counts) -> None:
        if not isinstance(step, Fallible):
            self.do(step, part, ids, counts)
            return
        batch: dict[str, Any] = {}
        attempt = 0
        while True:
            attempt += 1
            try:
                self.once(step, part, ids, counts, attempt, batch)
                return
            except StepError:
                if not self.again(step, ids, counts, attempt):
                    return

    def again(self, step: Fallible, ids: Ids, counts: Counts, attempt: int) -> bool:
        goes_on = step.on_error == "continue"
        if step.on_error == "retry":
            count = self.ask(step, "retry_count", ids, counts)
            delay = self.ask(step, "retry_delay", ids, counts)
            if attempt <= count:
                if delay:
                    self.log.append(("delay", ids, counts))
                return True
            goes_on = step.has_fallback
        if step.error_state_update or (goes_on and step.has_fallback):
            self.log.append(("settle", ids, goes_on))
            if self.oracle.fails("settle", ids, counts):
                raise StepError
        if not goes_on:
            raise StepError
        return False

    def once(self, step: Any, part: StepList, ids: Ids, counts: Counts, attempt: int, batch: dict[str, Any]) -> None:
        if isinstance(step, ParallelForEach):
            self.parallel(step, ids, counts, batch)
            return
        ok = not self.oracle.fails("run", ids, counts, attempt)
        self.log.append(("run", ids, counts, attempt, ok))
        if not ok:
            raise StepError
        if isinstance(step, IncludeWorkflow):
            inner = self.world[step.workflow]
            self.walk(inner.steps, inner, ids, counts)
            self.log.append(("leave", ids, counts))

    def do(self, step: Any, part: StepList, ids: Ids, counts: Counts) -> None:
        if isinstance(step, Conditional):
            held = self.ask(step, "condition", ids, counts)
            self.walk(step.then if held else step.else_ or (), part, ids, counts)
        elif isinstance(step, While):
            self.loop_while(step, part, ids, counts)
        elif isinstance(step, ForEach):
            items = self.ask(step, "items", ids, (*counts, 0))
            for index in range(len(items)):
                if not self.iteration(step, part, ids, (*counts, index + 1)):
                    return
        elif isinstance(step, Break):
            raise BreakLoop
        elif isinstance(step, Continue):
            raise ContinueLoop
        elif isinstance(step, Exit):
            self.ask(step, "message", ids, counts)
            raise RunEnds("completed" if step.status == "success" else "failed")

    def loop_while(self, step: While, part: StepList, ids: Ids, counts: Counts) -> None:
        limit = self.ask(step, "max_iterations", ids, (*counts, 0))
        done = 0
        while self.ask(step, "condition", ids, (*counts, done)):
            if done == limit:
                raise RunEnds("limit")
            done += 1
            if not self.iteration(step, part, ids, (*counts, done)):
                return

    def iteration(self, step: While | ForEach, part: StepList, ids: Ids, counts: Counts) -> bool:
        try:
            self.walk(step.inner, part, ids, counts)
        except ContinueLoop:
            pass
        except BreakLoop:
            return False
        return True

    def parallel(self, step: ParallelForEach, ids: Ids, counts: Counts, batch: dict[str, Any]) -> None:
        if not batch:
            items = self.ask(step, "items", ids, counts)
            self.ask(step, "max_parallel", ids, counts)
            retries = 0
            if step.on_sub_agent_error.strategy == "retry_failed":
                retries = self.ask(step, "max_retries", ids, counts)
            batch |= {"number": self.batches, "todo": list(range(len(items))), "retries": retries}
            self.batches += 1
        todo = batch["todo"]
        failures: dict[int, int] = {}
        # An earlier attempt may have left some done already, and then there is nothing to wait for.
        all_of_them = batch.setdefault("all", len(todo))
        while todo and (step.wait_for_all or len(todo) == all_of_them):
            self.task(batch["number"], step, todo, batch["retries"], failures)
        if todo:
            self.behind.append((batch["number"], step, todo, batch["retries"], failures))

    def task(self, number: int, step: ParallelForEach, todo: list[int], retries: int, failures: dict[int, int]) -> None:
        index = todo[0]
        self.task_attempts[number, index] += 1
        ok = not self.oracle.task_fails(number, index, self.task_attempts[number, index])
        self.log.append(("task", number, index, ok))
        strategy = step.on_sub_agent_error.strategy
        if ok or strategy == "continue":
            todo.pop(0)
        elif strategy == "retry_failed" and failures.get(index, 0) < retries:
            failures[index] = failures.get(index, 0) + 1
        else:
            raise StepError


# The cursor's driver


class Driver:
    """Does what the cursor asks, as the oracle says; `log` is everything that it did, in order."""

    def __init__(self, world: dict[str, StepList], oracle: Oracle) -> None:
        self.world = world
        self.oracle = oracle
        self.cursor = Cursor.start(world["main"])
        self.log: list[tuple[Any, ...]] = []
        self.task_attempts: Counter[tuple[int, int]] = Counter()

    def part_at(self, path: tuple[str, ...]) -> StepList:
        part = self.world["main"]
        for step_id in path:
            part = self.world[self.included(part.steps, step_id) or ""]
        return part

    def included(self, steps: Any, step_id: str) -> str | None:
        for step in steps:
            if step.id == step_id:
                return str(step.workflow)
            for children in branches(step).values():
                if (found := self.included(children, step_id)) is not None:
                    return found
        return None

    def restore(self) -> None:
        before = self.cursor
        self.cursor = Cursor.restore(json.loads(json.dumps(before.to_json())), self.part_at)
        assert self.cursor.action == before.action
        assert self.cursor == before

    def tell(self) -> None:
        self.cursor = self.cursor.after(self.outcome(self.cursor.action))

    def where(self) -> tuple[Ids, Counts]:
        """The place of a step that may have failed steps above it, which are still in the cursor.

        Its id alone does not say which one it is: a workflow that is included may have the same.
        """
        ids, failure = self.cursor.steps, self.cursor.state.failure
        level = len(ids) if failure is None else failure.level + 1
        loops = [frame for frame in self.cursor.state.frames[:level] if isinstance(frame.step, Loop)]
        return ids[:level], tuple(frame.index + (frame.phase == "inside") for frame in loops)

    def outcome(self, action: Any) -> actions.Outcome:
        if isinstance(action, actions.Boundary):
            return actions.Passed()
        if isinstance(action, actions.Parallel):
            return self.task(action)
        ids, counts = self.where()
        if isinstance(action, actions.Evaluate):
            self.log.append(("ask", action.field, ids, counts))
            known, answer = self.oracle.field(action.field, ids, counts)
            return actions.Answer(answer) if known else actions.ActionFailed(ERROR)
        if isinstance(action, actions.Delay | actions.Leave):
            self.log.append((type(action).__name__.lower(), ids, counts))
            return actions.Completed()
        if isinstance(action, actions.ApplyErrorUpdate):
            self.log.append(("settle", ids, action.continues))
            failed = self.oracle.fails("settle", ids, counts)
            return actions.ActionFailed(ERROR) if failed else actions.Completed()
        ok = not self.oracle.fails("run", ids, counts, action.attempt)
        self.log.append(("run", ids, counts, action.attempt, ok))
        if not ok:
            return actions.ActionFailed(ERROR)
        if isinstance(action, actions.Include):
            return actions.Included(self.world[action.step.workflow])
        return actions.Completed()

    def task(self, action: actions.Parallel) -> actions.Outcome:
        index = action.todo[0]
        self.task_attempts[action.batch, index] += 1
        ok = not self.oracle.task_fails(action.batch, index, self.task_attempts[action.batch, index])
        self.log.append(("task", action.batch, index, ok))
        if ok:
            return actions.TaskEnded(action.batch, index)
        return actions.TaskEnded(action.batch, index, ERROR)

    @property
    def status(self) -> str:
        action = self.cursor.action
        return action.status if isinstance(action, actions.Finished) else "limit"


def examples(count: int) -> settings:
    return settings(max_examples=count, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@examples(150)
@given(worlds(), st.integers(0, 2**32))
def test_the_cursor_does_what_a_recursive_evaluator_does(world: dict[str, StepList], seed: int) -> None:
    reference, driver = Reference(world, Oracle(seed)), Driver(world, Oracle(seed))
    status = reference.run()
    while not driver.cursor.is_over:
        driver.tell()
    assert driver.log == reference.log
    assert driver.status == status


@examples(50)
@given(worlds(), st.integers(0, 2**32))
def test_a_cursor_that_is_written_down_and_read_after_every_action_does_the_same(
    world: dict[str, StepList], seed: int
) -> None:
    reference, driver = Reference(world, Oracle(seed)), Driver(world, Oracle(seed))
    status = reference.run()
    while not driver.cursor.is_over:
        driver.restore()
        driver.tell()
    driver.restore()
    assert driver.log == reference.log
    assert driver.status == status


@examples(50)
@given(worlds(), st.integers(0, 2**32))
def test_a_run_that_is_stopped_at_each_boundary_and_resumed_does_the_same(
    world: dict[str, StepList], seed: int
) -> None:
    reference, driver = Reference(world, Oracle(seed)), Driver(world, Oracle(seed))
    status = reference.run()
    stopped_at = -1
    while not driver.cursor.is_over:
        action = driver.cursor.action
        at_boundary = isinstance(action, actions.Boundary) and action.kind == "stop-and-abort"
        in_tasks = isinstance(action, actions.Parallel) and action not in driver.cursor.background
        if at_boundary or (in_tasks and stopped_at != len(driver.log)):
            stopped_at = len(driver.log)
            driver.restore()
            driver.cursor = driver.cursor.resumed()
        driver.tell()
    assert driver.log == reference.log
    assert driver.status == status


@examples(70)
@given(worlds(), st.integers(0, 2**32), st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_a_run_that_is_cut_off_anywhere_completes_every_step_exactly_once(
    world: dict[str, StepList], seed: int, cuts: list[int]
) -> None:
    oracle = Oracle(seed, task_attempts=False)
    reference, driver = Reference(world, oracle), Driver(world, oracle)
    status = reference.run()
    told = 0
    while not driver.cursor.is_over:
        if told in cuts:
            cuts.remove(told)
            driver.restore()
            driver.cursor = driver.cursor.resumed()
            continue
        driver.tell()
        told += 1
    assert completed(driver.log) == completed(reference.log)
    assert driver.status == status


def completed(log: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Steps and tasks that were done; an include is over with its `leave`."""
    return [entry for entry in log if entry[0] in ("run", "task") and entry[-1] is True]
