"""Seed 000, testing requirements 8.1 to 8.3: the `abort` tool, the file it writes, and what becomes of runs."""

from __future__ import annotations

import itertools
import json
import sys
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
import yaml

from tests.kit.project import CALLER

if TYPE_CHECKING:
    from tests.acceptance.mcp.conftest import House

AT_WORK = "echo $$ > {0}.begun; while :; do sleep 600; done"


def _working(house: House, name: str, *, then: str = "true") -> None:
    house.project.workflow(
        name,
        {"id": "work", "type": "shell_command", "command": AT_WORK.format(name), "on_error": "continue"},
        {"id": "then", "type": "shell_command", "command": then},
    )


def _clear(house: House) -> None:
    house.project.until(lambda: not (house.state / ".abort").exists())


@pytest.mark.anyio
async def test_requirement_8_1_the_tool_creates_the_file_with_the_reason(own_house: House, era: str) -> None:
    """With no run to consume it: the file is what the tool leaves, and success is all that it says."""
    own_house.daemon.end()  # which would see to it at once
    reason = "User cancelled the destructive operation"
    async with own_house.client(era, "stdio") as client:
        told = await client.call_tool("abort", {"reason": reason})
        blank = await client.call_tool("abort", {"reason": " "})
        missing = await client.call_tool("abort", {})
    assert not told.is_error
    assert (told.structured_content or {})["success"] is True
    path = own_house.state / ".abort"
    assert (told.structured_content or {})["path"] == str(path)
    assert path.read_text().splitlines()[0] == reason
    assert blank.is_error
    assert missing.is_error


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"the tests are red\n", "the tests are red"),
        (b"", "Unknown abort reason"),
        (b"\xff\xfe\x00", "Unknown abort reason"),
    ],
    ids=["a reason", "nothing", "no text"],
)
async def test_requirement_8_1_the_executor_finds_the_file_whatever_is_in_it(
    house: House, unique: str, content: bytes, reason: str
) -> None:
    _working(house, unique, then=f"touch {unique}.then")
    async with house.client("2026-07-28") as client, anyio.create_task_group() as tasks:
        results = []

        async def call() -> None:
            results.append(await client.call_tool("flow", {"flow_name": unique}))

        tasks.start_soon(call)
        await house.until((house.root / f"{unique}.begun").exists)
        house.abort_by_file(content)
    (result,) = results
    assert result.is_error
    run = result.structured_content or {}
    assert run["status"] == "aborted"
    assert run["reason"] == reason
    assert not (house.root / f"{unique}.then").exists(), "no on_error swallows it"
    await anyio.to_thread.run_sync(_clear, house)


@pytest.mark.anyio
async def test_requirement_8_1_a_start_clears_a_leftover_file(own_house: House) -> None:
    own_house.project.workflow("quick", {"id": "a", "type": "shell_command", "command": "true"})
    own_house.daemon.end()
    (own_house.state / ".abort").write_text("from last week\n")
    done = json.loads(await anyio.to_thread.run_sync(own_house.project.output, "flow", "run", "quick", "--json"))
    assert done["status"] == "completed"
    assert not (own_house.state / ".abort").exists()


def test_requirement_8_2_end_to_end_from_the_prompt_to_the_exit_of_the_command(house: House, unique: str) -> None:
    """The agent is given the built-in prompt and calls the tool that it names."""
    answer = house.root / f"{unique}.answer"
    call = json.dumps([["abort", {"reason": "the plan deletes the data"}]])
    program = f'cat > {unique}.prompt; exec "$0" {CALLER} call {answer.name} "$1"'
    content = {"adapter": "command", "command": ["sh", "-c", program, sys.executable, call]}
    (house.state / "agents" / f"{unique}.yaml").write_text(yaml.safe_dump(content))
    step = {"id": "a", "type": "agent", "agent": unique, "prompt_name": "abort", "on_error": "continue"}
    house.project.workflow(unique, step, {"id": "b", "type": "shell_command", "command": f"touch {unique}.after"})
    process = house.project.start("flow", "run", unique)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "the plan deletes the data" in err
    assert "abort" in (house.root / f"{unique}.prompt").read_text()
    assert json.loads(answer.read_text())["structuredContent"]["success"] is True
    assert not (house.root / f"{unique}.after").exists()


@pytest.mark.anyio
async def test_requirement_8_2_an_abort_in_a_nested_workflow_ends_the_outermost(
    house: House, unique: str, era: str
) -> None:
    names = [f"{unique}-{level}" for level in range(3)]
    _working(house, names[2], then=f"touch {unique}.then")
    for outer, inner in itertools.pairwise(names):
        after = {"id": "after", "type": "shell_command", "command": f"touch {unique}.then"}
        include: dict[str, Any] = {"id": "in", "type": "include_workflow", "workflow": inner, "on_error": "continue"}
        house.project.workflow(outer, include, after)
    async with house.client(era) as client, anyio.create_task_group() as tasks:
        results = []

        async def call() -> None:
            results.append(await client.call_tool("flow", {"flow_name": names[0]}))

        tasks.start_soon(call)
        await house.until((house.root / f"{names[2]}.begun").exists)
        (run,) = [run for run in house.project.runs() if run["workflow"] == names[0]]
        async with house.client(era) as other:
            await other.call_tool("abort", {"reason": "enough", "run_id": run["run_id"]})
    (result,) = results
    assert (result.structured_content or {})["status"] == "aborted"
    assert (result.structured_content or {})["reason"] == "enough"
    assert not (house.root / f"{unique}.then").exists()
    assert len(house.project.data(run["run_id"], "run_ended")) == 1


@pytest.mark.anyio
async def test_requirement_8_2_the_file_of_one_run_does_not_meet_the_next(house: House, unique: str) -> None:
    _working(house, unique)
    house.project.workflow(f"{unique}-next", {"id": "a", "type": "shell_command", "command": "true"})
    async with house.client("legacy") as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "flow", {"flow_name": unique})
            await house.until((house.root / f"{unique}.begun").exists)
            await client.call_tool("abort", {"reason": "for everybody"})
        await anyio.to_thread.run_sync(_clear, house)
        following = await client.call_tool("flow", {"flow_name": f"{unique}-next"})
    assert (following.structured_content or {})["status"] == "completed"


@pytest.mark.anyio
async def test_requirement_8_3_what_agents_said_before_there_was_a_tool_still_aborts(house: House, unique: str) -> None:
    house.project.agent(unique, "cat > /dev/null; echo 'ABORT ERROR: the branch is protected'")
    step = {"id": "a", "type": "agent", "agent": unique, "prompt": "go", "on_error": "continue"}
    house.project.workflow(unique, step)
    async with house.client("2026-07-28") as client:
        result = await client.call_tool("flow", {"flow_name": unique})
    assert result.is_error
    run = result.structured_content or {}
    assert (run["status"], run["reason"]) == ("aborted", "the branch is protected")


@pytest.mark.parametrize(("how", "code"), [("completed", 0), ("failed", 2), ("aborted", 2)])
def test_requirement_8_3_exit_codes_tell_how_it_ended(house: House, unique: str, how: str, code: int) -> None:
    name = f"{unique}-{how}"
    house.project.workflow(
        name,
        {
            "id": "a",
            "type": "shell_command",
            "command": {
                "completed": "true",
                "failed": "exit 5",
                "aborted": "echo no > .swissarmyhammer/runs/$SIDECAR_RUN_ID/.abort; while :; do sleep 600; done",
            }[how],
        },
    )
    process = house.project.start("flow", "run", name)
    process.communicate(timeout=120)
    assert process.returncode == code
    (run,) = [run for run in house.project.runs() if run["workflow"] == name]
    assert run["status"] == how
