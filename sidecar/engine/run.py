"""Everything of a run that outlives its owner: threads, states, counters, kept as a checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.catalog.workflows import restore
from sidecar.engine.cursor import moves
from sidecar.engine.cursor.actions import Included, TaskCompleted, TaskFailed
from sidecar.engine.cursor.moves import Cursor
from sidecar.engine.cursor.position import Scope, StepList
from sidecar.engine.evaluation import Texts, View
from sidecar.errors import DefinitionChanged
from sidecar.model.steps import IncludeWorkflow, Loop
from sidecar.model.workflow import walk
from sidecar.state.reactive import Computation, Reactive, UpdateResult, Write
from sidecar.state.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sidecar.catalog.workflows import Definition
    from sidecar.engine.cursor.actions import Parallel
    from sidecar.engine.cursor.moves import Cursor
    from sidecar.engine.cursor.position import Error, State
    from sidecar.model.steps import Steps
    from sidecar.model.workflow import SubAgentTask, Workflow
    from sidecar.state.script import Script


@dataclass(slots=True)
class Counters:
    """What the run's limits count, across all its starts."""

    duration_s: float = 0.0
    cost_usd: float = 0.0
    tokens: int = 0
    processes: int = 0  # numbers their logs
    tasks_iterations: int = 0  # of tasks that are over
    tasks_transitions: int = 0
    round: int = 1  # of `retry_workflow`


@dataclass
class Run:
    """A run in memory."""

    definition: Definition
    spaces: WorkflowStates
    main: Thread
    counters: Counters = field(default_factory=Counters)
    definitions: dict[Path, Definition] = field(default_factory=dict)  # of what was included by name
    additions: dict[str, list[str]] = field(default_factory=dict)  # by step key: what was said to it since
    redirects: list[str] = field(default_factory=list)  # the names of those that were heard
    answers: dict[str, str] = field(default_factory=dict)  # by step key: which addition answers what it submitted last
    unheard: list[str] = field(default_factory=list)  # feedback that no agent has been given yet

    @classmethod
    def begin(cls, definition: Definition, inputs: Mapping[str, Any], script: Script) -> Run:
        """Before the first step."""
        spaces = WorkflowStates(script)
        spaces.begin((), definition, inputs)
        return cls(definition, spaces, Thread("", None, Cursor.start(StepList.of_workflow(definition.workflow))))

    def restart(self, inputs: Mapping[str, Any]) -> None:
        """From the start again (`retry_workflow`), with everything that was counted still counted."""
        self.counters.tasks_iterations += self.main.cursor.iterations
        self.counters.tasks_transitions += self.main.cursor.transitions
        self.counters.round += 1
        self.spaces.close()
        self.spaces.begin((), self.definition, inputs)
        cursor = Cursor.start(StepList.of_workflow(self.definition.workflow))
        self.main = Thread(f"round-{self.counters.round}", None, cursor, handed=self.main.handed)

    # --- what happens to it, told the same way by the loop and when it is told again

    def include(
        self, thread: Thread, definition: Definition, inputs: Mapping[str, Any], fields: Iterable[str] = ()
    ) -> Included:
        """A workflow is entered: its state begins, with the inputs that are `fields` of it, too."""
        path = included_path(thread)
        self.spaces.begin(path, definition, inputs, {name: inputs[name] for name in fields})
        self.definitions[path] = definition
        return Included(StepList.of_workflow(definition.workflow))

    def move(self, thread: Thread, cursor: Cursor) -> None:
        """A thread goes on. Where an error has left an included workflow, there are its steps for that."""
        before, thread.cursor = thread.cursor.state, cursor
        leave_by_error(self.spaces, thread, before)

    def start_task(self, parent: Thread, action: Parallel, index: int, names: Mapping[str, Any]) -> Thread:
        """A task begins, from its first step."""
        place = (action.batch, index)
        parent.tries[place] = parent.tries.get(place, 0) + 1
        path = parent.space(action.scope.path)
        task = self.task_of(path, action)
        child = Thread(
            task_key(parent, action.step.id, place, parent.tries[place]),
            task_id(parent, action, index),
            Cursor.start(StepList(task.steps)),
            path=path,
            names=dict(names),
            parent=parent,
            place=place,
            spare=parent.spare,
        )
        parent.children[place] = child
        return child

    def end_task(self, child: Thread, error: Error | None) -> bool:
        """A task is over; whether it is tried again."""
        parent, place = child.parent, child.place
        assert parent is not None
        assert place is not None
        before = parent.cursor.state.batches.get(place[0])
        failures = before.failures.get(place[1], 0) if before else 0
        told = TaskCompleted(*place) if error is None else TaskFailed(*place, error)
        if error is not None:
            parent.error = {**error, "task": child.task_id}
        self.move(parent, parent.cursor.after(told))
        child.told = True
        after = parent.cursor.state.batches.get(place[0])
        again = error is not None and after is not None and after.failures.get(place[1], 0) > failures
        ended_for_good = after is None or place[1] in after.done
        if again or ended_for_good:  # a task that failed for good may go on where it stands, when the run is resumed
            self.counters.tasks_iterations += child.cursor.iterations
            self.counters.tasks_transitions += child.cursor.transitions
            del parent.children[place]
        return again

    def redirected(self, key: str, text: str, name: str | None) -> None:
        """A step is done again with a text added."""
        self.additions.setdefault(key, []).append(text)
        if name is not None and name not in self.redirects:
            self.redirects.append(name)

    def answered(self, key: str, text: str) -> None:
        """A step is done again with the answer to what it submitted. An earlier answer is settled, and goes."""
        said = self.additions.setdefault(key, [])
        if self.answers.get(key) in said:
            said.remove(self.answers[key])
        said.append(text)
        self.answers[key] = text

    def heard(self, key: str, text: str) -> None:
        """Feedback goes into the prompt of a step."""
        self.additions.setdefault(key, []).append(text)
        if text in self.unheard:
            self.unheard.remove(text)

    def settled(self, key: str) -> None:
        """A step is done: nothing that was said to it is needed any more."""
        self.additions.pop(key, None)
        self.answers.pop(key, None)

    def task_of(self, path: Path, action: Parallel) -> SubAgentTask:
        """The definition of a batch's tasks."""
        return self.spaces[path].definition.tasks[action.step.sub_agent_task]

    # --- numbers

    @property
    def iterations(self) -> int:
        """Of all loops, in all threads."""
        return self.counters.tasks_iterations + sum(thread.cursor.iterations for thread in self.main.walk())

    @property
    def transitions(self) -> int:
        """Steps begun that do something."""
        return self.counters.tasks_transitions + sum(thread.cursor.transitions for thread in self.main.walk())

    # --- kept and found again

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        by_name = {
            json.dumps(path): definition.record()
            for path, definition in self.definitions.items()
            if path in self.spaces and not _is_imported(self, path, definition)
        }
        return {
            "thread": _thread_json(self.main),
            "spaces": self.spaces.to_json(),
            "counters": {name: getattr(self.counters, name) for name in Counters.__slots__},
            "included": by_name,
            "additions": self.additions,
            "redirects": self.redirects,
            "answers": self.answers,
            "unheard": self.unheard,
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any], definition: Definition, script: Script) -> Run:
        """As `to_json` left it. DefinitionChanged where the definition is another and the run does not fit into it."""
        spaces = WorkflowStates(script)
        included = {tuple(json.loads(path)): restore(record) for path, record in data["included"].items()}
        definitions: dict[Path, Definition] = {}
        for listed, content in data["spaces"]:
            path = tuple(listed)
            found = definition if not path else included.get(path) or _component(path, definitions, definition)
            if path:
                definitions[path] = found
            spaces.restore(path, found, content)
        image = cls(definition, spaces, Thread("", None, Cursor.start(StepList(()))), Counters(**data["counters"]))
        image.definitions = definitions
        image.additions = dict(data["additions"])
        image.redirects = list(data.get("redirects", ()))
        image.answers = dict(data.get("answers", {}))
        image.unheard = list(data.get("unheard", ()))
        image.main = image._restored(data["thread"], None)
        return image

    def left(self, thread: Thread) -> None:
        """An included workflow is done: what it left can be read by the one that included it."""
        step_id = thread.cursor.steps[-1]
        outer, inner = thread.here, included_path(thread)
        left = self.spaces[inner].state.flattened()
        if thread is not self.main and outer == thread.path:
            thread.names[step_id] = left  # a task shares the state around it with others that include the same
        else:
            self.spaces[outer].include(step_id, left)
        self.spaces.leave(inner)
        self.definitions.pop(inner, None)

    def _restored(self, data: Mapping[str, Any], parent: Thread | None, steps: Steps | None = None) -> Thread:
        """`steps`: where they are not the run's own or a task's."""
        path = tuple(data["path"])

        def part_at(inner: Path) -> StepList:
            if inner:
                found = space_path(path, data["key"], inner)
                return StepList.of_workflow(self.spaces[found].definition.workflow)
            if steps is not None:
                return StepList(steps)
            if parent is None:
                return StepList.of_workflow(self.definition.workflow)
            tasks = self.spaces[path].definition.tasks
            if data["task"] not in tasks:
                raise DefinitionChanged(f"the task {data['task']!r}, in which the run stands, is gone")
            return StepList(tasks[data["task"]].steps)

        thread = Thread(
            data["key"],
            data["task_id"],
            Cursor.restore(data["cursor"], part_at),
            path=path,
            names=data["names"],
            parent=parent,
            place=tuple(data["place"]) if data["place"] else None,
            told=data["told"],
            spare=data.get("spare", False),
            error=data.get("error"),
            failures=data.get("failures", 0),
        )
        thread.tries = {(batch, index): count for batch, index, count in data["tries"]}
        for inner in data["children"]:
            child = self._restored(inner, thread)
            assert child.place is not None
            thread.children[child.place] = child
        for word, spare in data.get("spares", ()):
            thread.spares[word] = self._spare(thread, word, spare)
        thread.left = [self._spare(thread, ON_FAILURE, spare) for spare in data.get("left", ())]
        return thread

    def _spare(self, thread: Thread, word: str, data: Mapping[str, Any]) -> Thread:
        return self._restored(data, None, failure_steps(self.spaces, thread, word, tuple(data["path"])))


def included_path(thread: Thread) -> Path:
    """Where the state is of what the current step includes."""
    frames = thread.cursor.state
    return thread.space((*frames.path(len(frames.frames) - 1), thread.cursor.steps[-1]))


def back_to_boundary(main: Thread, *, interrupted: bool, reset_error_counts: bool, past_failure: bool) -> None:
    """Each thread to its last boundary, with what is done still done; where it is wanted, past the step that failed.

    `interrupted`: in the middle of something. A failure that the run was about to end with, it still ends with, and
    the steps for it go on where they were; else they are done, and another failure has its own.
    """
    fails = main.cursor.state.ending is not None and main.cursor.state.ending.status == "failed"
    if not interrupted:
        main.spares = {}
    for thread in main.walk_all():
        if thread is main and fails and interrupted:
            continue
        # A failure that is still being judged goes on, and so does a task's whose batch does not know of it yet: the
        # attempt is over, and another would be one too many.
        untold = (thread.parent is not None or thread.spare) and thread.cursor.is_over and not thread.told
        if thread.cursor.state.failure is None and not untold:
            thread.cursor = thread.cursor.resumed(reset_error_counts=reset_error_counts)
            thread.spares = thread.spares if thread is main or not thread.told else {}
            thread.told = False
    if past_failure and not interrupted and main.cursor.state.frames:
        state = main.cursor.state.with_top(batch=None)
        state = state.trimmed(len(state.frames))
        main.cursor = Cursor(moves.advance(state))
        main.children = {place: child for place, child in main.children.items() if place[0] in state.batches}


def _thread_json(thread: Thread) -> dict[str, Any]:
    return {
        "key": thread.key,
        "task_id": thread.task_id,
        "task": thread.task,
        "cursor": thread.cursor.to_json(),
        "path": list(thread.path),
        "names": thread.names,
        "place": list(thread.place) if thread.place else None,
        "told": thread.told,
        "spare": thread.spare,
        "error": thread.error,
        "failures": thread.failures,
        "spares": [[word, _thread_json(spare)] for word, spare in thread.spares.items()],
        "left": [_thread_json(spare) for spare in thread.left],
        "tries": [[*place, count] for place, count in thread.tries.items()],
        "children": [
            _thread_json(child) for place, child in thread.children.items() if place[0] in thread.cursor.state.batches
        ],
    }


def _component(path: Path, known: Mapping[Path, Definition], definition: Definition) -> Definition:
    """A workflow that its includer imports, found again by the step that includes it."""
    outer = known[path[:-1]] if path[:-1] else definition
    for component in _includes(outer, step_of(path)):
        return component
    raise DefinitionChanged(f"step {step_of(path)!r}, in which the run stands, does not include what it did")


def _includes(outer: Definition, step_id: str) -> Iterable[Definition]:
    for step, _ in walk(outer.workflow):
        name = getattr(step, "workflow", None)
        if step.id == step_id and isinstance(name, str) and name in outer.components:
            yield outer.components[name]


def _is_imported(image: Run, path: Path, definition: Definition) -> bool:
    outer = image.spaces[path[:-1]].definition if path[:-1] in image.spaces else image.definition
    return definition in outer.components.values()


# Lines of execution: the run's own, and one for each task of `parallel_foreach`, each with a cursor of its own.


_OF_THREAD = ">"  # in no id of a step, and in no key


@dataclass(eq=False)
class Thread:
    """One line: where it stands, in whose state, with which names of its own."""

    key: str  # "" for the run's own; else unique in the run
    task_id: str | None
    cursor: Cursor
    path: Path = ()  # the workflow that the task belongs to
    names: dict[str, Any] = field(default_factory=dict)
    parent: Thread | None = None
    place: tuple[int, int] | None = None  # batch and index in the parent
    handed: bool = False  # an agent outside does what needs one
    spare: bool = False  # steps for a failure: no limit of the run keeps them from being done
    error: Error | None = None  # the last that one of its steps failed with
    failures: int = 0  # that there were steps for
    spares: dict[str, Thread] = field(default_factory=dict)  # the steps for its end, where it failed
    left: list[Thread] = field(default_factory=list)  # those of included workflows that an error has left, not done yet
    told: bool = False  # of a task that is over: its batch knows
    children: dict[tuple[int, int], Thread] = field(default_factory=dict)
    tries: dict[tuple[int, int], int] = field(default_factory=dict)  # fresh starts of each task
    lock: anyio.Lock = field(default_factory=anyio.Lock)

    def scope(self, scope: Scope) -> Scope:
        """A scope of the cursor, seen from the run. What is included sees nothing of the task around it."""
        names = scope.names if scope.path else {**self.names, **scope.names}
        return Scope(self.space(scope.path), names)

    def space(self, inner: Path) -> Path:
        """Where the state is that a path of the cursor leads to."""
        return space_path(self.path, self.key, inner)

    @property
    def here(self) -> Path:
        """Where the state of the current step is."""
        frames = self.cursor.state
        return self.space(frames.path(len(frames.frames) - 1))

    @property
    def task(self) -> str | None:
        """The name of the task that it does, while its batch is there."""
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
        """The same, and what is done for their failures."""
        for thread in self.walk():
            yield thread
            for spare in [*thread.spares.values(), *thread.left]:
                yield from spare.walk_all()

    def step_key(self, state: State | None = None) -> str:
        """What tells this execution of the current step from every other of the run: ids, iterations, attempts.

        `state`: where the thread stood, in place of where it stands.
        """
        words = []
        frames = (state or self.cursor.state).frames
        for frame in frames:
            word = frame.step.id
            if frame is not frames[-1] and isinstance(frame.step, Loop):
                word += f"[{frame.index}]"
            elif frame is not frames[-1] and isinstance(frame.step, IncludeWorkflow) and frame.failures:
                word += f"~{frame.failures + 1}"
            words.append(word)
        return "/".join([self.key, *words] if self.key else words)


def space_path(path: Path, key: str, inner: Path) -> Path:
    """The path of a state that a thread entered: tasks beside each other may include the same workflow."""
    if not inner or not key:
        return (*path, *inner)
    return (*path, f"{key}{_OF_THREAD}{inner[0]}", *inner[1:])


def step_of(path: Path) -> str:
    """The step that included the workflow whose state is there."""
    return path[-1].rpartition(_OF_THREAD)[2]


def task_id(parent: Thread, action: Parallel, index: int) -> str:
    """The id by which a task's agent asks for its steps. A task inside another is told from its cousins by that."""
    word = f"{action.step.id}.{index}"
    if action.batch and "loop" in action.scope.names and not action.step.wait_for_all:
        word += f"#{action.batch}"  # the one of an earlier iteration may still be in an agent's hands
    return f"{parent.task_id}/{word}" if parent.task_id else word


def task_key(parent: Thread, step_id: str, place: tuple[int, int], tries: int) -> str:
    """The key of a task's thread: unique also where the same step stands in a loop, or the task is tried again."""
    batch, index = place
    word = f"{step_id}.{index}" + (f"#{batch}" if batch else "") + (f"~{tries}" if tries > 1 else "")
    return f"{parent.key}/{word}" if parent.key else word


# The states of a run: its own, and one for each workflow that it includes.


Path = tuple[str, ...]  # the `include_workflow` steps that lead to a workflow; () is the run's own
# What the engine keeps in `raw` for those who declare it, and what it begins with.
_KEPT: dict[str, Any] = {
    "steps_completed": [],
    "steps_failed": [],
    "retry_counts": {},
    "last_error": None,
    "workflow_errors": [],
}


class WorkflowState:
    """One workflow's state, with what its expressions see besides: inputs, feedback, what it included."""

    def __init__(self, definition: Definition, inputs: Mapping[str, Any], texts: Texts, state: Reactive) -> None:
        self.definition = definition
        self.inputs = dict(inputs)
        self.state = state
        self.included: dict[str, Any] = {}
        self._texts = texts
        workflow = definition.workflow
        declared = {*workflow.state_schema.raw, *workflow.default_state.raw}
        self.kept = frozenset(_KEPT) & declared
        state.world.set("inputs", self.inputs)
        self.hear_feedback(None)

    def view(self, names: Mapping[str, Any]) -> View:
        """A place in this workflow, with the names that loops and tasks add."""
        return View(self._texts, self.state.world, names)

    def update(self, writes: Sequence[Write]) -> UpdateResult:
        """A transaction of the state."""
        return self.state.update(writes)

    def include(self, step_id: str, flattened: dict[str, Any]) -> None:
        """What an included workflow left can be read under the id of the step that included it."""
        self.included[step_id] = flattened
        self.state.world.set(step_id, flattened)

    def hear_feedback(self, feedback: str | None) -> None:
        """What `resume` brought."""
        self.feedback = feedback
        self.state.world.set("feedback", feedback)

    def to_json(self) -> dict[str, Any]:
        """What is needed to begin again from here."""
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
        self._spaces: dict[Path, WorkflowState] = {}
        self._feedback: str | None = None
        self.traces: list[dict[str, Any]] = []  # how fields were computed, for the journal

    def __getitem__(self, path: Path) -> WorkflowState:
        return self._spaces[path]

    def __contains__(self, path: Path) -> bool:
        return path in self._spaces

    def begin(
        self, path: Path, definition: Definition, inputs: Mapping[str, Any], raw_given: Mapping[str, Any] | None = None
    ) -> WorkflowState:
        """A state as its workflow declares it. ExpressionError where a default cannot be computed. `raw_given`: what an
        includer sets, in place of the defaults."""
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
            if name in _KEPT:
                raw.setdefault(name, _KEPT[name])
        raw |= raw_given or {}
        data = {"inputs": inputs, "raw": raw, "state": state, "version": 0}
        space = self._add(path, definition, data)
        space.hear_feedback(self._feedback)
        return space

    def restore(self, path: Path, definition: Definition, data: Mapping[str, Any]) -> WorkflowState:
        """A state as `to_json` left it."""
        space = self._add(path, definition, data)
        for step_id, flattened in data["included"].items():
            space.include(step_id, flattened)
        space.hear_feedback(data["feedback"])
        self._feedback = data["feedback"] if not path else self._feedback
        return space

    def hear_feedback(self, feedback: str | None) -> None:
        """What `resume` brought, for the run's workflow and for what it includes, now or later."""
        self._feedback = feedback
        for space in self._spaces.values():
            space.hear_feedback(feedback)

    def take_traces(self) -> list[dict[str, Any]]:
        """How fields were computed since the last call, those of workflows that were left meanwhile too."""
        taken, self.traces = self.traces, []
        return taken

    def leave(self, path: Path) -> None:
        """An included workflow is done."""
        for inner in [known for known in self._spaces if known[: len(path)] == path]:
            self._spaces.pop(inner).state.close()

    def close(self) -> None:
        """Let the evaluator forget them all."""
        self.leave(())

    def to_json(self) -> list[list[Any]]:
        """Every state with its path, outer ones first."""
        return [[list(path), space.to_json()] for path, space in sorted(self._spaces.items(), key=lambda e: len(e[0]))]

    def _add(self, path: Path, definition: Definition, data: Mapping[str, Any]) -> WorkflowState:
        workflow = definition.workflow
        reactive = Reactive(
            self._script,
            _computed(workflow),
            raw=data["raw"],
            state=data["state"],
            declared=(*workflow.state_schema.raw, *workflow.state_schema.state),
            names={"inputs": dict(data["inputs"])},
            version=data["version"],
            on_computed=lambda one: self.traces.append({"space": list(path), **asdict(one)}),
        )
        if path in self._spaces:
            self.leave(path)
        space = self._spaces[path] = WorkflowState(definition, data["inputs"], self._texts, reactive)
        return space


def _computed(workflow: Workflow) -> dict[str, Computation]:
    return {
        name: Computation(field.from_, field.transform, field.on_error, field.fallback, field.validate_)
        for name, field in workflow.state_schema.computed.items()
    }


# The steps for a failure: lines of their own beside the thread that failed, kept with it until they are done.
#
# Those of an included workflow that an error has left follow from where the thread stood and where it stands: the loop
# and whoever tells a run again find them in the same way. Those at the end of a thread are begun by name.
#


CLEANUP = "cleanup"  # of a task
ON_FAILURE = "on_failure"  # of a workflow; with a level, of an included one


def begin_failure_steps(
    spaces: WorkflowStates, thread: Thread, word: str, path: Path, names: Mapping[str, Any]
) -> Thread | None:
    """The steps at the end of a thread that failed; None where there are none."""
    spare = _failure_thread(spaces, thread, word, path, names)
    if spare is not None:
        thread.spares[word] = spare
    return spare


def leave_by_error(spaces: WorkflowStates, thread: Thread, before: State) -> None:
    """The thread has moved on from where it stood: the steps of the included workflows that an error has left."""
    after = thread.cursor.state
    if len(after.frames) >= len(before.frames) or (after.ending is not None and after.ending.exited):
        return
    # What is left by its last step is not left by an error: at the top the run, else what is now in the phase "leave".
    over = not after.frames or after.top.phase == "leave"
    for level in range(len(before.frames) - 1, len(after.frames) - 1 + over, -1):
        if before.frames[level].branch == "steps":
            names = {"error": thread.error or {"message": ""}}
            spare = _failure_thread(spaces, thread, f"{ON_FAILURE}.{level}", thread.space(before.path(level)), names)
            thread.left += [spare] if spare is not None else []


def failure_steps(spaces: WorkflowStates, thread: Thread, word: str, path: Path) -> Steps:
    """What the definition has for such a failure of a thread."""
    definition = spaces[path].definition
    if word == CLEANUP:
        assert thread.task is not None
        return definition.tasks[thread.task].error_handling.cleanup_on_error or ()
    return definition.workflow.error_handling.on_failure or ()


def _failure_thread(
    spaces: WorkflowStates, thread: Thread, word: str, path: Path, names: Mapping[str, Any]
) -> Thread | None:
    steps = failure_steps(spaces, thread, word, path)
    if not steps:
        return None
    thread.failures += 1  # however often it comes to fail, over all its starts, the keys are others
    key = f"{word}~{thread.failures}"
    key = f"{thread.key}/{key}" if thread.key else key
    return Thread(key, thread.task_id, Cursor.start(StepList(steps)), path, dict(names), spare=True)
