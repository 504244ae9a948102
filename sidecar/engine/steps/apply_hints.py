"""`apply_hints`: an agent applies hints to a file, and says how many it applied."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sidecar.engine.work.agent_turn import Order, Taken, take_turn
from sidecar.engine.work.json_in_text import last_count, last_object
from sidecar.errors import StepFailed

if TYPE_CHECKING:
    from sidecar.engine.context import Context
    from sidecar.model.steps import ApplyHints

_COUNT = "applied_count"
# The braces of the example are no JSON: an agent that repeats what it was told has not answered.
_PROMPT = """\
Apply hints to one file.

The file, relative to the working directory: {file}

The hints:

{hints}

Change this file only, and only as the hints say. Leave out a hint that does not apply to it, or that is met already.

When you are done, end your answer with one line that is a JSON object and nothing else: the number of hints that you
applied, as in {{"applied_count": N}}. Where none applied, the number is 0.
"""


async def run(step: ApplyHints, context: Context) -> dict[str, Any]:
    """The object at the end of the agent's answer; `applied_count` in it is a whole number."""
    view = context.view
    prompt = _PROMPT.format(file=view.text(step.file), hints=_listed(view.value(step.hints)))
    order = Order(
        agent=step.agent,
        prompt=prompt,
        cwd=context.directory(None),
        timeout=step.timeout_s,
        task_id=context.task_id,
    )
    return _answer(await take_turn(context, order))


def _listed(hints: Any) -> str:
    """The hints as an agent reads them best: texts as a list, everything else as JSON."""
    if isinstance(hints, str):
        return hints
    if isinstance(hints, list) and hints and all(isinstance(hint, str) for hint in hints):
        return "\n".join("- " + hint.strip().replace("\n", "\n  ") for hint in hints)
    return json.dumps(hints, ensure_ascii=False, indent=2)


def _answer(taken: Taken) -> dict[str, Any]:
    text = taken.answer()
    structured = taken.outcome.summary.structured
    found = structured if isinstance(structured, dict) and _COUNT in structured else last_object(text, _COUNT)
    count = _whole(found[_COUNT]) if found is not None else last_count(text)
    if count is None:
        message = f'agent {taken.agent!r} did not end its answer with {{"{_COUNT}": a whole number}}'
        raise StepFailed(message, kind="agent", agent=taken.agent, answer=text[-500:])
    return {**(found or {}), _COUNT: count}


def _whole(value: Any) -> int | None:
    """A count, as lenient as is safe: 3, 3.0 and "3" are one."""
    if isinstance(value, str):
        return last_count(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < 0:
        return None
    return int(value)
