"""A run in memory: its threads, the states of its workflows and its counters, and how a checkpoint keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import anyio

from sidecar.catalog.workflows import Definition, restore
from sidecar.engine.cursor.actions import Included, Parallel, TaskEnded
from sidecar.engine.cursor.moves import Cursor
from sidecar.engine.cursor.position import Error, Scope, State, StepList
from sidecar.engine.evaluation import Texts, View
from sidecar.errors import DefinitionChanged
from sidecar.model.steps import IncludeWorkflow, Loop, Steps
from sidecar.model.workflow import SubAgentTask, walk
from sidecar.state.reactive import Computation, Reactive
from sidecar.state.script import Script
from sidecar.state.world import World

Path = tuple[str, ...]  # the `include_workflow` steps that lead to a workflow; () is the run's own
CLEANUP = "cleanup"  # the failure steps of a task
ON_FAILURE = "on_failure"  # those of a workflow; with a level, of an included one
# The fields of a run and of a thread that a checkpoint has as they are.
_TEXTS = ("additions", "redirects", "answers", "pending_feedback")
_PLAIN = ("key", "task_id", "names", "is_failure_thread", "error", "failure_count", "reported")


@dataclass(slots=True)
class Counters:
    """What the run's limits count, across all its executions."""

    duration_s: float = 0.0
    cost_usd: float = 0.0
    tokens: int = 0
    processes: int = 0  # numbers their logs
    tasks_iterations: int = 0  # of tasks that are over
    tasks_transitions: int = 0
    round: int = 1  # of `retry_workflow`


class Place(NamedTuple):
    """The state of a workflow, its path, and what an expression sees there."""

    path: Path
    state: WorkflowState
    view: View


@dataclass
class Run:
    """A run in memory."""

    definition: Definition
    states: WorkflowStates
    main: Thread
    counters: Counters = field(default_factory=Counters)
    definitions: dict[Path, Definition] = field(default_factory=dict)  # of the workflows that are included now
    additions: dict[str, list[str]] = field(default_factory=dict)  # by step key: texts added to its prompt
    redirects: list[str] = field(default_factory=list)  # names of the redirects that were applied
    answers: dict[str, str] = field(default_factory=dict)  # by step key: which addition answers what it submitted last
    pending_feedback: list[str] = field(default_factory=list)  # not given to any agent yet

    @classmethod
    def begin(cls, definition: Definition, inputs: Mapping[str, Any], script: Script) -> Run:
        """A run before its first step."""
        states = WorkflowStates(script)
        states.begin((), definition, inputs)
        return cls(definition, states, Thread("", None, Cursor.start(StepList.of_workflow(definition.workflow))))

    def restart(self, inputs: Mapping[str, Any]) -> None:
        """Go back to the first step (`retry_workflow`); the counters go on."""
        self.counters.tasks_iterations += self.main.cursor.state.iterations
        self.counters.tasks_transitions += self.main.cursor.state.transitions
        self.counters.round += 1
        self.states.close()
        self.states.begin((), self.definition, inputs)
        cursor = Cursor.start(StepList.of_workflow(self.definition.workflow))
        self.main = Thread(f"round-{self.counters.round}", None, cursor, handed_out=self.main.handed_out)

    # --- what changes it, in the same way while it executes and when the journal is replayed

    def include(
        self, thread: Thread, definition: Definition, inputs: Mapping[str, Any], fields: Iterable[str] = ()
    ) -> Included:
        """Enter an included workflow: start its state, in which the inputs that are `fields` are set, too."""
        path = included_path(thread)
        self.states.begin(path, definition, inputs, {name: inputs[name] for name in fields})
        self.definitions[path] = definition
        return Included(StepList.of_workflow(definition.workflow))

    def move(self, thread: Thread, cursor: Cursor) -> None:
        """Move a thread's cursor. Where an error has left included workflows, their failure steps become pending."""
        before, thread.cursor = thread.cursor.state, cursor
        after = cursor.state
        if len(after.frames) >= len(before.frames) or (after.ending is not None and after.ending.exited):
            return
        # The innermost one that was left by its last step was not left by an error: at the top that is the run itself,
        # else the one whose frame is now in the phase "leave".
        over = not after.frames or after.frames[-1].phase == "leave"
        for level in range(len(before.frames) - 1, len(after.frames) - 1 + over, -1):
            if before.frames[level].branch == "steps":
                names = {"error": thread.error or {"message": ""}}
                path = thread.state_path(before.path(level))
                failure = self._failure_thread(thread, f"{ON_FAILURE}.{level}", path, names)
                thread.pending_failure_steps += [failure] if failure is not None else []

    def start_failure_steps(self, thread: Thread, handler: str, path: Path, names: Mapping[str, Any]) -> Thread | None:
        """Start the steps that the definition has for a thread's failure, as a thread; None where it has none."""
        failure = self._failure_thread(thread, handler, path, names)
        if failure is not None:
            thread.failure_threads[handler] = failure
        return failure

    def _failure_thread(self, thread: Thread, handler: str, path: Path, names: Mapping[str, Any]) -> Thread | None:
        steps = self._failure_steps(thread, handler, path)
        if not steps:
            return None
        thread.failure_count += 1  # so that the keys differ however often the thread fails
        key = f"{handler}~{thread.failure_count}"
        key = f"{thread.key}/{key}" if thread.key else key
        cursor = Cursor.start(StepList(steps))
        return Thread(key, thread.task_id, cursor, path, dict(names), is_failure_thread=True)

    def _failure_steps(self, thread: Thread, handler: str, path: Path) -> Steps:
        definition = self.states[path].definition
        if handler == CLEANUP:
            assert thread.task is not None
            return definition.tasks[thread.task].error_handling.cleanup_on_error or ()
        return definition.workflow.error_handling.on_failure or ()

    def start_task(self, parent: Thread, action: Parallel, index: int, names: Mapping[str, Any]) -> Thread:
        """Start a task, from its first step."""
        place = (action.batch, index)
        attempt = parent.task_attempts[place] = parent.task_attempts.get(place, 0) + 1
        # Unique also where the same step stands in a loop, or the task is tried again.
        key = f"{action.step.id}.{index}" + (f"#{action.batch}" if action.batch else "")
        key += f"~{attempt}" if attempt > 1 else ""
        path = parent.state_path(action.scope.path)
        task = self.states[path].definition.tasks[action.step.sub_agent_task]
        child = Thread(
            f"{parent.key}/{key}" if parent.key else key,
            task_id(parent, action, index),
            Cursor.start(StepList(task.steps)),
            path=path,
            names=dict(names),
            parent=parent,
            place=place,
            is_failure_thread=parent.is_failure_thread,
        )
        parent.children[place] = child
        return child

    def end_task(self, child: Thread, error: Error | None) -> bool:
        """End a task; whether it is tried again."""
        parent, place = child.parent, child.place
        assert parent is not None
        assert place is not None
        before = parent.cursor.state.batches.get(place[0])
        failures = before.failures.get(place[1], 0) if before else 0
        if error is not None:
            parent.error = {**error, "task": child.task_id}
        self.move(parent, parent.cursor.after(TaskEnded(*place, error)))
        child.reported = True
        after = parent.cursor.state.batches.get(place[0])
        again = error is not None and after is not None and after.failures.get(place[1], 0) > failures
        ended_for_good = after is None or place[1] in after.done
        if again or ended_for_good:  # a task that failed for good may go on where it stands, when the run is resumed
            self.counters.tasks_iterations += child.cursor.state.iterations
            self.counters.tasks_transitions += child.cursor.state.transitions
            del parent.children[place]
        return again

    def add_redirect(self, key: str, text: str, name: str | None) -> None:
        """A step is executed again with a text added to its prompt."""
        self.additions.setdefault(key, []).append(text)
        if name is not None and name not in self.redirects:
            self.redirects.append(name)

    def add_answer(self, key: str, text: str) -> None:
        """A step is executed again with the answer to what it submitted, in place of an earlier answer."""
        additions = self.additions.setdefault(key, [])
        if self.answers.get(key) in additions:
            additions.remove(self.answers[key])
        additions.append(text)
        self.answers[key] = text

    def use_feedback(self, key: str, text: str) -> None:
        """Add feedback to the prompt of a step."""
        self.additions.setdefault(key, []).append(text)
        if text in self.pending_feedback:
            self.pending_feedback.remove(text)

    def clear_additions(self, key: str) -> None:
        """Remove what was added to the prompt of a step, which is complete."""
        self.additions.pop(key, None)
        self.answers.pop(key, None)

    def leave_included(self, thread: Thread) -> None:
        """Leave an included workflow that is complete: its includer can read its final state."""
        step_id = thread.cursor.steps[-1]
        outer, inner = thread.here, included_path(thread)
        flattened = self.states[inner].state.flattened()
        if thread is not self.main and outer == thread.path:
            thread.names[step_id] = flattened  # a task shares the state around it with others that include the same
        else:
            self.states[outer].include(step_id, flattened)
        self.states.leave(inner)
        self.definitions.pop(inner, None)

    def task_definition(self, child: Thread) -> SubAgentTask:
        """The definition of a task."""
        assert child.task is not None
        return self.states[child.path].definition.tasks[child.task]

    def place(self, thread: Thread, scope: Scope) -> Place:
        """Where a scope of a thread's cursor is."""
        path = thread.state_path(scope.path)
        # What is included sees nothing of the task around it.
        names = scope.names if scope.path else {**thread.names, **scope.names}
        state = self.states[path]
        return Place(path, state, state.view(names))

    # --- numbers

    @property
    def iterations(self) -> int:
        """Of all loops, in all threads."""
        return self.counters.tasks_iterations + sum(thread.cursor.state.iterations for thread in self.main.walk())

    @property
    def transitions(self) -> int:
        """Steps begun that do something."""
        return self.counters.tasks_transitions + sum(thread.cursor.state.transitions for thread in self.main.walk())

    # --- as JSON, for a checkpoint

    def to_json(self) -> dict[str, Any]:
        """The whole run."""
        by_name = {}  # of included workflows that their includer does not import
        for path, definition in self.definitions.items():
            outer = self.states[path[:-1]].definition if path[:-1] in self.states else self.definition
            if path in self.states and definition not in outer.components.values():
                by_name[json.dumps(path)] = definition.record()
        return {
            "thread": _thread_json(self.main),
            "states": self.states.to_json(),
            "counters": asdict(self.counters),
            "included": by_name,
            **{name: getattr(self, name) for name in _TEXTS},
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any], definition: Definition, script: Script) -> Run:
        """Restore a run from what `to_json` returned. DefinitionChanged where it does not fit into the definition."""
        states = WorkflowStates(script)
        included = {tuple(json.loads(path)): restore(record) for path, record in data["included"].items()}
        definitions: dict[Path, Definition] = {}
        for listed, content in data["states"]:
            path = tuple(listed)
            found = definition if not path else included.get(path) or _component(path, definitions, definition)
            if path:
                definitions[path] = found
            states.restore(path, found, content)
        main = Thread("", None, Cursor.start(StepList(())))
        texts = {name: data[name] for name in _TEXTS}
        run = cls(definition, states, main, Counters(**data["counters"]), definitions, **texts)
        run.main = run._restored(data["thread"], None)
        return run

    def _restored(self, data: Mapping[str, Any], parent: Thread | None, steps: Steps | None = None) -> Thread:
        """`steps`: those of a failure thread."""
        path = tuple(data["path"])

        def steps_at(inner: Path) -> StepList:
            if inner:
                found = state_path_of(path, data["key"], inner)
                return StepList.of_workflow(self.states[found].definition.workflow)
            if steps is not None:
                return StepList(steps)
            if parent is None:
                return StepList.of_workflow(self.definition.workflow)
            tasks = self.states[path].definition.tasks
            if data["task"] not in tasks:
                raise DefinitionChanged(f"the task {data['task']!r}, in which the run stands, is gone")
            return StepList(tasks[data["task"]].steps)

        cursor, place = Cursor.restore(data["cursor"], steps_at), tuple(data["place"]) if data["place"] else None
        plain = {name: data[name] for name in _PLAIN}
        thread = Thread(cursor=cursor, path=path, parent=parent, place=place, **plain)
        thread.task_attempts = {(batch, index): count for batch, index, count in data["task_attempts"]}
        for inner in data["children"]:
            child = self._restored(inner, thread)
            assert child.place is not None
            thread.children[child.place] = child
        for handler, inner in data["failure_threads"]:
            thread.failure_threads[handler] = self._restored_failure(thread, handler, inner)
        thread.pending_failure_steps = [
            self._restored_failure(thread, ON_FAILURE, inner) for inner in data["pending_failure_steps"]
        ]
        return thread

    def _restored_failure(self, thread: Thread, handler: str, data: Mapping[str, Any]) -> Thread:
        return self._restored(data, None, self._failure_steps(thread, handler, tuple(data["path"])))


def included_path(thread: Thread) -> Path:
    """The path of the state of the workflow that the current step includes."""
    frames = thread.cursor.state
    return thread.state_path((*frames.path(len(frames.frames) - 1), thread.cursor.steps[-1]))


def _thread_json(thread: Thread) -> dict[str, Any]:
    return {
        **{name: getattr(thread, name) for name in _PLAIN},
        "task": thread.task,
        "cursor": thread.cursor.to_json(),
        "path": list(thread.path),
        "place": list(thread.place) if thread.place else None,
        "failure_threads": [[handler, _thread_json(each)] for handler, each in thread.failure_threads.items()],
        "pending_failure_steps": [_thread_json(each) for each in thread.pending_failure_steps],
        "task_attempts": [[*place, count] for place, count in thread.task_attempts.items()],
        "children": [
            _thread_json(child) for place, child in thread.children.items() if place[0] in thread.cursor.state.batches
        ],
    }


def _component(path: Path, known: Mapping[Path, Definition], definition: Definition) -> Definition:
    """A workflow that its includer imports, found again by the step that includes it."""
    outer = known[path[:-1]] if path[:-1] else definition
    step_id = path[-1].rpartition(_OF_THREAD)[2]
    for step, _ in walk(outer.workflow):
        if step.id == step_id and isinstance(step, IncludeWorkflow) and step.workflow in outer.components:
            return outer.components[step.workflow]
    raise DefinitionChanged(f"step {step_id!r}, in which the run stands, does not include what it did")


_OF_THREAD = ">"  # in no id of a step, and in no key


@dataclass(eq=False)
class Thread:
    """One line of execution: the run's main one, a task of `parallel_foreach`, or the steps for a failure."""

    key: str  # "" for the main one; unique in the run
    task_id: str | None
    cursor: Cursor
    path: Path = ()  # the workflow that the task belongs to
    names: dict[str, Any] = field(default_factory=dict)
    parent: Thread | None = None
    place: tuple[int, int] | None = None  # batch and index in the parent
    handed_out: bool = False  # its steps for an agent are given to an outside agent
    is_failure_thread: bool = False  # runs the steps for a failure, which no limit of the run prevents
    error: Error | None = None  # of the last step that failed
    failure_count: int = 0  # of its failures that have steps
    failure_threads: dict[str, Thread] = field(default_factory=dict)  # by handler: the steps for the end that it failed
    pending_failure_steps: list[Thread] = field(default_factory=list)  # of included workflows that an error has left
    reported: bool = False  # of a task that is over: its batch knows
    children: dict[tuple[int, int], Thread] = field(default_factory=dict)
    task_attempts: dict[tuple[int, int], int] = field(default_factory=dict)  # by batch and index
    lock: anyio.Lock = field(default_factory=anyio.Lock)

    def state_path(self, inner: Path) -> Path:
        """The path of the state that a path of the cursor leads to."""
        return state_path_of(self.path, self.key, inner)

    @property
    def here(self) -> Path:
        """The path of the state of the current step."""
        frames = self.cursor.state
        return self.state_path(frames.path(len(frames.frames) - 1))

    @property
    def task(self) -> str | None:
        """The name of its task, while its batch is there."""
        if self.parent is None or self.place is None:
            return None
        return self.parent.cursor.state.batches[self.place[0]].step.sub_agent_task

    @property
    def exited(self) -> bool:
        """By `exit`, which ends the whole run."""
        ending = self.cursor.state.ending
        return ending is not None and ending.exited

    def walk(self) -> Iterator[Thread]:
        """This thread and all below it."""
        yield self
        for child in list(self.children.values()):
            yield from child.walk()

    def walk_all(self) -> Iterator[Thread]:
        """The same, and the threads of their failure steps."""
        for thread in self.walk():
            yield thread
            for failure in [*thread.failure_threads.values(), *thread.pending_failure_steps]:
                yield from failure.walk_all()

    def step_key(self, state: State | None = None) -> str:
        """The key of this execution of the current step, unique in the run: ids, iterations, attempts.

        `state`: the key of the step at which the cursor had this state.
        """
        parts = [self.key] if self.key else []
        frames = (state or self.cursor.state).frames
        for frame in frames:
            step, part = frame.step, frame.step.id
            if frame is not frames[-1] and isinstance(step, Loop):
                part += f"[{frame.index}]"
            elif frame is not frames[-1] and isinstance(step, IncludeWorkflow) and frame.failures:
                part += f"~{frame.failures + 1}"
            parts.append(part)
        return "/".join(parts)


def state_path_of(path: Path, key: str, inner: Path) -> Path:
    """The path of a state that a thread entered: tasks beside each other may include the same workflow."""
    if not inner or not key:
        return (*path, *inner)
    return (*path, f"{key}{_OF_THREAD}{inner[0]}", *inner[1:])


def task_id(parent: Thread, action: Parallel, index: int) -> str:
    """The id by which a task's agent asks for its steps. The id of a task inside another begins with that one's."""
    name = f"{action.step.id}.{index}"
    if action.batch and "loop" in action.scope.names and not action.step.wait_for_all:
        name += f"#{action.batch}"  # the task of an earlier iteration may still be handed out
    return f"{parent.task_id}/{name}" if parent.task_id else name


# The fields that the engine itself writes in the `raw` of workflows that declare them, with their first values.
_ENGINE_FIELDS: dict[str, Any] = {
    "steps_completed": [],
    "steps_failed": [],
    "retry_counts": {},
    "last_error": None,
    "workflow_errors": [],
}


class WorkflowState:
    """One workflow's state, and what else its expressions see: inputs, feedback, included workflows."""

    def __init__(self, definition: Definition, inputs: Mapping[str, Any], texts: Texts, state: Reactive) -> None:
        self.definition = definition
        self.inputs = dict(inputs)
        self.state = state
        self.included: dict[str, Any] = {}
        self._texts = texts
        workflow = definition.workflow
        declared = {*workflow.state_schema.raw, *workflow.default_state.raw}
        self.engine_fields = frozenset(_ENGINE_FIELDS) & declared

    def view(self, names: Mapping[str, Any]) -> View:
        """The values at a place in this workflow. `names`: those that loops and tasks add."""
        return View(self._texts, self.state.world, names)

    def include(self, step_id: str, flattened: dict[str, Any]) -> None:
        """Make the final state of an included workflow readable under the id of the step that included it."""
        self.included[step_id] = flattened
        self.state.world.set(step_id, flattened)

    def set_feedback(self, feedback: str | None) -> None:
        """Set the feedback that a resume was given."""
        self.feedback = feedback
        self.state.world.set("feedback", feedback)

    def to_json(self) -> dict[str, Any]:
        """All of it, as `WorkflowStates.restore` takes it."""
        return {
            "inputs": self.inputs,
            "raw": self.state.raw,
            "state": self.state.state,
            "version": self.state.version,
            "included": self.included,
            "feedback": self.feedback,
        }


class WorkflowStates:
    """All of a run's states; expressions of one run never see another's."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._texts = Texts(script)
        self._states: dict[Path, WorkflowState] = {}
        self._feedback: str | None = None
        self.traces: list[dict[str, Any]] = []  # how fields were computed, for the journal

    def __getitem__(self, path: Path) -> WorkflowState:
        return self._states[path]

    def __contains__(self, path: Path) -> bool:
        return path in self._states

    def begin(
        self, path: Path, definition: Definition, inputs: Mapping[str, Any], raw_given: Mapping[str, Any] | None = None
    ) -> WorkflowState:
        """Start a state with its workflow's defaults; ExpressionError where one cannot be evaluated. `raw_given`: what
        an includer sets, in place of the defaults."""
        workflow = definition.workflow
        world = World(self._script)
        try:
            world.set("inputs", dict(inputs))
            at_start = View(self._texts, world, {})
            raw = at_start.value(workflow.default_state.raw)
            state = at_start.value(workflow.default_state.state)
        finally:
            world.close()
        for name in workflow.state_schema.raw:
            if name in _ENGINE_FIELDS:
                raw.setdefault(name, _ENGINE_FIELDS[name])
        raw |= raw_given or {}
        data = {"inputs": inputs, "raw": raw, "state": state, "version": 0, "included": {}, "feedback": self._feedback}
        return self.restore(path, definition, data)

    def restore(self, path: Path, definition: Definition, data: Mapping[str, Any]) -> WorkflowState:
        """Restore a state from what `to_json` returned."""
        schema = definition.workflow.state_schema
        reactive = Reactive(
            self._script,
            {
                name: Computation(field.from_, field.transform, field.on_error, field.fallback, field.validate_)
                for name, field in schema.computed.items()
            },
            raw=data["raw"],
            state=data["state"],
            declared=(*schema.raw, *schema.state),
            names={"inputs": dict(data["inputs"])},
            version=data["version"],
            on_computed=lambda one: self.traces.append({"space": list(path), **asdict(one)}),
        )
        if path in self._states:
            self.leave(path)
        state = self._states[path] = WorkflowState(definition, data["inputs"], self._texts, reactive)
        for step_id, flattened in data["included"].items():
            state.include(step_id, flattened)
        self._feedback = data["feedback"]
        state.set_feedback(self._feedback)
        return state

    def set_feedback(self, feedback: str | None) -> None:
        """Set the feedback that a resume was given, for the run's workflow and all that it includes, now or later."""
        self._feedback = feedback
        for state in self._states.values():
            state.set_feedback(feedback)

    def take_traces(self) -> list[dict[str, Any]]:
        """How fields were computed since the last call, those of workflows that were left meanwhile too."""
        taken, self.traces = self.traces, []
        return taken

    def leave(self, path: Path) -> None:
        """Remove the state of an included workflow, and those inside it."""
        for inner in [known for known in self._states if known[: len(path)] == path]:
            self._states.pop(inner).state.close()

    def close(self) -> None:
        """Remove all states from the evaluator."""
        self.leave(())

    def to_json(self) -> list[list[Any]]:
        """Every state with its path, outer ones first."""
        return [[list(path), state.to_json()] for path, state in sorted(self._states.items(), key=lambda e: len(e[0]))]
