"""Everything of a run that outlives its owner: threads, states, counters, kept as a checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sidecar.catalog import imports
from sidecar.engine import aftermath
from sidecar.engine.checks import walk
from sidecar.engine.cursor import Cursor
from sidecar.engine.program import moves, parts
from sidecar.engine.program.actions import Included, TaskCompleted, TaskFailed
from sidecar.engine.program.parts import Part
from sidecar.engine.spaces import Path, Spaces
from sidecar.engine.threads import Thread, space_path, step_of, task_id, task_key
from sidecar.errors import DefinitionChanged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sidecar.catalog.imports import Definition
    from sidecar.engine.program.actions import Error, Parallel
    from sidecar.engine.program.parts import Part as PartType
    from sidecar.model.steps_control import Steps
    from sidecar.model.workflow import SubAgentTask
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
class Image:
    """A run in memory."""

    definition: Definition
    spaces: Spaces
    main: Thread
    counters: Counters = field(default_factory=Counters)
    definitions: dict[Path, Definition] = field(default_factory=dict)  # of what was included by name
    additions: dict[str, list[str]] = field(default_factory=dict)  # by step key: what was said to it since
    redirects: list[str] = field(default_factory=list)  # the names of those that were heard
    answers: dict[str, str] = field(default_factory=dict)  # by step key: which addition answers what it submitted last
    unheard: list[str] = field(default_factory=list)  # feedback that no agent has been given yet

    @classmethod
    def begin(cls, definition: Definition, inputs: Mapping[str, Any], script: Script) -> Image:
        """Before the first step."""
        spaces = Spaces(script)
        spaces.begin((), definition, inputs)
        return cls(definition, spaces, Thread("", None, Cursor.start(parts.of_workflow(definition.workflow))))

    def restart(self, inputs: Mapping[str, Any]) -> None:
        """From the start again (`retry_workflow`), with everything that was counted still counted."""
        self.counters.tasks_iterations += self.main.cursor.iterations
        self.counters.tasks_transitions += self.main.cursor.transitions
        self.counters.round += 1
        self.spaces.close()
        self.spaces.begin((), self.definition, inputs)
        cursor = Cursor.start(parts.of_workflow(self.definition.workflow))
        self.main = Thread(f"round-{self.counters.round}", None, cursor, handed=self.main.handed)

    # --- what happens to it, told the same way by the loop and when it is told again

    def include(
        self, thread: Thread, definition: Definition, inputs: Mapping[str, Any], fields: Iterable[str] = ()
    ) -> Included:
        """A workflow is entered: its state begins, with the inputs that are `fields` of it, too."""
        path = included_path(thread)
        self.spaces.begin(path, definition, inputs, {name: inputs[name] for name in fields})
        self.definitions[path] = definition
        return Included(parts.of_workflow(definition.workflow))

    def move(self, thread: Thread, cursor: Cursor) -> None:
        """A thread goes on. Where an error has left an included workflow, there are its steps for that."""
        before, thread.cursor = thread.cursor.state, cursor
        aftermath.leave(self.spaces, thread, before)

    def start_task(self, parent: Thread, action: Parallel, index: int, names: Mapping[str, Any]) -> Thread:
        """A task begins, from its first step."""
        place = (action.batch, index)
        parent.tries[place] = parent.tries.get(place, 0) + 1
        path = parent.space(action.scope.path)
        task = self.task_of(path, action)
        child = Thread(
            task_key(parent, action.step.id, place, parent.tries[place]),
            task_id(parent, action, index),
            Cursor.start(Part(task.steps)),
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
    def restore(cls, data: Mapping[str, Any], definition: Definition, script: Script) -> Image:
        """As `to_json` left it. DefinitionChanged where the definition is another and the run does not fit into it."""
        spaces = Spaces(script)
        included = {tuple(json.loads(path)): imports.restore(record) for path, record in data["included"].items()}
        definitions: dict[Path, Definition] = {}
        for listed, content in data["spaces"]:
            path = tuple(listed)
            found = definition if not path else included.get(path) or _component(path, definitions, definition)
            if path:
                definitions[path] = found
            spaces.restore(path, found, content)
        image = cls(definition, spaces, Thread("", None, Cursor.start(Part(()))), Counters(**data["counters"]))
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

        def part_at(inner: Path) -> PartType:
            if inner:
                found = space_path(path, data["key"], inner)
                return parts.of_workflow(self.spaces[found].definition.workflow)
            if steps is not None:
                return Part(steps)
            if parent is None:
                return parts.of_workflow(self.definition.workflow)
            tasks = self.spaces[path].definition.tasks
            if data["task"] not in tasks:
                raise DefinitionChanged(f"the task {data['task']!r}, in which the run stands, is gone")
            return Part(tasks[data["task"]].steps)

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
        thread.left = [self._spare(thread, aftermath.ON_FAILURE, spare) for spare in data.get("left", ())]
        return thread

    def _spare(self, thread: Thread, word: str, data: Mapping[str, Any]) -> Thread:
        return self._restored(data, None, aftermath.steps_of(self.spaces, thread, word, tuple(data["path"])))


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
    for step, _ in walk.steps(outer.workflow):
        name = getattr(step, "workflow", None)
        if step.id == step_id and isinstance(name, str) and name in outer.components:
            yield outer.components[name]


def _is_imported(image: Image, path: Path, definition: Definition) -> bool:
    outer = image.spaces[path[:-1]].definition if path[:-1] in image.spaces else image.definition
    return definition in outer.components.values()
