"""A plan as programs and people get it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from sidecar.model.language import has_template
from sidecar.text import one_line

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
