"""What the command line and MCP promise alike: the same runs, the same refusals in the same words, the same effects."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mcp import Client

from tests.kit import DEADLINE_S, Daemon, Project, ids
from tests.kit.mcp_client import over_socket

pytestmark = pytest.mark.anyio

ASKING = {"id": "ask", "type": "user_input", "prompt": "Which?", "choices": ["red", "blue"]}
HELD = {"id": "held", "type": "shell_command", "command": "touch begun; until test -e go; do sleep 0.05; done"}
REST = {"id": "rest", "type": "user_message", "message": "done"}  # before it there is a boundary
FAILING = {"id": "try", "type": "shell_command", "command": "test -e go"}
GATED = ("stage_gate", {"stage": "design", "output": "two columns"})


@dataclass
class Answer:
    """What a surface says: the object, or why not."""

    ok: bool
    text: str
    value: dict[str, Any]


class Surface:
    """The operations, as one of the two takes them. Everything that a person may do with both."""

    name: str

    def __init__(self, project: Project) -> None:
        self.project = project

    async def begin(self, kind: str, name: str, parameters: dict[str, Any], **options: Any) -> Answer:
        raise NotImplementedError

    async def resume(self, run_id: str, **given: Any) -> Answer:
        raise NotImplementedError

    async def answer(self, run_id: str, value: str) -> Answer:
        raise NotImplementedError

    async def signal(self, kind: str, **target: Any) -> Answer:
        raise NotImplementedError

    async def status(self, run_id: str | None = None) -> Answer:
        raise NotImplementedError


class CommandLine(Surface):
    name = "cli"

    async def _run(self, *arguments: str) -> Answer:
        code, out, err = await anyio.to_thread.run_sync(self.project.run, *arguments)
        # `sidecar: ` is before every line that is no result, and the usage behind what is wrong with parameters.
        words = err.removeprefix("sidecar: ").partition("; usage: ")[0].rstrip("\n")
        return Answer(code == 0, words if code else out, json.loads(out) if out.startswith("{") else {})

    async def begin(self, kind: str, name: str, parameters: dict[str, Any], **options: Any) -> Answer:
        given = [word for key, value in parameters.items() for word in ("-p", f"{key}={value}")]
        flags = [word for key, value in options.items() for word in _flag(key, value)]
        return await self._run(kind, "run", name, "--json", *given, *flags)

    async def resume(self, run_id: str, **given: Any) -> Answer:
        flags = [word for key, value in given.items() for word in _flag(key, value)]
        return await self._run("resume", run_id, "--detach", "--json", *flags)

    async def answer(self, run_id: str, value: str) -> Answer:
        return await self._run("answer", run_id, value, "--detach", "--json")

    async def signal(self, kind: str, **target: Any) -> Answer:
        words = {"reason": "reason", "run_id": "run", "workspace": "workspace", "cancel": "cancel"}
        flags = [word for key, value in target.items() for word in _flag(words[key], value)]
        everything = ["--all"] if kind == "stop" and not {"run_id", "workspace"} & target.keys() else []
        return await self._run(kind, *everything, *flags, "--json")

    async def status(self, run_id: str | None = None) -> Answer:
        return await self._run("status", *([run_id] if run_id else []), "--json")


def _flag(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    return [flag] if value is True else [flag, str(value)]


class Mcp(Surface):
    name = "mcp"

    async def _call(self, tool: str, **arguments: Any) -> Answer:
        with anyio.fail_after(DEADLINE_S):
            async with Client(over_socket(str(self.project.state / "sidecar.sock"))) as client:
                result = await client.call_tool(tool, arguments)
        text = result.content[0].text  # type: ignore[union-attr]
        return Answer(not result.is_error, text, dict(result.structured_content or {}))

    async def begin(self, kind: str, name: str, parameters: dict[str, Any], **options: Any) -> Answer:
        return await self._call(kind, **{f"{kind}_name": name, "parameters": parameters, **options})

    async def resume(self, run_id: str, **given: Any) -> Answer:
        return await self._call("workflow_resume", workflow_id=run_id, driver="server", **given)

    async def answer(self, run_id: str, value: str) -> Answer:
        return await self._call("workflow_resume", workflow_id=run_id, driver="server", answer=value)

    async def signal(self, kind: str, **target: Any) -> Answer:
        return await self._call(kind, **target)

    async def status(self, run_id: str | None = None) -> Answer:
        return await self._call("workflow_status", **({"workflow_id": run_id} if run_id else {}))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, Daemon]]:
    """One project with a daemon for all tests here: each has workflows and runs of its own."""
    project = Project(tmp_path_factory.mktemp("contract") / "project")
    (project.state / "config.yaml").write_text("kill_after_s: 0.3\n")
    (project.state / "workspaces" / "desk").mkdir(parents=True)
    yield project, project.daemon()
    project.close()


@pytest.fixture(params=[CommandLine, Mcp], ids=lambda kind: kind.name)
def surface(request: pytest.FixtureRequest, served: tuple[Project, Daemon]) -> Surface:
    made: Surface = request.param(served[0])
    for name in ("begun", "go"):
        (made.project.root / name).unlink(missing_ok=True)
    return made


def _paused_at_a_question(project: Project) -> str:
    project.workflow("asking", ASKING)
    run_id = project.detached("asking")
    project.until_status(run_id, "paused")
    return run_id


def _paused_at_a_gate(project: Project) -> str:
    project.calling_agent("designer", "stdio", "designed", GATED)
    project.workflow("gated", {"id": "design", "type": "agent", "agent": "designer", "prompt": "Design it."})
    run_id = project.detached("gated")
    project.until_status(run_id, "paused")
    return run_id


def _held(project: Project) -> str:
    project.workflow("holding", HELD, REST)
    run_id = project.detached("holding", "--workspace", "desk")
    project.until_exists("begun")
    return run_id


def _ended(project: Project, status: str) -> str:
    if status in ("completed", "failed"):
        project.workflow("trying", FAILING)
        if status == "completed":
            project.touch("go")
        run_id = project.detached("trying")
    else:
        run_id = _held(project)
        project.output("stop" if status == "stopped" else "abort", "--run", run_id)
        if status == "stopped":
            project.touch("go")
    project.until_status(run_id, status)
    return run_id


# --- begin


async def test_a_run_begins_and_its_end_is_told(surface: Surface) -> None:
    surface.project.workflow(
        "greeting",
        {"id": "say", "type": "user_message", "message": "Hello {{ inputs.name }}"},
        inputs={"name": {"type": "string", "required": True}},
        default_state={"raw": {"n": 1}},
    )
    found = await surface.begin("flow", "greeting", {"name": "Ann"}, workspace="desk")
    assert found.ok, found.text
    keys = ("workflow", "status", "needs", "waiting", "messages", "state")
    assert [found.value[key] for key in keys] == ["greeting", "completed", None, None, ["Hello Ann"], {"n": 1}]
    assert found.value["workspace"].endswith("/desk")
    plan = await surface.begin("flow", "greeting", {"name": "Ann"}, dry_run=True)
    assert [step["step_id"] for step in plan.value["steps"]] == ["say"]
    detached = await surface.begin("flow", "greeting", {"name": "Ann"}, detach=True)
    assert detached.ok
    surface.project.until_status(detached.value["run_id"], "completed")


@pytest.mark.parametrize(
    ("kind", "name", "parameters", "options", "words"),
    [
        ("flow", "nowhere", {}, {}, "no such workflow: nowhere"),
        ("agent", "nobody", {"prompt": "x"}, {}, "no such agent: nobody"),
        ("prompt", "nothing", {}, {}, "no such prompt: nothing"),
        ("flow", "wanting", {}, {}, "workflow 'wanting': parameter 'name' is required"),
        ("flow", "wanting", {"name": "a", "nmae": "b"}, {}, "nmae"),
        ("flow", "wanting", {"name": "a"}, {"workspace": "nowhere"}, "nowhere"),
        ("flow", "wanting", {"name": "a"}, {"workspace": "../.."}, "'../..' is neither the name of a workspace"),
        ("flow", "broken", {}, {}, "no_such_filter"),
        ("agent", "claude", {}, {}, "prompt"),
        ("agent", "command", {"prompt": "x", "command": []}, {}, "parameter 'command'"),
    ],
)
async def test_what_cannot_begin_is_refused_before_anything_is_begun(
    served: tuple[Project, Daemon],
    kind: str,
    name: str,
    parameters: dict[str, Any],
    options: dict[str, Any],
    words: str,
) -> None:
    project = served[0]
    project.workflow("wanting", FAILING, inputs={"name": {"type": "string", "required": True}})
    project.workflow("broken", {"id": "a", "type": "user_message", "message": "{{ inputs.x | no_such_filter }}"})
    before = len(project.journalled())
    told = [await made(project).begin(kind, name, parameters, **options) for made in (CommandLine, Mcp)]
    assert [one.ok for one in told] == [False, False]
    assert words in told[0].text
    assert told[0].text == told[1].text
    assert len(project.journalled()) == before


# --- resume


@pytest.mark.parametrize("status", ["failed", "stopped", "aborted"])
async def test_a_run_that_ended_goes_on(surface: Surface, status: str) -> None:
    run_id = _ended(surface.project, status)
    surface.project.touch("go")
    found = await surface.resume(run_id)
    assert found.ok, found.text
    surface.project.until_status(run_id, "completed")
    (resumed,) = surface.project.data(run_id, "run_resumed")
    assert resumed["previous_status"] == status


REFUSED: dict[str, tuple[Callable[[Project], str], Callable[[Surface, str], Awaitable[Answer]], str]] = {
    "an unknown run": (lambda _: ids.new_id(), lambda made, run_id: made.resume(run_id), "no such run: {}"),
    "the status of an unknown run": (
        lambda _: ids.new_id(),
        lambda made, run_id: made.status(run_id),
        "no such run: {}",
    ),
    "a run that is executed": (
        _held,
        lambda made, run_id: made.resume(run_id),
        "run {} is already being executed, by process ",
    ),
    "a bare resume at a gate": (
        _paused_at_a_gate,
        lambda made, run_id: made.resume(run_id),
        "waits for approval of 'design'",
    ),
    "approval where there is no gate": (
        lambda project: _ended(project, "failed"),
        lambda made, run_id: made.resume(run_id, approve=True),
        "run {} is not waiting for approval (status: failed)",
    ),
    "approval of a completed run": (
        lambda project: _ended(project, "completed"),
        lambda made, run_id: made.resume(run_id, approve=True, feedback="x"),
        "run {} is not waiting for approval (status: completed)",
    ),
    "blank feedback": (
        lambda project: _ended(project, "failed"),
        lambda made, run_id: made.resume(run_id, feedback=" "),
        "the feedback has to be a text",
    ),
    "an answer that nobody asked for": (
        lambda project: _ended(project, "failed"),
        lambda made, run_id: made.answer(run_id, "x"),
        "run {} is not waiting for an answer (status: failed)",
    ),
    "an answer to a gate": (
        _paused_at_a_gate,
        lambda made, run_id: made.answer(run_id, "x"),
        "run {} is not waiting for an answer (status: paused); to approve it: ",
    ),
    "a wrong answer": (_paused_at_a_question, lambda made, run_id: made.answer(run_id, "green"), "red, blue"),
    "a stop of a run that has ended": (
        lambda project: _ended(project, "failed"),
        lambda made, run_id: made.signal("stop", run_id=run_id),
        "run {} has ended, and takes no more signals",
    ),
    "an abort of an unknown run": (
        lambda _: ids.new_id(),
        lambda made, run_id: made.signal("abort", run_id=run_id, reason="x"),
        "Run not found: '{}'",
    ),
    "a stop of an unknown workspace": (
        lambda _: "",
        lambda made, _: made.signal("stop", workspace="nowhere"),
        "Workspace not found: nowhere",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_both_refuse_in_the_same_words_and_change_nothing(served: tuple[Project, Daemon], case: str) -> None:
    project = served[0]
    for name in ("begun", "go"):
        (project.root / name).unlink(missing_ok=True)
    prepare, do, words = REFUSED[case]
    run_id = prepare(project)
    before = project.events(run_id)
    told = [await do(made(project), run_id) for made in (CommandLine, Mcp)]
    assert [one.ok for one in told] == [False, False]
    assert words.format(run_id) in told[0].text
    assert told[0].text == told[1].text
    assert project.events(run_id) == before
    project.touch("go")


async def test_a_completed_run_is_resumed_to_no_effect(surface: Surface) -> None:
    run_id = _ended(surface.project, "completed")
    before = surface.project.events(run_id)
    found = await surface.resume(run_id)
    assert found.ok
    assert surface.project.events(run_id) == before


async def test_a_right_answer_lets_the_run_go_on(surface: Surface) -> None:
    run_id = _paused_at_a_question(surface.project)
    status = await surface.status(run_id)
    needs = status.value["runs"][0]["needs"]
    assert (needs["kind"], needs["prompt"], needs["choices"]) == ("answer", "Which?", ["red", "blue"])
    found = await surface.answer(run_id, "blue")
    assert found.ok, found.text
    surface.project.until_status(run_id, "completed")


@pytest.mark.parametrize(("given", "approved"), [({"approve": True}, True), ({"feedback": "three columns"}, False)])
async def test_a_gate_is_passed_by_approval_and_sent_back_by_feedback(
    surface: Surface, given: dict[str, Any], approved: bool
) -> None:
    run_id = _paused_at_a_gate(surface.project)
    needs = (await surface.status(run_id)).value["runs"][0]["needs"]
    assert (needs["kind"], needs["stage"], needs["submitted"]) == ("approval", "design", "stage")
    found = await surface.resume(run_id, **given)
    assert found.ok, found.text
    surface.project.until(lambda: surface.project.data(run_id, "run_resumed"))
    (resumed,) = surface.project.data(run_id, "run_resumed")
    assert (bool(resumed.get("approved")), resumed.get("feedback")) == (approved, given.get("feedback"))


# --- signals


@pytest.mark.parametrize("kind", ["stop", "abort"])
@pytest.mark.parametrize("target", ["run", "workspace", "project"])
async def test_a_signal_reaches_the_runs_of_its_target(surface: Surface, kind: str, target: str) -> None:
    run_id = _held(surface.project)
    named = {"run": {"run_id": run_id}, "workspace": {"workspace": "desk"}, "project": {}}[target]
    found = await surface.signal(kind, reason="lunch", **named)
    assert found.ok, found.text
    place = {
        "run": surface.project.directory(run_id),
        "workspace": surface.project.state / "workspaces" / "desk",
        "project": surface.project.state,
    }[target]
    assert Path(found.value["path"]) == place / f".{kind}"
    surface.project.touch("go")
    ended = surface.project.until_status(run_id, "stopped" if kind == "stop" else "aborted")
    assert ended["reason"] == "lunch"


async def test_a_stop_can_be_taken_back(surface: Surface) -> None:
    run_id = _held(surface.project)
    assert (await surface.signal("stop", run_id=run_id)).ok
    found = await surface.signal("stop", run_id=run_id, cancel=True)
    assert found.ok, found.text
    surface.project.touch("go")
    surface.project.until_status(run_id, "completed")


# --- status


async def test_both_show_the_same_of_a_run_and_of_all(served: tuple[Project, Daemon]) -> None:
    project = served[0]
    (project.root / "go").unlink(missing_ok=True)
    runs = [_ended(project, "failed"), _paused_at_a_question(project)]
    for run_id in runs:
        shown = [(await made(project).status(run_id)).value for made in (CommandLine, Mcp)]
        assert shown[0] == shown[1]
    lists = [(await made(project).status()).value["runs"] for made in (CommandLine, Mcp)]
    assert lists[0][: len(lists[1])] == lists[1]
    assert [run["run_id"] for run in lists[1][:2]] == runs[::-1]


async def test_a_list_costs_an_agent_little(served: tuple[Project, Daemon]) -> None:
    project = served[0]
    long = "x" * 20_000
    project.workflow("wordy", {"id": "end", "type": "exit", "status": "failed", "message": long})
    for _ in range(2):
        project.output("flow", "run", "wordy", "-q", code=2)
    found = await Mcp(project).status()
    assert len(found.text.encode()) < 8 * 1024
    assert len(found.value["runs"]) >= 2
    whole = await Mcp(project).status(found.value["runs"][0]["run_id"])
    assert long in whole.value["runs"][0]["reason"]
