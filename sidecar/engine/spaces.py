"""The states of a run: its own, and one for each workflow that it includes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sidecar.engine.evaluation import Texts, View
from sidecar.state.reactive import Computed, Reactive, StateUpdate, Write
from sidecar.state.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sidecar.catalog.imports import Definition
    from sidecar.model.workflow import Workflow
    from sidecar.state.script import Script

Path = tuple[str, ...]  # the `include_workflow` steps that lead to a workflow; () is the run's own
# What the engine keeps in `raw` for those who declare it, and what it begins with.
_KEPT: dict[str, Any] = {
    "steps_completed": [],
    "steps_failed": [],
    "retry_counts": {},
    "last_error": None,
    "workflow_errors": [],
}


class Space:
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

    def update(self, writes: Sequence[Write]) -> StateUpdate:
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


class Spaces:
    """All of a run's states; expressions of one run never see another's."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._texts = Texts(script)
        self._spaces: dict[Path, Space] = {}
        self._feedback: str | None = None
        self.traces: list[dict[str, Any]] = []  # how fields were computed, for the journal

    def __getitem__(self, path: Path) -> Space:
        return self._spaces[path]

    def __contains__(self, path: Path) -> bool:
        return path in self._spaces

    def begin(
        self, path: Path, definition: Definition, inputs: Mapping[str, Any], raw_given: Mapping[str, Any] | None = None
    ) -> Space:
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

    def restore(self, path: Path, definition: Definition, data: Mapping[str, Any]) -> Space:
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

    def _add(self, path: Path, definition: Definition, data: Mapping[str, Any]) -> Space:
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
        space = self._spaces[path] = Space(definition, data["inputs"], self._texts, reactive)
        return space


def _computed(workflow: Workflow) -> dict[str, Computed]:
    return {
        name: Computed(field.from_, field.transform, field.on_error, field.fallback, field.validate_)
        for name, field in workflow.state_schema.computed.items()
    }
