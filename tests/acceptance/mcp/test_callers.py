"""Seed 003's table of callers: whoever ends an agent, and why, the call in progress has its reply, everybody hears of
one end, and nothing is left of the agent's tree.

Each reason is brought about as a user does it. The agents are as unwilling as the seed's: a part of each is deaf, in a
session of its own.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest
import yaml

from tests.kit import alive
from tests.kit.project import CALLER

if TYPE_CHECKING:
    from mcp.types import CallToolResult

    from tests.acceptance.mcp.conftest import Heard, House

pytestmark = pytest.mark.anyio
# It notes its pid and that of a child that ignores all but SIGKILL, far from its group; then it works.
BORN = "setsid sh -c 'trap \"\" TERM HUP INT; echo $$ >> {0}.pids; while :; do sleep 600; done' & echo $$ >> {0}.pids; "
WORK = BORN + "cat > {0}.prompt; while :; do sleep 600; done"


@dataclass
class Case:
    """One workflow with an agent in it, called by a client that listens."""

    house: House
    name: str
    heard: Heard
    replies: list[CallToolResult] = field(default_factory=list)

    def define(self, script: str, step: dict[str, Any] | None = None, **agent: Any) -> None:
        """An agent, and a workflow that gives it one step."""
        self.house.project.agent(self.name, script.format(self.name), **agent)
        work = {"id": "work", "type": "agent", "agent": self.name, "prompt": "go", **(step or {})}
        self.house.project.workflow(self.name, work)

    def pids(self) -> list[int]:
        path = self.house.root / f"{self.name}.pids"
        return [int(word) for word in path.read_text().split()] if path.exists() else []

    def run_id(self) -> str:
        runs = [run for run in self.house.project.runs() if run["workflow"] == self.name]
        return str(runs[0]["run_id"]) if runs else ""

    async def at_work(self, processes: int = 2) -> str:
        """The run, as soon as its agents are all there."""
        await self.house.until(lambda: len(self.pids()) >= processes)
        return self.run_id()

    async def call(self, era: str) -> None:
        async with self.house.client(era, message_handler=self.heard) as client:
            await client.list_tools()  # or the library would ask for them when it has the reply, to check it
            asked = {"flow_name": self.name}
            self.replies.append(await client.call_tool("flow", asked, progress_callback=self.heard.progress))

    def check(self, status: str, *reasons: str) -> dict[str, Any]:
        """What has to hold for every one of them; the result of the call."""
        (reply,) = self.replies
        run = reply.structured_content or {}
        assert run["status"] == status
        assert reply.is_error == (status in ("failed", "aborted"))
        self.check_end(run["run_id"], status, *reasons)
        return run

    def check_end(self, run_id: str, status: str, *reasons: str) -> None:
        (ended,) = self.house.project.data(run_id, "run_ended")
        assert ended["status"] == status
        told = self.heard.of_kind("flow_complete", "flow_error")
        assert [(one["run_id"], one["status"]) for one in told] == [(run_id, status)]
        ends = self.house.project.data(run_id, "agent_ended")
        assert sorted(one["reason"] for one in ends) == sorted(reasons)
        assert [one["survivors"] for one in ends] == [0] * len(reasons)
        assert len(self.house.project.data(run_id, "agent_started")) == len(reasons)
        assert [pid for pid in self.pids() if alive(pid)] == []


@pytest.fixture
def case(house: House, unique: str, heard: Heard) -> Case:
    return Case(house, unique, heard)


@pytest.fixture
def own_case(own_house: House, unique: str, heard: Heard) -> Case:
    """With a daemon of its own, to be broken or ended."""
    return Case(own_house, unique, heard)


async def test_abort_by_file(case: Case, era: str) -> None:
    case.define(WORK)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(case.call, era)
        run_id = await case.at_work()
        case.house.abort_by_file(b"wrong branch\n", run_id)
    assert case.check("aborted", "abort")["reason"] == "wrong branch"
    receipt = json.loads((case.house.state / "runs" / run_id / ".abort.receipt.json").read_text())
    assert (receipt["state"], receipt["survivors"]) == ("applied", 0)


async def test_abort_by_command(case: Case) -> None:
    case.define(WORK)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(case.call, "2026-07-28")
        run_id = await case.at_work()
        await anyio.to_thread.run_sync(case.house.project.run, "abort", "wrong branch", "--run", run_id, "--wait")
        # That it returns means that all is over.
        assert [pid for pid in case.pids() if alive(pid)] == []
    case.check("aborted", "abort")


def _calling(case: Case, tool: str, arguments: dict[str, Any]) -> str:
    """Calls a tool of its own run, notes the answer in a file, and works on."""
    words = [sys.executable, str(CALLER), "call", f"{case.name}.answer", json.dumps([[tool, arguments]])]
    return BORN + "exec " + shlex.join(words).replace("{", "{{").replace("}", "}}")


def _answer(case: Case) -> dict[str, Any]:
    (line,) = (case.house.root / f"{case.name}.answer").read_text().splitlines()
    answer: dict[str, Any] = json.loads(line)
    assert not answer.get("isError")
    return dict(answer["structuredContent"])


async def test_abort_by_the_runs_own_agent(case: Case, era: str) -> None:
    case.define(_calling(case, "abort", {"reason": "this cannot work"}))
    await case.call(era)
    assert _answer(case)["success"] is True
    assert case.check("aborted", "abort")["reason"] == "this cannot work"


async def test_abort_by_another_client(case: Case, era: str) -> None:
    case.define(WORK)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(case.call, era)
        run_id = await case.at_work()
        async with case.house.client(era, "stdio") as other:
            told = await other.call_tool("abort", {"reason": "a person said so", "run_id": run_id})
            assert (told.structured_content or {})["success"] is True
    assert case.check("aborted", "abort")["reason"] == "a person said so"


async def test_abort_by_a_cancelled_call(case: Case) -> None:
    """Nobody waits for a reply to what was taken back; the end is in the journal, once."""
    case.define(WORK)
    async with case.house.client("legacy", message_handler=case.heard) as client:
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                await client.call_tool("flow", {"flow_name": case.name})

            tasks.start_soon(call)
            run_id = await case.at_work()
            tasks.cancel_scope.cancel()  # the library then sends `notifications/cancelled`
        await case.house.until(lambda: case.house.project.data(run_id, "run_ended"))
        (run,) = ((await client.call_tool("workflow_status", {"workflow_id": run_id})).structured_content or {})["runs"]
    assert (run["status"], run["reason"][:23]) == ("aborted", "cancelled by the client")
    (ended,) = case.house.project.data(run_id, "agent_ended")
    assert (ended["reason"], ended["survivors"]) == ("abort", 0)
    assert [pid for pid in case.pids() if alive(pid)] == []


async def test_timeout(case: Case, era: str) -> None:
    # Long enough for the agent to get to its work on a busy machine.
    case.define(WORK, {"timeout": "2s"})
    await case.call(era)
    assert len(case.pids()) == 2
    assert "2 s" in case.check("failed", "timeout")["reason"]


async def test_stall(case: Case) -> None:
    case.define(WORK, limits={"idle_timeout": "2s"})
    await case.call("legacy")
    assert len(case.pids()) == 2
    assert "for 2 s" in case.check("failed", "stall")["reason"]


async def test_budget_of_the_run(case: Case, era: str) -> None:
    usage = {"input_tokens": 1, "output_tokens": 1}
    spent = {"type": "result", "session_id": "s", "usage": usage, "total_cost_usd": 3.0, "result": "half done"}
    say = "printf '%s\\n' " + shlex.quote(json.dumps(spent)).replace("{", "{{").replace("}", "}}")
    # It is deaf to the end of its turn, too.
    case.define(BORN + f"cat > {{0}}.prompt; {say}; while :; do sleep 600; done", adapter="claude")
    text = yaml.safe_load((case.house.state / "workflows" / f"{case.name}.yaml").read_text())
    path = case.house.state / "workflows" / f"{case.name}.yaml"
    path.write_text(yaml.safe_dump({**text, "limits": {"max_cost_usd": 1.5}}))
    await case.call(era)
    assert "1.5" in case.check("failed", "budget")["reason"]


@pytest.mark.parametrize("kind", ["stage", "plan"])
async def test_stage_gate(case: Case, era: str, kind: str) -> None:
    case.define(_calling(case, "stage_gate", {"stage": "design", "output": "two columns", "kind": kind}))
    await case.call(era)
    answer = _answer(case)
    assert (answer["allowed"], answer["pause_required"]) == (False, True)
    needs = case.check("paused", "stage_gate")["needs"]
    assert (needs["kind"], needs["output"], needs["submitted"]) == ("approval", "two columns", kind)


async def test_redirect(case: Case, era: str) -> None:
    case.define(BORN + "cat > {0}.prompt; grep -q 'use tabs' {0}.prompt && exit; while :; do sleep 600; done")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(case.call, era)
        run_id = await case.at_work()
        await anyio.to_thread.run_sync(case.house.project.run, "redirect", run_id, "use tabs")
    case.check("completed", "redirect", "exited")


async def test_sibling_failed(case: Case, era: str) -> None:
    name = case.name
    command = f"test $ITEM = bad || {{ {BORN.format(name)} while :; do sleep 600; done; }}; "
    case.house.project.workflow(
        name,
        {
            "id": "all",
            "type": "parallel_foreach",
            "items": "{{ ['good', 'better', 'bad'] }}",
            "max_parallel": 3,
            "sub_agent_task": "one",
        },
        sub_agent_tasks={
            "one": {
                "description": "one",
                "steps": [
                    {
                        "id": "do",
                        "type": "shell_command",
                        "command": command + f"until test -e {name}.go; do sleep 0.02; done; exit 7",
                        "env": {"ITEM": "{{ item }}"},
                    }
                ],
            }
        },
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(case.call, era)
        await case.at_work(4)
        (case.house.root / f"{name}.go").touch()
    assert "exit code 7" in case.check("failed", "exited", "sibling_failed", "sibling_failed")["reason"]


async def test_shutdown(own_case: Case, era: str) -> None:
    own_case.define(WORK)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(own_case.call, era)
        await own_case.at_work()
        assert await anyio.to_thread.run_sync(own_case.house.daemon.end) == 0
    own_case.check("interrupted", "shutdown")


async def test_internal_error(own_case: Case) -> None:
    """What supervises the agents is killed: none goes on without it."""
    own_case.define(WORK)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(own_case.call, "2026-07-28")
        await own_case.at_work()
        for child in psutil.Process(own_case.house.daemon.process.pid).children():
            if any("sentinel" in word for word in child.cmdline()):
                child.kill()
    own_case.check("failed", "internal_error")
