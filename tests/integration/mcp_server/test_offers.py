"""What a server offers besides tools, and how clients of both eras hear that it changed."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import (
    EmptyResult,
    PromptListChangedNotification,
    PromptReference,
    ResourceListChangedNotification,
    ResourceTemplateReference,
    ResourceUpdatedNotification,
    SubscribeRequest,
    SubscribeRequestParams,
    ToolListChangedNotification,
)

from sidecar import layout
from sidecar.model import ulid
from sidecar.model.events import RUN_STARTED, STEP_COMPLETED, RunEvent
from tests.kit import eventually

if TYPE_CHECKING:
    from tests.integration.mcp_server.conftest import Served


@asynccontextmanager
async def listening(served: Served, era: str, *uris: str) -> AsyncIterator[tuple[Client, list[str]]]:
    """A client that hears of changes the way its era has, and what it heard."""
    heard: list[str] = []

    async def on_message(message: Any) -> None:
        names: dict[Any, str] = {
            ToolListChangedNotification: "tools",
            PromptListChangedNotification: "prompts",
            ResourceListChangedNotification: "resources",
        }
        if isinstance(message, ResourceUpdatedNotification):
            heard.append(message.params.uri)
        elif type(message) in names:
            heard.append(names[type(message)])

    more = {"message_handler": on_message} if era == "legacy" else {}
    async with served.client(era, **more) as client, anyio.create_task_group() as tasks:
        if era == "legacy":
            for uri in uris:
                request = SubscribeRequest(params=SubscribeRequestParams(uri=uri))
                await client.session.send_request(request, EmptyResult)
            yield client, heard
            return
        events = client.listen(
            tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True, resource_subscriptions=uris
        )
        async with events as subscription:

            async def hear() -> None:
                words = {"ToolsListChanged": "tools", "PromptsListChanged": "prompts"}
                async for event in subscription:
                    name = type(event).__name__
                    heard.append(getattr(event, "uri", None) or words.get(name, "resources"))

            tasks.start_soon(hear)
            yield client, heard
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_workflow_that_comes_changes_or_goes_is_announced_and_in_the_list(served: Served, era: str) -> None:
    path = served.root / ".swissarmyhammer" / "workflows" / "deploy.yaml"

    async def names(client: Client) -> list[str]:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        return list(tools["flow"].input_schema["properties"]["flow_name"]["enum"])

    async with listening(served, era) as (client, heard):
        assert client.server_capabilities.tools is None or client.server_capabilities.tools.list_changed
        assert "deploy" not in await names(client)
        spare = path.with_suffix(".new")
        spare.write_text((path.parent / "build.yaml").read_text())
        spare.rename(path)
        await eventually(lambda: heard == ["tools"])
        assert "deploy" in await names(client)
        spare.write_text(path.read_text() + "# changed\n")
        spare.rename(path)
        await eventually(lambda: heard == ["tools"] * 2)
        path.unlink()
        await eventually(lambda: heard == ["tools"] * 3)
        assert "deploy" not in await names(client)


@pytest.mark.anyio
async def test_the_capabilities_say_what_is_announced(served: Served) -> None:
    for mode in ("legacy", "auto"):
        async with served.client(mode) as client:
            capabilities = client.server_capabilities
            assert capabilities.tools is not None
            assert capabilities.prompts is not None
            assert capabilities.resources is not None
            assert capabilities.tools.list_changed
            assert capabilities.prompts.list_changed
            assert capabilities.resources.list_changed
            assert capabilities.resources.subscribe
            assert capabilities.completions is not None
            assert client.server_info is not None
            assert client.server_info.name == "sidecar"


@pytest.mark.anyio
async def test_prompts_are_listed_with_their_arguments_and_rendered(served: Served, era: str) -> None:
    async with listening(served, era) as (client, heard):
        listed = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
        assert listed["greet"].title == "Greeting"
        arguments = [(one.name, one.description, one.required) for one in listed["greet"].arguments or []]
        assert arguments[:2] == [("who", "Whom to greet", True), ("times", None, False)]
        rendered = await client.get_prompt("greet", {"who": "{{ times }}", "times": "3"})
        assert rendered.messages[0].content.text == "Greet {{ times }} 3 times, warm, about build.\n"  # type: ignore[union-attr]
        (served.root / ".swissarmyhammer" / "prompts" / "more.md").write_text("More.\n")
        await eventually(lambda: {"prompts", "tools"} <= set(heard))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("gret", {}, "no such prompt: gret; available: greet"),
        ("greet", {}, "parameter 'who' is required"),
        ("greet", {"who": "x", "times": "many"}, "parameter 'times' has to be of type integer"),
        ("greet", {"who": "x", "hwo": "y"}, "unknown parameter 'hwo'; did you mean 'who'?"),
    ],
)
async def test_a_prompt_that_cannot_be_rendered_is_refused_in_words(
    served: Served, era: str, name: str, arguments: dict[str, str], said: str
) -> None:
    async with served.client(era) as client:
        with pytest.raises(MCPError, match=said.replace("?", r"\?")):
            await client.get_prompt(name, arguments)


async def _read(client: Client, uri: str) -> str:
    contents = (await client.read_resource(uri)).contents[0]
    return str(contents.text)  # type: ignore[union-attr]


@pytest.mark.anyio
async def test_a_run_its_state_its_logs_and_its_receipts_can_be_read(served: Served, era: str) -> None:
    async with served.client(era) as client:
        result = await client.call_tool("flow", {"flow_name": "build"})
        run_id = (result.structured_content or {})["run_id"]
        directory = layout.run_directory(str(served.root), run_id)
        await anyio.Path(directory, "agents").mkdir(parents=True)
        await anyio.Path(directory, "run.log").write_text("it began\n")
        await anyio.Path(directory, "agents", "1.log").write_text("x" * 99 + "\n" + "y" * 99 + "\n" * 300_000)
        receipt: dict[str, Any] = {
            "signal": "abort",
            "signal_id": "1",
            "path": f"{directory}/.abort",
            "state": "applied",
            "reason": "why",
            "requested_by": None,
            "received_at": None,
            "applied_at": None,
            "runs": [],
            "processes": [],
            "survivors": 0,
            "removed": True,
        }
        await anyio.Path(directory, ".abort.receipt.json").write_text(json.dumps(receipt))
        # One to all runs of the project, and one that came before this run was there.
        shared = {**receipt, "signal_id": "2", "runs": [{"run_id": run_id, "status": "aborted"}]}
        foreign = {**receipt, "signal_id": "3", "runs": [{"run_id": ulid.new(), "status": "stopped"}]}
        for name, content in ((".abort", shared), (".stop", foreign)):
            await anyio.Path(served.root, ".swissarmyhammer", f"{name}.receipt.json").write_text(json.dumps(content))
        uri = f"sidecar://runs/{run_id}"
        listed = [resource.uri for resource in (await client.list_resources()).resources]
        assert listed == ["sidecar://runs", uri]
        templates = [one.uri_template for one in (await client.list_resource_templates()).resource_templates]
        assert "sidecar://runs/{run_id}/log" in templates
        assert json.loads(await _read(client, "sidecar://runs"))["runs"][0]["run_id"] == run_id
        assert json.loads(await _read(client, uri))["runs"][0]["status"] == "completed"
        assert json.loads(await _read(client, f"{uri}/state")) == {"count": 1}
        assert await _read(client, f"{uri}/log") == "it began\n"
        log = await _read(client, f"{uri}/agents/1/log")
        assert set(log) == {"\n"}
        assert len(log) <= 256 * 1024
        assert json.loads(await _read(client, f"{uri}/receipts")) == {"receipts": [receipt, shared]}
        assert json.loads(await _read(client, "sidecar://workflows/build"))["name"] == "build"
        assert (await _read(client, "sidecar://prompts/greet")).startswith("Greet {{ who }}")


@pytest.mark.anyio
@pytest.mark.parametrize(
    "uri",
    [
        "sidecar://runs/01JC0000000000000000000000",
        "sidecar://runs/01JC0000000000000000000000/log",
        "sidecar://runs/01JC0000000000000000000000/receipts",
        "sidecar://runs/..%2f..%2fetc/log",
        "sidecar://runs/../log",
        "sidecar://runs/../../log",
        "sidecar://runs/01JC0000000000000000000000/agents/../../x/log",
        "sidecar://workflows/..",
        "sidecar://prompts/%2e%2e%2fx",
        "file:///etc/passwd",
    ],
)
async def test_what_is_no_resource_is_refused_and_no_file_elsewhere_is_read(served: Served, era: str, uri: str) -> None:
    (served.root / ".swissarmyhammer" / "run.log").write_text("nobody's log")
    (served.root / ".swissarmyhammer" / "runs").mkdir()
    async with served.client(era) as client:
        with pytest.raises(MCPError, match=r"no such|cannot be a name"):
            await client.read_resource(uri)


@pytest.mark.anyio
async def test_a_log_that_is_a_link_is_not_followed(served: Served) -> None:
    run_id = "01JC0000000000000000000000"
    directory = anyio.Path(layout.run_directory(str(served.root), run_id))
    await directory.mkdir(parents=True)
    await (directory / "run.log").symlink_to("/etc/passwd")
    async with served.client("legacy") as client:
        with pytest.raises(MCPError, match="cannot read"):
            await client.read_resource(f"sidecar://runs/{run_id}/log")


@pytest.mark.anyio
async def test_who_subscribed_to_a_run_hears_that_it_went_on(served: Served, era: str) -> None:
    uri = "sidecar://runs/01JC0000000000000000000000"
    async with listening(served, era, f"{uri}/state") as (_, heard):
        for kind in (RUN_STARTED, STEP_COMPLETED, STEP_COMPLETED):
            served.server.on_event(RunEvent(uri.rpartition("/")[2], kind, time.time()))
        await eventually(lambda: f"{uri}/state" in heard and "resources" in heard)
    assert set(heard) == {f"{uri}/state", "resources"}, "nothing that nobody asked for"


@pytest.mark.anyio
async def test_names_of_workflows_runs_and_prompts_are_completed(served: Served, era: str) -> None:
    async with served.client(era) as client:
        result = await client.call_tool("flow", {"flow_name": "build"})
        run_id = (result.structured_content or {})["run_id"]

        async def values(ref: Any, name: str, begun: str) -> list[str]:
            return list((await client.complete(ref, {"name": name, "value": begun})).completion.values)

        greet = PromptReference(name="greet")
        log = ResourceTemplateReference(uri="sidecar://runs/{run_id}/log")
        assert await values(greet, "workflow", "bu") == ["build"]
        assert await values(greet, "tone", "") == ["warm", "cold"]
        assert await values(greet, "who", "") == []
        assert await values(log, "run_id", run_id[:5]) == [run_id]
        assert await values(log, "run_id", "Z") == []
        prompts = ResourceTemplateReference(uri="sidecar://prompts/{prompt_name}")
        assert await values(prompts, "prompt_name", "g") == ["greet"]
        assert await values(PromptReference(name="nobody"), "workflow", "") == []
