"""Whom an agent of a run may stop and abort over MCP: its own run, and whatever `agent_signals: project` adds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.kit import Project

OWNERS = ["a terminal", "a detached owner", "a daemon"]


@pytest.fixture
def other(project: Project) -> str:
    """Another run of the project, open and in a workspace."""
    (project.state / "workspaces" / "desk").mkdir(parents=True)
    project.workflow("ask", {"id": "a", "type": "user_input", "prompt": "which?"})
    project.output("flow", "run", "ask", "--workspace", "desk")
    return str(project.only_run()["run_id"])


@pytest.fixture(params=OWNERS)
def begin(request: pytest.FixtureRequest, project: Project) -> Any:
    """Starts the workflow `work`, whose agent makes these calls and works on, under each kind of owner. The answers."""

    def start(*calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
        project.calling_agent("caller", "call", "answers", *calls)
        project.workflow("work", {"id": "a", "type": "agent", "agent": "caller", "prompt": "go"})
        if request.param == "a terminal":
            project.start("flow", "run", "work")
        elif request.param == "a daemon":
            project.daemon()
            project.output("flow", "run", "work", "--detach")
        else:
            project.output("flow", "run", "work", "--detach")
        project.until(lambda: len(_lines(project.root / "answers")) == len(calls))
        return [json.loads(line) for line in _lines(project.root / "answers")]

    return start


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _succeeded(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert not [answer for answer in answers if answer.get("isError")]
    return [answer["structuredContent"] for answer in answers]


def _own(project: Project, other: str) -> str:
    return str(next(run["run_id"] for run in project.runs() if run["run_id"] != other))


def _signals(project: Project) -> list[Path]:
    return [path for name in (".stop", ".abort") for path in project.state.rglob(name)]


def _calls_for_others(other: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("abort", {"reason": "no", "run_id": other}),
        ("abort", {"reason": "no", "workspace": "desk"}),
        ("stop", {"run_id": other}),
        ("stop", {"workspace": "desk"}),
        ("stop", {"workspace": "desk", "cancel": True}),
    ]


def test_an_agent_of_a_run_can_signal_no_other_target(project: Project, other: str, begin: Any) -> None:
    for answer in begin(*_calls_for_others(other)):
        assert answer["isError"]
        (said,) = answer["content"]
        assert "only that run" in said["text"]
        assert "agent_signals: project" in said["text"]
    assert _signals(project) == []
    stand = {run["run_id"]: run["status"] for run in project.runs()}
    assert stand == {_own(project, other): "running", other: "paused"}


@pytest.mark.parametrize("named", [{}, {"run_id": "$RUN"}], ids=["without a target", "by its id"])
def test_an_agent_of_a_run_stops_and_takes_that_back_and_aborts_its_own_run(
    project: Project, other: str, begin: Any, named: dict[str, str]
) -> None:
    calls = [("stop", named), ("stop", {**named, "cancel": True}), ("abort", {**named, "reason": "enough"})]
    answers = _succeeded(begin(*calls))
    own = _own(project, other)
    assert [Path(answer["path"]).parent for answer in answers] == [project.state / "runs" / own] * 3
    assert answers[1]["cancelled"]
    assert project.until_status(own, "aborted")["reason"] == "enough"
    assert project.until_status(other, "paused")


def test_the_setting_lets_agents_signal_whatever_they_name(project: Project, other: str, begin: Any) -> None:
    (project.state / "config.yaml").write_text("agent_signals: project\n")
    calls = [
        ("abort", {"reason": "both", "run_id": other}),
        ("stop", {"workspace": "desk"}),
        ("stop", {"workspace": "desk", "cancel": True}),
        ("abort", {"reason": "mine"}),
    ]
    answers = _succeeded(begin(*calls))
    own = _own(project, other)
    desk, runs = project.state / "workspaces" / "desk", project.state / "runs"
    assert [Path(answer["path"]).parent for answer in answers] == [runs / other, desk, desk, runs / own]
    assert project.until_status(own, "aborted")["reason"] == "mine"


@pytest.mark.anyio
@pytest.mark.parametrize("with_daemon", [True, False], ids=["beside a daemon", "without one"])
async def test_it_holds_where_the_owner_of_the_run_does_not_answer(
    project: Project, other: str, era: str, *, with_daemon: bool
) -> None:
    """Then `sidecar serve` is the server itself, and what it inherits says whose agent asks."""
    project.output("flow", "run", "ask")
    own = project.runs()[0]["run_id"]
    if with_daemon:
        project.daemon()
    async with project.client(era, SIDECAR_RUN_ID=own) as client:
        for tool, arguments in _calls_for_others(other):
            refused = await client.call_tool(tool, arguments)
            assert refused.is_error
            assert "only that run" in refused.content[0].text  # type: ignore[union-attr]
        assert _signals(project) == []
        for named in ({}, {"run_id": own}):
            told = (await client.call_tool("stop", {**named, "cancel": True})).structured_content or {}
            assert told["path"] == str(project.state / "runs" / own / ".stop")
        told = (await client.call_tool("abort", {"reason": "enough"})).structured_content or {}
        assert told["path"] == str(project.state / "runs" / own / ".abort")


@pytest.mark.anyio
async def test_a_daemon_that_an_agent_started_does_not_take_its_clients_for_that_agent(
    project: Project, other: str, era: str
) -> None:
    project.environment["SIDECAR_RUN_ID"] = other
    project.daemon()
    del project.environment["SIDECAR_RUN_ID"]
    async with project.client(era) as client:
        unnamed = await client.call_tool("stage_gate", {"stage": "design", "output": "two columns"})
        assert unnamed.is_error
        assert "`run_id` is missing" in unnamed.content[0].text  # type: ignore[union-attr]
        told = (await client.call_tool("abort", {"reason": "all of it"})).structured_content or {}
    assert told["path"] == str(project.state / ".abort")
    project.until_status(other, "aborted")
