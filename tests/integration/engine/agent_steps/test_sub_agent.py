"""An agent of its own for a task: what it is told, and that its outcome is handed back, good or bad."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from sidecar.engine.steps.agent import run_task_agent
from sidecar.errors import StepFailed
from tests.kit import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.engine.steps.agent import TurnResult

    # The stage is a fixture's: with pytest's import mode nobody can import it from here.
    Stage = Any

pytestmark = pytest.mark.anyio


async def taken(stage: Stage, context: Any = None, **given: Any) -> TurnResult:
    asked = {"agent_name": None, "prompt_override": None, "description": "", **given}
    with anyio.fail_after(120):
        return await run_task_agent(replace(context or stage.context(), task_id="each.3"), **asked)


async def test_the_standard_prompt_names_the_task_the_run_and_the_tools(stage: Stage) -> None:
    stage.define("worker", "cat")
    said = (await taken(stage, description="Mends {{ one }} file.")).answer()
    assert "- task_id: each.3\n" in said
    assert f"- workflow_id: {stage.run_id}\n" in said
    assert "Mends {{ one }} file." in said
    assert "`workflow_get_next_step`" in said
    assert "`workflow_step_complete`" in said
    assert "{{ task_id }}" not in said
    assert "its steps say." in (await taken(stage)).answer()


async def test_an_override_sees_the_item_and_the_task_and_stands_alone(stage: Stage) -> None:
    stage.define("worker", "cat")
    context = stage.context({"item": "a.ts", "index": 3})
    override = "Do {{ item }} ({{ index }}) as {{ task_id }} of {{ workflow_id }}: {{ description }}"
    said = (await taken(stage, context, prompt_override=override, description="mend it")).answer()
    assert said == f"Do a.ts (3) as each.3 of {stage.run_id}: mend it"


async def test_a_project_may_have_a_standard_prompt_of_its_own_that_asks_for_less(stage: Stage) -> None:
    stage.define("worker", "cat")
    stage.file("prompts/sub-agent.md", "Your task is {{ task_id }}.")
    assert (await taken(stage, description="unused")).answer() == "Your task is each.3."


async def test_it_knows_its_task_by_its_environment_and_the_mcp_server_does_too(
    stage: Stage, claude_says: Callable[..., str]
) -> None:
    stage.mcp = {"command": ["sidecar", "serve"], "env": {}}
    stage.define("worker", claude_says({"type": "result", "result": ""}) + '\necho "$SIDECAR_TASK_ID" > task', "claude")
    await taken(stage)
    assert (stage.root / "task").read_text() == "each.3\n"
    assert '"SIDECAR_TASK_ID": "each.3"' in (stage.root / "argv").read_text()


async def test_an_agent_that_fails_is_handed_back_for_others_to_judge(stage: Stage) -> None:
    stage.define("other", "echo halfway; echo broken >&2; exit 3")
    found = await taken(stage, agent_name="{{ 'other' }}")
    assert (found.agent, found.outcome.summary.text, found.outcome.ended.exit_code) == ("other", "halfway", 3)
    assert found.failure is not None
    assert found.failure.error["message"] == "agent 'other': it ended with exit code 3: broken"
    with pytest.raises(StepFailed):
        found.answer()


async def test_one_that_cannot_begin_is_a_failed_step(stage: Stage) -> None:
    with pytest.raises(StepFailed, match="no such agent: nobody"):
        await taken(stage, agent_name="nobody")


async def test_what_a_person_added_is_added_here_too(stage: Stage) -> None:
    stage.define("worker", "cat")
    assert (await taken(stage, stage.context(additions=("Hurry.",)))).answer().endswith("\n\nHurry.")


async def test_cancelled_it_leaves_nothing(stage: Stage) -> None:
    stage.define("worker", "sleep 1000 & echo $! > born; sleep 1000")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(taken, stage)
        await eventually(lambda: len(stage.living()) == 2)
        tasks.cancel_scope.cancel()
    assert stage.living() == []
