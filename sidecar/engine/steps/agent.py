"""`agent`: a prompt goes to an agent, and its final answer is the step's result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sidecar.engine.work import output
from sidecar.engine.work.agent_turn import Order, Taken, named_prompt, take_turn
from sidecar.engine.work.json_in_text import fenced
from sidecar.errors import StepFailed

if TYPE_CHECKING:
    from sidecar.engine.context import Context
    from sidecar.model.steps import AgentStep, OutputFormat


async def run(step: AgentStep, context: Context) -> Any:
    """The answer, as `output_format` wants it."""
    prompt, parameters = _prompt(step, context)
    order = Order(
        agent=step.agent,
        prompt=prompt,
        parameters=parameters,
        cwd=context.directory(step.working_dir),
        env={name: context.view.text(value) for name, value in step.env.items()},
        timeout=step.timeout_s,
        task_id=context.task_id,
    )
    return _result(await take_turn(context, order), step.output_format)


def _prompt(step: AgentStep, context: Context) -> tuple[str, dict[str, Any]]:
    """What the agent is told, and what its definition gets besides."""
    parameters: dict[str, Any] = context.view.value(step.parameters)
    if step.prompt_name is not None:
        return named_prompt(context, step.prompt_name, parameters), {}
    assert step.prompt is not None
    if "prompt" in parameters:
        raise StepFailed("`parameters` has a `prompt`, and so has the step: only one of them can hold")
    return context.view.text(step.prompt), parameters


def _result(taken: Taken, wanted: OutputFormat) -> Any:
    text = taken.answer()
    if wanted == "json":
        return _json(text, taken.outcome.summary.structured)
    # An answer has lost its last line break already, and a format would take the one before it for the last.
    return output.formatted(text + "\n" if text else "", wanted)


def _json(text: str, structured: Any) -> Any:
    """The tool's own structured output, else the whole answer, else the last fenced block that is JSON: models wrap
    JSON in a fence, however they are asked not to."""
    if structured is not None and _is_json(structured):
        return structured
    try:
        return output.formatted(text, "json")
    except StepFailed:
        for block in fenced(text):
            try:
                return output.formatted(block, "json")
            except StepFailed:
                continue
        raise


def _is_json(value: Any) -> bool:
    """Python reads NaN and Infinity out of a text that calls itself JSON; nobody else would."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True
