"""Real MCP servers, called as a step calls them: over stdio and HTTP, made with the SDK and without, well and ill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from sidecar.agents.supervisor import Agent, Launch, Supervisor
from sidecar.config import Settings
from sidecar.engine.evaluation import Texts, View
from sidecar.engine.steps import mcp_call
from sidecar.engine.steps.context import Context, RunServices
from sidecar.errors import StepFailed
from sidecar.mcp_client.client import McpClients
from sidecar.model.agent import AgentEnded
from sidecar.model.steps import McpCall
from sidecar.state.script import Script
from sidecar.state.world import World as StateWorld
from tests.kit import DEADLINE_S, alive, eventually

pytestmark = pytest.mark.anyio
PROGRAMS = Path(__file__).parent / "programs"
SECRET = "hunter2-hunter2"


def plain(*tools: str, **more: object) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", str(PROGRAMS / "mcp_plain_server.py"), *tools], **more}


def sdk(*arguments: str) -> list[str]:
    return [sys.executable, "-I", str(PROGRAMS / "mcp_sdk_server.py"), *arguments]


class World:
    """A project with a supervisor, and everything that happens to its processes."""

    def __init__(self, root: Path, supervisor: Supervisor) -> None:
        self.root = root
        self.supervisor = supervisor
        self.notes = root / "notes"
        self.started: list[Agent] = []
        self.ended: list[AgentEnded] = []
        self.names: list[str] = []

    async def start(self, launch: Launch, name: str) -> Agent:
        agent = await self.supervisor.start(launch)
        self.started.append(agent)
        self.names.append(name)
        return agent

    @contextlib.asynccontextmanager
    async def clients(self, **servers: dict[str, Any]) -> AsyncIterator[McpClients]:
        opened = McpClients(
            start=self.start,
            root=str(self.root),
            settings=Settings.model_validate({"mcp_servers": servers, "kill_after_s": 0.2}),
            environment={"PATH": os.environ["PATH"], "NOTES": str(self.notes), "TOKEN": SECRET},
            secrets=(SECRET,),
            log_path=lambda: str(self.root / "logs" / f"{len(self.started)}.log"),
            run_id="RUN",
        )
        with anyio.fail_after(DEADLINE_S):
            async with opened:
                yield opened

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    async def until_noted(self, word: str) -> None:
        await eventually(lambda: word in self.noted())


@contextlib.contextmanager
def silenced(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    ended: list[AgentEnded] = []
    async with Supervisor(str(tmp_path), on_ended=ended.append) as supervisor:
        world = World(tmp_path, supervisor)
        world.ended = ended
        yield world
    assert [end.survivors for end in ended] == [0] * len(ended)


class HttpServer:
    """A server of its own, as it runs somewhere; it can be away for a while, and come back at the same address."""

    def __init__(self, how: str, world: World) -> None:
        self._how = how
        self._environment = {**os.environ, "NOTES": str(world.notes)}
        self.port = 0

    def __enter__(self) -> HttpServer:
        argv = sdk(self._how, str(self.port))
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=self._environment, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()


async def test_a_server_made_with_the_sdk_is_called_over_stdio_in_the_newest_era(world: World) -> None:
    argv = sdk("stdio")
    async with world.clients(cheese={"command": argv[0], "args": argv[1:]}) as clients:
        counted = await clients.call("cheese", "count", {"kinds": ["brie", "feta"]}, None)
        assert counted == {"kinds": 2, "era": "2026-07-28", "token": None}
        assert await clients.call("cheese", "two_texts", {}, None) == "first\nsecond"
        words, image = await clients.call("cheese", "picture", {}, None)
        assert words == {"type": "text", "text": "see:"}
        assert image == {"type": "image", "data": "R0lG", "mimeType": "image/gif"}
        with pytest.raises(StepFailed, match="there is no cheese") as failed:
            await clients.call("cheese", "refuse", {}, None)
        assert str(failed.value.error["text"]).endswith("there is no cheese")
        with pytest.raises(StepFailed, match=r"'count' of 'cheese' failed: .* kinds"):
            await clients.call("cheese", "count", {"kinds": 1}, None)
    assert len(world.started) == 1


@pytest.mark.parametrize(("how", "era"), [("http", "2026-07-28"), ("http-handshake", "2025-11-25")])
async def test_a_server_is_called_over_http_with_its_headers_in_both_eras(world: World, how: str, era: str) -> None:
    with HttpServer(how, world) as server:
        entry = {"type": "http", "url": server.url, "headers": {"X-Token": "Bearer ${WHO:-nobody}"}}
        async with world.clients(cheese=entry) as clients:
            for _ in range(2):
                counted = await clients.call("cheese", "count", {"kinds": []}, 30)
                assert counted == {"kinds": 0, "era": era, "token": "Bearer nobody"}
    assert world.started == []


async def test_a_run_that_fails_takes_leave_of_its_session_over_http(world: World) -> None:
    with HttpServer("http-handshake", world) as server, pytest.raises(StepFailed, match="there is no cheese"):
        async with world.clients(cheese={"url": server.url}) as clients:
            await clients.call("cheese", "refuse", {}, 30)
    assert world.noted() == ["session deleted"]


async def test_a_secret_that_a_server_answers_over_http_is_masked(world: World) -> None:
    with HttpServer("http", world) as server:
        async with world.clients(cheese={"url": server.url, "headers": {"X-Token": "${TOKEN}"}}) as clients:
            counted = await clients.call("cheese", "count", {"kinds": []}, 30)
    assert counted["token"] == "********"


@pytest.mark.parametrize("how", ["http", "http-handshake"])
async def test_an_http_server_that_is_gone_fails_the_call_and_is_used_again_when_it_is_back(
    world: World, how: str
) -> None:
    with HttpServer(how, world) as server:
        async with world.clients(cheese={"url": server.url}) as clients:
            assert (await clients.call("cheese", "count", {"kinds": []}, 30))["kinds"] == 0
            with server.away(), pytest.raises(StepFailed, match="MCP server 'cheese' failed: ") as failed:
                await clients.call("cheese", "count", {"kinds": []}, 30)
            assert failed.value.error["kind"] == "server"
            assert (await clients.call("cheese", "count", {"kinds": []}, 30))["kinds"] == 0


async def test_an_older_server_is_called_with_a_typed_result_where_its_text_is_json(world: World) -> None:
    async with world.clients(old=plain()) as clients:
        assert await clients.call("old", "echo", {"list": [1, {"deep": None}]}, None) == {"list": [1, {"deep": None}]}
        assert await clients.call("old", "plain", {}, None) == "not {JSON"
    assert world.names == ["MCP server old"]


async def test_a_server_is_kept_for_the_run_and_ended_with_it(world: World) -> None:
    async with world.clients(old=plain()) as clients:
        first = await clients.call("old", "pid", {}, None)
        assert await clients.call("old", "pid", {}, None) == first
        assert alive(first)
    assert not alive(first)
    (end,) = world.ended
    assert (end.reason, end.exit_code) == ("shutdown", 0)
    assert world.noted()[-1] == "left"


async def test_a_server_that_ignores_its_end_is_killed(world: World) -> None:
    async with world.clients(old=plain()) as clients, anyio.create_task_group() as tasks:
        tasks.start_soon(clients.call, "old", "deaf", {}, None)
        await world.until_noted("deaf")
        tasks.cancel_scope.cancel()
    (end,) = world.ended
    assert (end.reason, end.rung) == ("shutdown", "kill")


async def test_closing_ends_every_server_and_a_later_call_opens_it_again(world: World) -> None:
    async with world.clients(old=plain()) as clients:
        first = await clients.call("old", "pid", {}, None)
        await clients.close()
        assert not alive(first)
        assert await clients.call("old", "pid", {}, None) != first


async def test_a_server_gets_its_own_environment_directory_and_arguments(world: World) -> None:
    (world.root / "below").mkdir()
    entry = plain("where", cwd="below", env={"CHEESE": "${KIND:-brie}"})
    async with world.clients(old=entry) as clients:
        found = await clients.call("old", "where", {}, None)
    assert found["cwd"] == str(world.root / "below")
    assert found["argv"] == ["where"]
    assert found["env"]["CHEESE"] == "brie"
    assert found["env"]["SIDECAR_RUN_ID"] == "RUN"
    assert found["env"]["SIDECAR_PROJECT"] == str(world.root)
    assert "HOME" not in found["env"]  # of the run's environment, not of whoever runs this


async def test_no_secret_of_a_server_reaches_the_log_or_the_result(world: World) -> None:
    async with world.clients(old=plain()) as clients:
        found = await clients.call("old", "where", {}, None)
    assert found["env"]["TOKEN"] == "********"
    logged = (world.root / "logs" / "0.log").read_text()
    assert "TOKEN" in logged
    assert SECRET not in logged


async def test_what_a_server_prints_beside_its_messages_is_logged_and_does_no_harm(world: World) -> None:
    async with world.clients(old=plain()) as clients:
        assert await clients.call("old", "chatter", {}, None) == "said"
    logged = (world.root / "logs" / "0.log").read_text()
    assert "oh, this was for the terminal" in logged
    assert "and this for the log" in logged


async def test_a_server_that_dies_in_a_call_fails_it_with_its_last_words_and_is_started_for_the_next(
    world: World,
) -> None:
    async with world.clients(old=plain()) as clients:
        with pytest.raises(StepFailed, match="MCP server 'old' ended with exit code 1: out of cheese"):
            await clients.call("old", "die", {}, None)
        assert await clients.call("old", "echo", {"a": 1}, None) == {"a": 1}
    assert [end.reason for end in world.ended] == ["exited", "shutdown"]


async def test_a_server_that_died_between_two_calls_is_started_again(world: World) -> None:
    async with world.clients(old=plain()) as clients:
        first = await clients.call("old", "pid", {}, None)
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: len(world.ended) == 1)
        assert await clients.call("old", "pid", {}, None) != first


async def test_a_server_whose_death_nobody_heard_of_yet_fails_the_call_with_how_it_died(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.mcp_client.client._EXIT_NEWS_S", DEADLINE_S)
    async with world.clients(old=plain()) as clients:
        first = await clients.call("old", "pid", {}, None)
        async with anyio.create_task_group() as tasks:
            with silenced(world.supervisor.sentinel_pid):
                os.kill(first, signal.SIGKILL)
                await eventually(lambda: not alive(first))

                async def call() -> None:
                    with pytest.raises(StepFailed, match=r"^MCP server 'old' died of signal 9$"):
                        await clients.call("old", "pid", {}, None)

                tasks.start_soon(call)
                await eventually(lambda: clients._open["old"].is_closing)
                await anyio.wait_all_tasks_blocked()
        assert await clients.call("old", "pid", {}, None) != first


async def test_an_error_of_the_protocol_fails_the_call_with_its_words_and_the_server_stays(world: World) -> None:
    async with world.clients(old=plain()) as clients:
        first = await clients.call("old", "pid", {}, None)
        with pytest.raises(StepFailed, match="'broken' of 'old' failed: the cheese rolled away") as failed:
            await clients.call("old", "broken", {}, None)
        assert failed.value.error["kind"] == "protocol"
        assert await clients.call("old", "pid", {}, None) == first


async def test_a_message_that_is_too_long_fails_the_call_and_says_so(world: World) -> None:
    async with world.clients(old=plain()) as clients:
        with pytest.raises(StepFailed, match="message of more than 1 MiB"):
            await clients.call("old", "huge", {}, None)
        assert await clients.call("old", "echo", {"a": 1}, None) == {"a": 1}


async def test_a_server_that_says_more_than_can_wait_fails_the_call_and_is_started_for_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.mcp_client.client._WAITING_BYTES", 1)
    async with world.clients(old=plain()) as clients:
        with pytest.raises(StepFailed, match="it said more at once than could be taken in"):
            await clients.call("old", "flood", {}, None)
        assert await clients.call("old", "echo", {"a": 1}, None) == {"a": 1}


async def test_a_server_that_closes_its_input_is_replaced(world: World) -> None:
    async with world.clients(old=plain()) as clients:
        assert await clients.call("old", "plug", {}, None) == "plugged"
        with pytest.raises(StepFailed, match="it closed its input"):
            await clients.call("old", "echo", {"a": 1}, None)
        assert await clients.call("old", "echo", {"a": 1}, None) == {"a": 1}


async def test_a_call_that_takes_too_long_fails_and_the_server_is_told(world: World) -> None:
    async with world.clients(old=plain()) as clients:
        first = await clients.call("old", "pid", {}, None)
        with pytest.raises(StepFailed, match=r"'silent' of 'old' did not answer within 0\.3 s") as failed:
            await clients.call("old", "silent", {}, 0.3)
        assert failed.value.error["kind"] == "timeout"
        await world.until_noted("cancelled")
        assert await clients.call("old", "pid", {}, None) == first


async def test_a_cancelled_call_leaves_the_server_in_use(world: World) -> None:
    async with world.clients(old=plain()) as clients:
        first = await clients.call("old", "pid", {}, None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clients.call, "old", "silent", {}, None)
            await world.until_noted("asked")
            tasks.cancel_scope.cancel()
        await world.until_noted("cancelled")
        assert await clients.call("old", "pid", {}, None) == first


async def test_a_server_that_answers_nothing_after_a_call_was_given_up_is_replaced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.mcp_client.client._PROBE_S", 0.2)
    async with world.clients(old=plain()) as clients:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clients.call, "old", "deaf", {}, None)
            await world.until_noted("deaf")
            tasks.cancel_scope.cancel()
        assert await clients.call("old", "echo", {"a": 1}, None) == {"a": 1}
    assert [(end.reason, end.rung) for end in world.ended][:1] == [("stall", "kill")]


async def test_several_calls_of_one_server_do_not_wait_for_each_other(world: World) -> None:
    async with world.clients(old=plain()) as clients, anyio.create_task_group() as tasks:
        tasks.start_soon(clients.call, "old", "silent", {}, None)
        await world.until_noted("asked")
        assert await clients.call("old", "echo", {"a": 1}, None) == {"a": 1}
        tasks.cancel_scope.cancel()
    assert len(world.started) == 1


async def test_a_cancelled_run_ends_its_servers_as_an_abort(world: World) -> None:
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            async with world.clients(old=plain()) as clients:
                await clients.call("old", "silent", {}, None)

        tasks.start_soon(run)
        await world.until_noted("asked")
        tasks.cancel_scope.cancel()
    (end,) = world.ended
    assert end.reason == "abort"


async def test_a_failed_run_ends_its_servers_and_keeps_its_error(world: World) -> None:
    with pytest.raises(StepFailed, match="made of cheese"):
        async with world.clients(old=plain()) as clients:
            await clients.call("old", "fail", {}, None)
    assert [end.reason for end in world.ended] == ["shutdown"]


async def test_a_server_that_never_answers_does_not_hold_up_the_end_of_the_run(world: World) -> None:
    async with world.clients(old=plain(env={"STARTS": "silently"})) as clients, anyio.create_task_group() as tasks:
        tasks.start_soon(clients.call, "old", "echo", {}, None)
        await world.until_noted("deaf")
        tasks.cancel_scope.cancel()
    (end,) = world.ended
    assert end.reason == "shutdown"


async def test_a_server_that_does_not_open_in_time_is_ended_and_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.mcp_client.client._OPEN_S", 2)
    async with world.clients(old=plain(env={"STARTS": "silently"})) as clients:
        with pytest.raises(StepFailed, match="MCP server 'old' did not answer within 2 s"):
            await clients.call("old", "echo", {}, None)
    (end,) = world.ended
    assert end.reason == "timeout"


async def test_a_server_that_ends_at_once_is_quoted(world: World) -> None:
    async with world.clients(old=plain(env={"STARTS": "never"})) as clients:
        with pytest.raises(StepFailed, match="'old' ended with exit code 1: no cheese, no service"):
            await clients.call("old", "echo", {}, None)


async def test_a_program_that_does_not_exist_is_named(world: World) -> None:
    async with world.clients(old={"command": "no-such-program-here"}) as clients:
        with pytest.raises(StepFailed, match=r"'old' cannot be started: .*'no-such-program-here'"):
            await clients.call("old", "echo", {}, None)


async def test_an_unknown_server_or_tool_is_answered_with_the_nearest_name(world: World) -> None:
    async with world.clients(old=plain("echo", "fail")) as clients:
        with pytest.raises(StepFailed, match="no MCP server 'odl'; did you mean 'old'"):
            await clients.call("odl", "echo", {}, None)
        with pytest.raises(StepFailed, match="'old' has no tool 'eco'; did you mean 'echo'"):
            await clients.call("old", "eco", {}, None)
        with pytest.raises(StepFailed, match="no MCP server has a tool 'eco'; did you mean 'echo'"):
            await clients.call(None, "eco", {}, None)


async def test_without_a_server_the_one_that_has_the_tool_is_called_and_each_is_asked_once(world: World) -> None:
    async with world.clients(one=plain("echo", "pid"), two=plain("fail", "pid")) as clients:
        for number in range(3):
            assert await clients.call(None, "echo", {"number": number}, None) == {"number": number}
        with pytest.raises(StepFailed, match="several MCP servers have a tool 'pid': one, two; say which"):
            await clients.call(None, "pid", {}, None)
    assert world.noted().count("listed") == 2


async def test_a_server_that_cannot_be_opened_only_matters_where_no_other_has_the_tool(world: World) -> None:
    async with world.clients(bad={"command": "no-such-program-here"}, good=plain("echo")) as clients:
        assert await clients.call(None, "echo", {"a": 1}, None) == {"a": 1}
        with pytest.raises(StepFailed, match=r"no MCP server has a tool 'pid'.*MCP server 'bad' cannot be started"):
            await clients.call(None, "pid", {}, None)


async def test_servers_of_the_settings_come_before_those_of_the_projects_file(world: World) -> None:
    both = {"mcpServers": {"mine": plain("pid"), "theirs": plain("echo")}}
    (world.root / ".mcp.json").write_text(json.dumps(both))
    async with world.clients(mine=plain("fail")) as clients:
        with pytest.raises(StepFailed, match="made of cheese"):
            await clients.call("mine", "fail", {}, None)
        assert await clients.call(None, "echo", {"a": 1}, None) == {"a": 1}


async def test_without_any_server_the_step_says_where_they_belong(world: World) -> None:
    async with world.clients() as clients:
        with pytest.raises(StepFailed, match=r"neither \.mcp\.json nor the setting mcp_servers"):
            await clients.call(None, "echo", {}, None)


@pytest.fixture
def script() -> Iterator[Script]:
    with contextlib.closing(Script(worker=False)) as opened:
        yield opened


def context(world: World, script: Script, clients: McpClients | None, **state: object) -> Context:
    services = RunServices(
        root=str(world.root),
        run_id="RUN",
        workspace=None,
        environment={},
        settings=Settings.model_validate({}),
        clients=clients,
    )
    return Context(
        services=services,
        view=View(Texts(script), StateWorld(script), state),
        key="step",
        attempt=1,
        task_id=None,
        additions=(),
        cost_remaining_usd=None,
        start=world.start,
        log_path=lambda: str(world.root / "log"),
        emit=lambda kind, data: None,
        spend=lambda cost, tokens: None,
    )


def step(timeout: str | None = None, **mcp: object) -> McpCall:
    more = {} if timeout is None else {"timeout": timeout}
    return McpCall.model_validate({"type": "mcp_call", "mcp": mcp, **more})


async def test_a_step_calls_the_tool_with_its_templates_filled_in(world: World, script: Script) -> None:
    async with world.clients(old=plain()) as clients:
        called = step(server="{{ who }}", method="e{{ what }}", params={"files": "{{ files }}", "text": "n={{ n }}"})
        place = context(world, script, clients, who="old", what="cho", files=["a", "b"], n=2)
        assert await mcp_call.run(called, place) == {"files": ["a", "b"], "text": "n=2"}


async def test_a_step_fails_when_its_timeout_is_over(world: World, script: Script) -> None:
    async with world.clients(old=plain()) as clients:
        with pytest.raises(StepFailed, match=r"did not answer within 0\.5 s"):
            await mcp_call.run(step("500ms", method="silent"), context(world, script, clients))


async def test_a_step_of_a_run_without_clients_fails(world: World, script: Script) -> None:
    with pytest.raises(StepFailed, match="no MCP servers"):
        await mcp_call.run(step(method="echo"), context(world, script, None))
