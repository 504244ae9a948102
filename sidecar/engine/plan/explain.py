"""What a run would do with these inputs, without doing any of it: a dry run.

Expressions are evaluated where all that they read is known before the run: its inputs, its defaults, and what is
computed from these. A field that a step writes is not known behind that step, and from the start inside a loop around
it. What agents write by themselves, with the MCP tools, nobody can foresee.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sidecar.catalog import workflows
from sidecar.engine.plan.shape import Plan
from sidecar.engine.plan.start import begin
from sidecar.engine.plan.walk import Walk, Way
from sidecar.errors import SidecarError
from sidecar.model.parameters import bind, misfit, unknown

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sidecar.catalog.imports import Definition
    from sidecar.config import Settings
    from sidecar.engine.plan.steps import Account
    from sidecar.model.steps_control import IncludeWorkflow
    from sidecar.model.workflow import Workflow
    from sidecar.state.script import Script

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
