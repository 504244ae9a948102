"""The `apply_hints` step: what the agent is told, and how its count is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from sidecar.engine.steps import agent
from sidecar.errors import StepFailed
from sidecar.model.steps import ApplyHints

if TYPE_CHECKING:
    from collections.abc import Callable

    # The stage is a fixture's: with pytest's import mode nobody can import it from here.
    Stage = Any

pytestmark = pytest.mark.anyio


async def applied(stage: Stage, names: dict[str, Any] | None = None, /, **fields: Any) -> dict[str, Any]:
    step = ApplyHints.model_validate(
        {"type": "apply_hints", "id": "it", "file": "{{ item }}", "hints": "{{ hints }}", **fields}
    )
    with anyio.fail_after(120):
        return await agent.run_apply_hints(step, stage.context(names or {"item": "a.ts", "hints": ["one", "two"]}))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('{"applied_count": 2}', {"applied_count": 2}),
        ('Done.\\n{"applied_count": 2, "skipped": {"why": "met"}}\\n', {"applied_count": 2, "skipped": {"why": "met"}}),
        ('First {"applied_count": 1}, then\\n```json\\n{"applied_count": 3}\\n```\\nBye {x}.', {"applied_count": 3}),
        ('{"applied_count": "4"}', {"applied_count": 4}),
        ('{"applied_count": 2.0}', {"applied_count": 2}),
        ("I applied these:\\n\\n**2**\\n", {"applied_count": 2}),
        ("0", {"applied_count": 0}),
    ],
)
async def test_the_count_at_the_end_is_found_however_it_is_wrapped(
    stage: Stage, said: str, expected: dict[str, Any]
) -> None:
    stage.define("worker", f"printf '{said}'")
    found = await applied(stage)
    assert found == expected
    assert type(found["applied_count"]) is int


@pytest.mark.parametrize(
    "said",
    [
        "All 3 hints are applied.",
        "",
        '{"applied_count": true}',
        '{"applied_count": -1}',
        '{"applied_count": 1.5}',
        '{"applied_count": null}',
        '{"applied_count": NaN}',
        '{"applied_count": 1e999}',
        '{"count": 3}',
    ],
)
async def test_an_answer_without_a_count_fails_the_step(stage: Stage, said: str) -> None:
    stage.define("worker", f"printf '{said}'")
    with pytest.raises(StepFailed, match="did not end its answer") as caught:
        await applied(stage)
    assert (caught.value.error["kind"], caught.value.error["answer"]) == ("agent", said)


async def test_an_agent_that_only_repeats_what_it_was_told_has_not_answered(stage: Stage) -> None:
    stage.define("worker", "cat")
    with pytest.raises(StepFailed, match="did not end its answer"):
        await applied(stage)


@pytest.mark.parametrize(
    ("hints", "told"),
    [
        (["use const", "no any\nanywhere"], "- use const\n- no any\n  anywhere\n"),
        ("one {curly} hint", "one {curly} hint\n"),
        ([{"rule": "no-any", "line": 3}], '[\n  {\n    "rule": "no-any",\n    "line": 3\n  }\n]\n'),
    ],
)
async def test_the_agent_is_told_the_file_and_the_hints(stage: Stage, hints: Any, told: str) -> None:
    stage.define("worker", "cat > prompt; echo 1")
    await applied(stage, {"item": "src/a {b}.ts", "hints": hints})
    prompt = (stage.root / "prompt").read_text()
    assert "src/a {b}.ts\n" in prompt
    assert told in prompt
    assert "applied_count" in prompt


async def test_an_agent_that_fails_fails_the_step_whatever_it_said(stage: Stage) -> None:
    stage.define("worker", "echo '{\"applied_count\": 2}'; exit 4")
    with pytest.raises(StepFailed, match="exit code 4"):
        await applied(stage)


async def test_it_has_its_timeout_its_agent_and_what_a_person_added(stage: Stage) -> None:
    stage.define("slow", "sleep 1000")
    with pytest.raises(StepFailed) as caught:
        await applied(stage, agent="slow", timeout="100ms")
    assert caught.value.error["kind"] == "timeout"
    stage.define("worker", "cat > prompt; echo 1")
    step = ApplyHints.model_validate({"type": "apply_hints", "id": "it", "file": "a", "hints": "b"})
    with anyio.fail_after(120):
        await agent.run_apply_hints(step, stage.context(additions=("Gently.",)))
    assert (stage.root / "prompt").read_text().endswith("\n\nGently.")


async def test_structured_output_of_the_tool_has_the_count(stage: Stage, claude_says: Callable[..., str]) -> None:
    message = {"type": "result", "result": "I applied 7 of them", "structured_output": {"applied_count": 7}}
    stage.define("worker", claude_says(message), "claude")
    assert await applied(stage) == {"applied_count": 7}
