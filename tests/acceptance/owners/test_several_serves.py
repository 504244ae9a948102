"""Several `sidecar serve` without a daemon on one run that an agent drives: each of its sub-agents has one."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Timer
from typing import TYPE_CHECKING, Any

from tests.kit import DEADLINE_S
from tests.kit.mcp_client import HELLO

if TYPE_CHECKING:
    from tests.kit import Project

SUB_AGENTS = 5


class Serve:
    """One `sidecar serve`, and the client that started it."""

    def __init__(self, project: Project) -> None:
        self.process = project.start("serve", stdin=subprocess.PIPE)
        self.order: list[int] = []  # of the answers
        self._asked = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self.answer(self._send("initialize", HELLO))

    def _send(self, method: str, params: dict[str, Any]) -> int:
        self._asked += 1
        message = {"jsonrpc": "2.0", "id": self._asked, "method": method, "params": params}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        return self._asked

    def answer(self, number: int) -> dict[str, Any]:
        """The answer to a request; answers come in any order."""
        assert self.process.stdout is not None
        deadline = Timer(DEADLINE_S, self.process.kill)
        deadline.start()
        while number not in self._answers:
            line = self.process.stdout.readline()
            assert line, "the server went away before it answered"
            message = json.loads(line)
            if "id" in message:
                self.order.append(message["id"])
                self._answers[message["id"]] = message["result"]
        deadline.cancel()
        return self._answers[number]

    def ask(self, tool: str, **arguments: Any) -> int:
        """Call a tool, and do not wait for the answer."""
        return self._send("tools/call", {"name": tool, "arguments": arguments})

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """What a tool gives that refuses nothing."""
        answer = self.answer(self.ask(tool, **arguments))
        assert not answer.get("isError"), answer
        return answer["structuredContent"]  # type: ignore[no-any-return]


def _started(project: Project, tasks: int, *steps: dict[str, Any]) -> str:
    """A run that waits for its sub-agents, each of which does these steps."""
    project.workflow(
        "work",
        {
            "id": "all",
            "type": "parallel_foreach",
            "items": list(range(tasks)),
            "max_parallel": tasks,
            "sub_agent_task": "one",
        },
        state_schema={"raw": {"done": "array"}},
        default_state={"raw": {"done": []}},
        sub_agent_tasks={"one": {"description": "does one", "steps": list(steps)}},
    )
    orchestrator = Serve(project)
    run_id = str(orchestrator.call("workflow_start", workflow="work")["workflow_id"])
    step = orchestrator.call("workflow_get_next_step", workflow_id=run_id)["step"]
    assert len(step["definition"]["tasks"]) == tasks
    return run_id


def test_the_calls_of_sub_agents_wait_for_each_other(project: Project) -> None:
    kept = {"state_update": {"path": "raw.done", "operation": "append"}}
    run_id = _started(
        project, SUB_AGENTS, *({"id": name, "type": "agent", "prompt": "do {{ item }}", **kept} for name in "abcd")
    )
    together = Barrier(SUB_AGENTS)

    def do_task(number: int) -> int:
        """As a sub-agent does it, at the same time as the others; how many calls that took."""
        serve, ids = Serve(project), {"workflow_id": run_id, "task_id": f"all.{number}"}
        calls = 1
        together.wait()
        while (step := serve.call("workflow_get_next_step", **ids)["step"]) is not None:
            serve.call("workflow_step_complete", **ids, step_id=step["id"], result=step["id"])
            calls += 2
        return calls

    with ThreadPoolExecutor(SUB_AGENTS) as threads:
        assert list(threads.map(do_task, range(SUB_AGENTS))) == [9] * SUB_AGENTS
    done = Serve(project).call("workflow_state_read", workflow_id=run_id)["done"]
    assert sorted(done) == [f"all.{number}/{name}" for number in range(SUB_AGENTS) for name in "abcd"]


def test_one_with_many_calls_at_once_lets_another_have_its_turn(project: Project) -> None:
    many, few = 40, 6
    order = {"id": "a", "type": "shell_command", "command": "echo {{ index }} >> order; sleep 0.05"}
    run_id = _started(project, many + few, order, {"id": "b", "type": "agent", "prompt": "x"})
    busy, other = Serve(project), Serve(project)
    asked = [busy.ask("workflow_get_next_step", workflow_id=run_id, task_id=f"all.{n}") for n in range(many)]
    project.until_file("order")
    for number in range(many, many + few):
        other.call("workflow_get_next_step", workflow_id=run_id, task_id=f"all.{number}")
    assert not [answer for answer in map(busy.answer, asked) if answer.get("isError")]
    done = [int(line) for line in (project.root / "order").read_text().splitlines()]
    assert sorted(done) == list(range(many + few))
    # One of each in turn, when all goes well. Who is not let in finds a gap every now and then, and is done at the end.
    assert done.index(many + few - 1) < (many + few) * 2 / 3


def test_a_call_on_a_run_that_is_held_waits_and_then_says_that_it_is_busy(project: Project) -> None:
    run_id = _started(project, 1, {"id": "a", "type": "agent", "prompt": "x"})
    serve, ids = Serve(project), {"workflow_id": run_id, "task_id": "all.0"}
    with project.hold(run_id):
        waits = serve.ask("workflow_get_next_step", **ids)
        serve.call("workflow_status")
        refused = serve.answer(waits)
    assert serve.order[-1] == waits, "other calls are answered meanwhile"
    assert refused["isError"]
    (said,) = refused["content"]
    assert said["text"].count("\n") == 0
    assert f"run {run_id} is already being executed, by process" in said["text"]
    assert said["text"].endswith("it is still busy after 5 s: ask again")
    assert serve.call("workflow_get_next_step", **ids)["step"]["id"] == "all.0/a"


def test_one_that_is_suspended_when_its_turn_comes_keeps_nobody_out(project: Project) -> None:
    run_id = _started(project, 2, {"id": "a", "type": "agent", "prompt": "x"})
    first, second = Serve(project), Serve(project)

    def somebody_waits() -> bool:
        """Who is the next to have the run has a lock on its `open`."""
        with (project.directory(run_id) / "open").open() as turn:
            try:
                fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    with project.hold(run_id) as release:
        first.ask("workflow_get_next_step", workflow_id=run_id, task_id="all.0")
        project.until(somebody_waits)
        first.process.send_signal(signal.SIGSTOP)
        waits = second.ask("workflow_get_next_step", workflow_id=run_id, task_id="all.1")
        second.call("workflow_status")
        release()
        assert not second.answer(waits).get("isError")
