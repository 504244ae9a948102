"""The events of small workflows that together use every step type, by both drivers, as `logs --json` prints them."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.kit.project import CALLER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.kit import Project
    from tests.kit.mcp_client import McpClient

    Event = dict[str, Any]
    Compare = Callable[[str, str], None]

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[2] / "docs" / "events.md"
WORKFLOWS: dict[str, Any] = yaml.safe_load((HERE / "workflows.yaml").read_text())
# The first two times it submits a stage, and then works on until it is ended.
GATE = """
n=gate-$SIDECAR_RUN_ID; echo again >> $n; [ $(wc -l < $n) -gt 2 ] ||
exec "$0" "$1" call answers '[["stage_gate", {"stage": "plan", "output": "one, two", "kind": "plan"}]]'
"""
AGENTS = {
    "quick": ["sh", "-c", "cat >&2; echo done"],
    "hints": ["sh", "-c", "cat >/dev/null; echo '{\"applied_count\": 2}'"],
    "flaky": ["sh", "-c", "[ -e flaky-$SIDECAR_RUN_ID ] || { touch flaky-$SIDECAR_RUN_ID; exit 1; }"],
    "broken": ["sh", "-c", "exit 1"],
    "patient": ["sh", "-c", "grep -q hurry || exec sleep 600"],
    "gate": ["sh", "-c", GATE, sys.executable, str(CALLER)],
    "tasks": [sys.executable, str(CALLER), "tasks", "did"],
}
EXIT_CODES = {"loop-limit": 3, "run-limit": 3} | dict.fromkeys(
    ["retry-in-vain", "expression-errors", "exit-failed", "agent-fails", "abort", "parallel-fail-all"], 2
)
SHOWN = ("step", "iteration", "status", "limit", "will_retry", "signal", "handler")  # with their values
PARTS = ("part",)  # only included by others


@pytest.fixture(scope="module", autouse=True)
def _content(project: Project) -> None:
    for name, workflow in WORKFLOWS.items():
        project.workflow(name, **{"name": name, "description": name, **workflow})
    for name, command in AGENTS.items():
        project.agent(name, "", command=command, prompt_via="stdin")
    (project.state / "prompts").mkdir()
    (project.state / "prompts" / "hello.md").write_text("---\ndescription: Hello.\n---\nHello {{ who }}.\n")
    tools = {"command": sys.executable, "args": [str(HERE / "programs" / "mcp_server.py")]}
    (project.root / ".mcp.json").write_text(json.dumps({"mcpServers": {"tools": tools}}))
    (project.root / "a.txt").write_text("text\n")


# --- by the server


class Started:
    """A command that prints events; `seen` are those that it has printed so far."""

    def __init__(self, project: Project, *arguments: str) -> None:
        self._project = project
        self.process = project.start(*arguments, "--json-events")
        self.seen: list[Event] = []

    @property
    def run_id(self) -> str:
        return self.seen[0]["run_id"]  # type: ignore[no-any-return]

    @property
    def directory(self) -> Path:
        return self._project.state / "runs" / self.run_id

    def until(self, kind: str, count: int = 1) -> None:
        """Read events until there are so many of a kind."""
        for _ in self._events():
            if [one["kind"] for one in self.seen].count(kind) == count:
                return
        raise AssertionError(f"no {kind}: {self.seen}")

    def go(self) -> None:
        """What the run's commands wait for."""
        (self._project.root / f"go-{self.run_id}").touch()

    def ended(self, code: int = 0) -> list[Event]:
        list(self._events())
        _, err = self.process.communicate(timeout=120)
        assert self.process.returncode == code, (self.process.returncode, self.seen, err)
        return self.seen

    def _events(self) -> Iterator[Event]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append(json.loads(line))
            yield self.seen[-1]


def question(project: Project, run: Started) -> list[Event]:
    run.ended()
    project.output("answer", run.run_id, "blue")
    return logged(project, run.run_id)


def gate(project: Project, run: Started) -> list[Event]:
    first = run.ended()
    again = Started(project, "resume", run.run_id, "--feedback", "more").ended()
    return first + again + Started(project, "resume", run.run_id, "--approve").ended()


def stop(project: Project, run: Started) -> list[Event]:
    run.until("agent_started")
    (run.directory / ".stop").write_text("enough\n")
    run.until("signal")
    run.go()
    return run.ended() + Started(project, "resume", run.run_id).ended()


def abort(project: Project, run: Started) -> list[Event]:
    run.until("agent_started")
    (run.directory / ".abort").write_text("enough\n")
    return run.ended(2)


def resume(project: Project, run: Started) -> list[Event]:
    first = run.ended(2)
    run.go()
    return first + Started(project, "resume", run.run_id, "--feedback", "more").ended()


def redirect(project: Project, run: Started) -> list[Event]:
    run.until("agent_started")
    project.output("redirect", run.run_id, "hurry")
    return run.ended()


def parallel_fail_all(project: Project, run: Started) -> list[Event]:
    run.until("agent_started", 2)
    run.go()
    return run.ended(2)


SERVER = {
    "question": question,
    "gate": gate,
    "stop": stop,
    "abort": abort,
    "resume": resume,
    "redirect": redirect,
    "parallel-fail-all": parallel_fail_all,
}


@pytest.mark.parametrize("name", [name for name in WORKFLOWS if name not in PARTS])
def test_driven_by_the_server(project: Project, name: str, same_as_snapshot: Compare) -> None:
    run = Started(project, "flow", "run", name)
    special = SERVER.get(name)
    events = special(project, run) if special else run.ended(EXIT_CODES.get(name, 0))
    same_as_snapshot(f"events/{name}.server.txt", shown(events))


@pytest.mark.parametrize(("number", "after"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)], ids=["ended", "killed"])
def test_the_owner_goes_and_the_run_is_resumed(
    project: Project, number: signal.Signals, after: int, same_as_snapshot: Compare
) -> None:
    run = Started(project, "flow", "run", "stop")
    run.until("agent_started")
    run.process.send_signal(number)
    run.ended(after)
    run.go()
    Started(project, "resume", run.run_id).ended()
    same_as_snapshot(f"events/{number.name.lower()}.server.txt", shown(logged(project, run.run_id)))


# --- by an agent


def drive(client: McpClient, run_id: str, task_id: str | None = None) -> None:
    """Report steps as an agent does, until there is none."""
    task = {"task_id": task_id} if task_id else {}
    while (step := client.use("workflow_get_next_step", workflow_id=run_id, **task)["step"]) is not None:
        if step["type"] == "parallel_tasks":
            for one in step["definition"]["tasks"]:
                drive(client, run_id, one["task_id"])
        else:
            report(client, run_id, step, **task)


def report(client: McpClient, run_id: str, step: dict[str, Any], **task: str) -> None:
    place = {"workflow_id": run_id, "step_id": step["id"], "attempt": step["attempt"], **task}
    if "broken" in step["id"] or ("flaky" in step["id"] and step["attempt"] == 1):
        client.use("workflow_step_complete", **place, status="failed", error="no")
    else:
        result = {"user_input": "blue", "apply_hints": {"applied_count": 2}}.get(step["type"], "done")
        client.use("workflow_step_complete", **place, status="success", result=result)


def agent_gate(client: McpClient, project: Project, run_id: str) -> None:
    client.use("workflow_get_next_step", workflow_id=run_id)
    client.use("stage_gate", stage="plan", output="one, two", kind="plan", run_id=run_id)
    client.use("workflow_resume", workflow_id=run_id, feedback="more")
    client.use("workflow_get_next_step", workflow_id=run_id)
    client.use("stage_gate", stage="plan", output="one, two", kind="plan", run_id=run_id)
    client.use("workflow_resume", workflow_id=run_id, approve=True)
    drive(client, run_id)


def agent_resume(client: McpClient, project: Project, run_id: str) -> None:
    drive(client, run_id)
    (project.root / f"go-{run_id}").touch()
    client.use("workflow_resume", workflow_id=run_id, feedback="more")
    drive(client, run_id)


AGENT_DRIVEN = {"gate": agent_gate, "resume": agent_resume}
SERVER_ONLY = {"stop", "abort", "redirect", "parallel-fail-all"}


@pytest.mark.parametrize("name", [name for name in WORKFLOWS if name not in {*PARTS, *SERVER_ONLY}])
def test_driven_by_an_agent(project: Project, client: McpClient, name: str, same_as_snapshot: Compare) -> None:
    run_id = client.use("workflow_start", workflow=name, inputs={})["workflow_id"]
    special = AGENT_DRIVEN.get(name)
    if special:
        special(client, project, run_id)
    else:
        drive(client, run_id)
    same_as_snapshot(f"events/{name}.agent.txt", shown(logged(project, run_id)))


def test_an_agent_stops_between_steps_and_goes_on(
    project: Project, client: McpClient, same_as_snapshot: Compare
) -> None:
    run_id = client.use("workflow_start", workflow="in-hand", inputs={})["workflow_id"]
    step = client.use("workflow_get_next_step", workflow_id=run_id)["step"]
    client.use("workflow_state_update", workflow_id=run_id, updates=[{"path": "raw.n", "value": 1}])
    client.use("workflow_checkpoint", workflow_id=run_id, step_id=step["id"], reason="to be sure")
    client.use("stop", run_id=run_id, reason="enough")
    report(client, run_id, step)
    drive(client, run_id)
    client.use("workflow_resume", workflow_id=run_id)
    drive(client, run_id)
    same_as_snapshot("events/stop.agent.txt", shown(logged(project, run_id)))


def test_an_agent_aborts_with_a_step_in_hand(project: Project, client: McpClient, same_as_snapshot: Compare) -> None:
    run_id = client.use("workflow_start", workflow="in-hand", inputs={})["workflow_id"]
    client.use("workflow_get_next_step", workflow_id=run_id)
    client.use("abort", run_id=run_id, reason="enough")
    drive(client, run_id)
    same_as_snapshot("events/abort.agent.txt", shown(logged(project, run_id)))


# --- as text


def logged(project: Project, run_id: str) -> list[Event]:
    return [json.loads(line) for line in project.output("logs", run_id, "--json").splitlines()]


def shown(events: Iterable[Event]) -> str:
    """A line an event, below the thread that it belongs to: the order between threads is not fixed."""
    threads: dict[str, list[str]] = {"main": []}
    passing = set()
    for event in events:
        if event["seq"] == 0:
            passing.add(line(event, ()))
        else:
            threads.setdefault(thread_of(event, threads), []).append(line(event, SHOWN))
    assert threads["main"], "no events"
    sections = [(f"thread {name}", threads[name]) for name in ["main", *sorted(threads.keys() - {"main"})]]
    sections += [("not in the journal", sorted(passing))] if passing else []
    return "\n".join(f"{title}\n" + "".join(f"  {line}\n" for line in lines) for title, lines in sections)


def line(event: Event, with_values: tuple[str, ...]) -> str:
    data = event["data"]
    keys = [f"{key}={json.dumps(data[key])}" if key in with_values else key for key in sorted(data)]
    return f"{event['kind']}: {', '.join(keys)}"


def thread_of(event: Event, threads: dict[str, list[str]]) -> str:
    data = event["data"]
    if data.get("task"):
        return data["task"]  # type: ignore[no-any-return]
    step = str(data.get("step"))
    return max((name for name in threads if step == name or step.startswith(f"{name}/")), key=len, default="main")


def test_the_documentation_lists_every_kind_and_key_in_the_snapshots() -> None:
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", DOCUMENT.read_text(), re.MULTILINE)
    listed = {kind: set(re.findall(r"`(\w+)`", row.split("|")[-1])) for kind, row in rows}
    listed["run_resumed"] |= listed["run_started"]
    for path in (HERE / "events").iterdir():
        for found in re.findall(r"^  (\w+): (.*)$", path.read_text(), re.MULTILINE):
            keys = {key.split("=")[0] for key in re.sub(r'"[^"]*"', "", found[1]).split(", ")}
            assert keys <= listed[found[0]], (path.name, found[0], keys - listed[found[0]])


def test_every_step_type_is_used() -> None:
    schema = json.loads((HERE / "schema.json").read_text())
    properties = [one.get("properties", {}).get("type", {}) for one in schema["$defs"].values()]
    types = {one["const"] for one in properties if "const" in one}
    assert len(types) == 17
    used = set(re.findall(r"\btype: (\w+)", (HERE / "workflows.yaml").read_text()))
    assert types <= used
