"""An agent of its own for one task of a `parallel_foreach`: it asks the run for the task's steps, and does them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.engine.work.agent_turn import Order, Taken, named_prompt, take_turn

if TYPE_CHECKING:
    from sidecar.engine.context import Context

PROMPT_NAME = "sub-agent"


async def run_task_agent(
    context: Context, *, agent_name: str | None, prompt_override: str | None, task_id: str, description: str
) -> Taken:
    """One turn of it, however it ended: `failure` says what went wrong with the agent, the task's steps what is done.

    `agent_name` and `prompt_override` are the step's own words, templates included; `task_id`, `workflow_id` and
    `description` are names in the override. StepFailed: the turn could not begin.
    """
    names = {"task_id": task_id, "workflow_id": context.around.run_id, "description": description}
    if prompt_override is not None:
        prompt = context.view.with_names(**names).text(prompt_override)
    else:
        given = {name: value for name, value in names.items() if value.strip()}
        # A project may have a standard prompt of its own, which need not ask for everything.
        prompt = named_prompt(context, PROMPT_NAME, given, strict=False)
    order = Order(agent=agent_name, prompt=prompt, cwd=context.directory(None), task_id=task_id)
    return await take_turn(context, order)
