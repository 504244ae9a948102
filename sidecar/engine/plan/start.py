"""What is known when a workflow begins: its inputs, its defaults, and what is computed from these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.engine.checks.names import target
from sidecar.engine.evaluation import Texts
from sidecar.engine.plan.known import INPUTS, Known, inputs_read
from sidecar.errors import ExpressionError
from sidecar.state.reactive import Computed, Graph, Reactive, Write
from sidecar.state.world import World

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from sidecar.model import workflow as model
    from sidecar.state.script import Script

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
