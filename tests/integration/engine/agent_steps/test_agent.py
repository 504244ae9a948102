"""The `agent` step: what an agent is given, what becomes of its answer, and what of its failures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from sidecar.engine.steps import agent
from sidecar.errors import ExpressionError, StepFailed
from sidecar.model.steps import AgentStep
from tests.kit import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    # The stage is a fixture's: with pytest's import mode nobody can import it from here.
    Stage = Any
    ClaudeSays = Callable[..., str]

pytestmark = pytest.mark.anyio


async def done(stage: Stage, names: dict[str, Any] | None = None, /, *, context: Any = None, **fields: Any) -> Any:
    """The result of a step."""
    step = AgentStep.model_validate({"type": "agent", "id": "it", **fields})
    with anyio.fail_after(120):
        return await agent.run_agent(step, context or stage.context(names))


async def failure(stage: Stage, /, *, context: Any = None, **fields: Any) -> dict[str, Any]:
    """The error of a step that fails."""
    with pytest.raises(StepFailed) as caught:
        await done(stage, context=context, **fields)
    error: dict[str, Any] = json.loads(json.dumps(caught.value.error))
    return error


def result(**fields: Any) -> dict[str, Any]:
    usage = {"input_tokens": 100, "output_tokens": 50}
    return {"type": "result", "session_id": "s", "usage": usage, "total_cost_usd": 0.25, "result": "done", **fields}


# --- what goes in


async def test_the_prompt_goes_in_with_its_templates_filled_and_the_answer_is_the_result(stage: Stage) -> None:
    stage.define("worker", "tr a-z A-Z")
    assert await done(stage, {"item": {"name": "a.ts"}}, prompt="mend {{ item.name }}: {{ item }}") == (
        'MEND A.TS: {"NAME": "A.TS"}'
    )


@pytest.mark.parametrize("chosen", [{}, {"agent": "{{ nobody }}"}, {"agent": "{{ '' }}"}])
async def test_without_a_name_the_default_agent_does_it(stage: Stage, chosen: dict[str, str]) -> None:
    stage.define("worker", "echo the default")
    assert await done(stage, prompt="go", **chosen) == "the default"


async def test_the_name_of_the_agent_may_come_from_the_state(stage: Stage) -> None:
    stage.define("worker", "echo the default")
    stage.define("other", "echo the other")
    assert await done(stage, {"item": "other"}, agent="{{ item }}", prompt="go") == "the other"
    assert [name for name, _ in stage.agents] == ["other"]


async def test_a_prompt_by_name_gets_its_parameters_and_no_value_of_them_becomes_a_template(stage: Stage) -> None:
    stage.define("worker", "cat")
    stage.file(
        "prompts/review.md",
        "---\nparameters: [{name: file}, {name: depth, type: integer, default: 2}]\n---\n"
        "Review {{ file }} to depth {{ depth }}.",
    )
    given = {"file": "{{ item }}"}
    assert await done(stage, {"item": "{{ 1 + 1 }}"}, prompt_name="review", parameters=given) == (
        "Review {{ 1 + 1 }} to depth 2."
    )


async def test_a_prompt_that_is_not_there_or_lacks_a_parameter_fails_the_step_before_anything_starts(
    stage: Stage,
) -> None:
    stage.define("worker", "cat")
    stage.file("prompts/review.md", "Review {{ file }}.")
    assert "no such prompt: reveiw; available: review" in (await failure(stage, prompt_name="reveiw"))["message"]
    error = await failure(stage, prompt_name="review", parameters={"flie": "x"})
    assert error["message"] == (
        "prompt 'review': unknown parameter 'flie'; did you mean 'file'?; parameter 'file' is required"
    )
    assert stage.agents == []


async def test_what_a_person_added_stands_behind_the_prompt_each_as_a_paragraph(stage: Stage) -> None:
    stage.define("worker", "cat")
    context = stage.context(additions=("Use {{ tabs }}.", "And be quick."))
    assert await done(stage, context=context, prompt="Mend it.\n") == "Mend it.\n\nUse {{ tabs }}.\n\nAnd be quick."


async def test_parameters_beside_a_prompt_are_for_the_definition_of_the_agent(stage: Stage) -> None:
    given = {"command": ["sh", "-c", "cat; echo; echo {{ item }}"]}
    assert await done(stage, {"item": 7}, agent="command", prompt="go", parameters=given) == "go\n7"


async def test_two_prompts_are_one_too_many(stage: Stage) -> None:
    stage.define("worker", "cat")
    assert "remove one" in (await failure(stage, prompt="a", parameters={"prompt": "b"}))["message"]


async def test_it_runs_where_and_with_what_the_step_says(stage: Stage) -> None:
    stage.define("worker", 'pwd; echo "$COLOUR $SIZE $KIND"', env={"COLOUR": "red", "KIND": "round"})
    (stage.root / "sub").mkdir()
    stage.environment["SIZE"] = "small"
    lines = await done(
        stage,
        {"item": "sub"},
        prompt="go",
        working_dir="{{ item }}",
        env={"COLOUR": "{{ item }}"},
        output_format="lines",
    )
    assert lines == [str(stage.root / "sub"), "sub small round"]


async def test_the_agent_knows_its_run_and_its_task(stage: Stage) -> None:
    stage.define("worker", 'echo "$SIDECAR_PROJECT $SIDECAR_RUN_ID $SIDECAR_TASK_ID"')
    context = stage.context(task_id="each.3")
    assert await done(stage, context=context, prompt="go") == f"{stage.root} {stage.run_id} each.3"
    assert await done(stage, prompt="go") == f"{stage.root} {stage.run_id} "


async def test_the_way_back_to_the_run_is_handed_to_the_tool(stage: Stage, claude_says: ClaudeSays) -> None:
    stage.define("worker", claude_says(result()), "claude")
    stage.mcp = {"command": ["sidecar", "serve"], "env": {"SIDECAR_RUN_ID": stage.run_id}}
    await done(stage, context=stage.context(task_id="each.3"), prompt="go")
    words = (stage.root / "argv").read_text().splitlines()
    server = json.loads(words[words.index("--mcp-config") + 1])["mcpServers"]["sidecar"]
    assert (server["command"], server["args"]) == ("sidecar", ["serve"])
    assert server["env"] == {"SIDECAR_RUN_ID": stage.run_id, "SIDECAR_TASK_ID": "each.3"}


async def test_a_variable_that_no_program_can_have_fails_the_step(stage: Stage) -> None:
    stage.define("worker", "cat")
    error = await failure(stage, context=stage.context({"item": "a\0b"}), prompt="go", env={"X": "{{ item }}"})
    assert "NUL" in error["message"]


# --- what comes out


@pytest.mark.parametrize(
    ("wanted", "said", "expected"),
    [
        ("text", "a\\n\\n", "a\n"),
        ("text", "a", "a"),
        ("lines", "", []),
        ("lines", "a\\n\\n", ["a", ""]),
        ("lines", "a\\nb\\n", ["a", "b"]),
        ("json", ' {"a": [1, 2]} ', {"a": [1, 2]}),
        ("json", "17", 17),
        ("json", "Here it is:\\n```json\\n[1]\\n```\\nAnd now:\\n```\\n[2]\\n```\\nFine.", [2]),
        ("json", "```json\\n[1]\\n```\\n```sh\\nls\\n```", [1]),
        ("key_value", "a=1\\nb: 2\\n", {"a": "1", "b": "2"}),
    ],
)
async def test_the_answer_is_what_its_format_says(stage: Stage, wanted: str, said: str, expected: Any) -> None:
    stage.define("worker", f"printf '{said}'")
    assert await done(stage, prompt="go", output_format=wanted) == expected


@pytest.mark.parametrize("said", ["I did it.", "```json\\nnot\\n```", "[NaN]", "```json\\n[1]"])
async def test_an_answer_that_is_not_json_fails_a_step_that_wants_json(stage: Stage, said: str) -> None:
    stage.define("worker", f"printf '{said}'")
    assert "not" in (await failure(stage, prompt="go", output_format="json"))["message"]


async def test_structured_output_of_the_tool_goes_before_its_text(stage: Stage, claude_says: ClaudeSays) -> None:
    stage.define("worker", claude_says(result(result="all done", structured_output={"fixed": 3})), "claude")
    assert await done(stage, prompt="go", output_format="json") == {"fixed": 3}
    assert await done(stage, prompt="go") == "all done"


async def test_what_it_says_and_does_is_told_while_it_runs(stage: Stage, claude_says: ClaudeSays) -> None:
    tool = {"type": "tool_use", "id": "t", "name": "Bash"}
    message = {"type": "assistant", "session_id": "s", "message": {"id": "m", "content": [tool]}}
    waiting = "until [ -e go-on ]; do sleep 0.01; done"
    stage.define(
        "worker", "\n".join([claude_says(message), "echo aside >&2", waiting, claude_says(result())]), "claude"
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: done(stage, prompt="go"))
        await eventually(lambda: {"stdout", "stderr"} <= {said["stream"] for said in stage.of_kind("agent_output")})
        await eventually(lambda: "tool_started" in [did["activity"] for did in stage.of_kind("activity")])
        assert stage.spent == []
        (stage.root / "go-on").touch()
    ((name, started),) = stage.agents
    assert name == "worker"
    passed_on = stage.of_kind("agent_output") + stage.of_kind("activity")
    assert {data["agent_id"] for data in passed_on} == {started.agent_id}
    began = next(did for did in stage.of_kind("activity") if did["activity"] == "tool_started")
    assert (began["call_id"], began["name"]) == ("t", "Bash")
    assert ["aside"] in [said["lines"] for said in stage.of_kind("agent_output")]


async def test_a_flood_on_one_line_is_cut_for_those_who_watch_and_not_for_the_result(stage: Stage) -> None:
    stage.define("worker", "head -c 300000 /dev/zero | tr '\\0' x")
    assert await done(stage, prompt="go") == "x" * 300_000
    assert max(len(line) for said in stage.of_kind("agent_output") for line in said["lines"]) < 20_000
    assert max(len(did["text"]) for did in stage.of_kind("activity") if did["activity"] == "message") < 20_000


async def test_what_it_cost_is_counted(stage: Stage, claude_says: ClaudeSays) -> None:
    stage.define("worker", claude_says(result()), "claude")
    await done(stage, prompt="go")
    assert stage.spent == [(0.25, 150)]


async def test_secrets_of_the_run_and_of_the_step_reach_neither_log_nor_events(stage: Stage) -> None:
    stage.environment["GITHUB_TOKEN"] = "secret-of-the-run"
    stage.define("worker", 'echo "$GITHUB_TOKEN $OPENAI_API_KEY"; echo shown')
    said = await done(stage, prompt="go", env={"OPENAI_API_KEY": "secret-of-the-step"})
    everything = said + json.dumps(stage.told) + stage.logs[0].read_text()
    assert "secret-of" not in everything
    assert "shown" in said
    assert "shown" in stage.logs[0].read_text()


# --- what goes wrong


async def test_an_exit_code_fails_the_step_with_the_last_line_of_stderr(stage: Stage) -> None:
    stage.define("worker", "echo fine; echo first >&2; echo 'no such branch' >&2; exit 3")
    assert await failure(stage, prompt="go") == {
        "message": "agent 'worker': it ended with exit code 3: no such branch",
        "kind": "agent",
        "agent": "worker",
        "exit_code": 3,
        "reason": "exited",
        "stderr": "no such branch",
    }


async def test_an_error_in_the_words_of_the_tool_is_the_message(stage: Stage, claude_says: ClaudeSays) -> None:
    script = claude_says(result(is_error=True, result="the model is overloaded")) + "\necho noise >&2; exit 1"
    stage.define("worker", script, "claude")
    error = await failure(stage, prompt="go")
    assert (error["message"], error["kind"]) == ("agent 'worker': the model is overloaded", "agent")
    assert stage.spent == [(0.25, 150)]


@pytest.mark.parametrize(("of_step", "of_agent"), [("200ms", "1h"), ("1h", "200ms"), ("{{ '200ms' }}", None)])
async def test_the_shorter_timeout_ends_the_whole_tree(stage: Stage, of_step: str, of_agent: str | None) -> None:
    stage.define("worker", "sleep 1000 & echo $! > born; sleep 1000", limits={"timeout": of_agent} if of_agent else {})
    error = await failure(stage, prompt="go", timeout=of_step)
    assert (error["kind"], error["reason"]) == ("timeout", "timeout")
    assert error["message"] == "agent 'worker': ran for 0.2 s, its timeout"
    assert stage.living() == []


async def test_a_timeout_that_is_no_duration_fails_the_step(stage: Stage) -> None:
    stage.define("worker", "cat")
    assert "timeout: 'soon' is not a duration" in (await failure(stage, prompt="go", timeout="{{ 'soon' }}"))["message"]


async def test_a_stalled_agent_is_ended_as_stalled(stage: Stage) -> None:
    stage.define("worker", "sleep 1000", limits={"idle_timeout": "300ms"})
    error = await failure(stage, prompt="go")
    assert (error["kind"], error["reason"]) == ("stall", "stall")


@pytest.mark.parametrize(("left", "of_agent", "cap"), [(0.5, 2.0, "0.5"), (3.0, 2.0, "2.0"), (0.5, None, "0.5")])
async def test_an_agent_may_cost_what_is_left_to_the_run_and_no_more_than_its_own_limit(
    stage: Stage, claude_says: ClaudeSays, left: float, of_agent: float | None, cap: str
) -> None:
    stage.define("worker", claude_says(result()), "claude", limits={"max_cost_usd": of_agent} if of_agent else {})
    await done(stage, context=stage.context(cost_remaining_usd=left), prompt="go")
    words = (stage.root / "argv").read_text().splitlines()
    assert words[words.index("--max-budget-usd") + 1] == cap


async def test_a_budget_that_the_tool_reports_as_spent_is_a_budget(stage: Stage, claude_says: ClaudeSays) -> None:
    message = result(is_error=True, subtype="error_max_budget_usd", result="")
    stage.define("worker", claude_says(message) + "\nexit 1", "claude")
    assert (await failure(stage, prompt="go"))["kind"] == "budget"


async def test_an_agent_that_spends_more_than_is_left_is_ended(stage: Stage, claude_says: ClaudeSays) -> None:
    stage.define("worker", claude_says(result()) + "\nsleep 1000", "claude")
    error = await failure(stage, context=stage.context(cost_remaining_usd=0.2), prompt="go")
    assert (error["kind"], error["reason"]) == ("budget", "budget")
    assert stage.spent == [(0.25, 150)]


async def test_where_nothing_is_left_nothing_is_started(stage: Stage) -> None:
    stage.define("worker", "cat")
    assert (await failure(stage, context=stage.context(cost_remaining_usd=0.0), prompt="go"))["kind"] == "budget"
    assert stage.agents == []
    assert stage.spent == []


async def test_an_agent_that_nobody_knows_or_that_has_no_program_fails_the_step(stage: Stage) -> None:
    stage.define("worker", "cat")
    error = await failure(stage, agent="wroker", prompt="go")
    assert error["message"].startswith("no such agent: wroker; available: worker")
    stage.file("agents/gone.yaml", "adapter: command\ncommand: [no-such-program-here]")
    error = await failure(stage, agent="gone", prompt="go")
    assert (error["kind"], error["agent"]) == ("agent", "gone")
    assert "no-such-program-here" in error["message"]
    assert (
        "name of one"
        in (await failure(stage, context=stage.context({"item": 3}), agent="{{ item }}", prompt="go"))["message"]
    )


async def test_a_template_that_fails_fails_the_step_before_anything_starts(stage: Stage) -> None:
    stage.define("worker", "cat")
    with pytest.raises(ExpressionError):
        await done(stage, prompt="{{ nothing.at.all }}")
    assert stage.agents == []


# --- and when it is cancelled


@pytest.mark.parametrize("reason", [None, "redirect", "stage_gate"])
async def test_cancelled_it_leaves_when_the_tree_is_gone_and_the_first_reason_stays(
    stage: Stage, claude_says: ClaudeSays, reason: Any
) -> None:
    usage = {"input_tokens": 30, "output_tokens": 12}
    message = {"type": "assistant", "session_id": "s", "message": {"id": "m", "content": [], "usage": usage}}
    script = "\n".join([claude_says(message), "trap '' TERM", "sleep 1000 & sleep 1000 & echo $! > born; wait; wait"])
    stage.define("worker", script, "claude")
    over = anyio.Event()

    async def cancelled() -> None:
        await done(stage, prompt="go")
        over.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancelled)
        await eventually(lambda: len(stage.living()) == 2 and stage.of_kind("activity"))
        ((_, started),) = stage.agents
        if reason is not None:
            started.request_end(reason)
        tasks.cancel_scope.cancel()
    assert not over.is_set()
    assert stage.living() == []
    assert (await started.wait()).reason == (reason or "abort")
    assert stage.spent == [(None, 42)]
