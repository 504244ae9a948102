"""Tools through a real client: what is said of bad calls, and what is special about one tool.

The good case of every tool and what its schema forbids are in tests/acceptance/mcp/test_every_tool.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp.types import TextContent

from sidecar.mcp_server import streams
from sidecar.mcp_server.calls import Site
from sidecar.mcp_server.server import serving

if TYPE_CHECKING:
    from tests.integration.mcp_server.conftest import Served

RUN = "01JC0000000000000000000000"
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("abort", {"reason": "  "}, "reason must not be blank"),
    ("abort", {"reason": "x", "resaon": "y"}, "unknown argument 'resaon'; did you mean 'reason'?"),
    ("flow", {"flow_name": "biuld"}, "no such workflow: biuld; available: build"),
    ("flow", {"flow_name": "../x"}, "cannot be a name"),
    ("agent", {"agent_name": "claud"}, "no such agent: claud; available: claude"),
    ("prompt", {"prompt_name": "gret"}, "no such prompt: gret; available: greet"),
    ("workflow_state_update", {"workflow_id": RUN, "updates": []}, "updates must not be empty"),
    ("workflow_state_update", {"workflow_id": RUN, "updates": [{"value": 1}]}, "updates[0].path is required"),
    ("flow", {"flow_name": "build", "parameters": {"wrong": "the input is bad"}}, "the input is bad"),
]


def text_of(result: Any) -> str:
    content = result.content[0]
    assert isinstance(content, TextContent)
    return content.text


@pytest.mark.anyio
@pytest.mark.parametrize(("tool", "arguments", "said"), BAD)
async def test_a_bad_call_is_a_tool_error_that_says_what_is_right(
    served: Served, tool: str, arguments: dict[str, Any], said: str
) -> None:
    async with served.client("legacy") as client:
        result = await client.call_tool(tool, arguments)
        assert result.is_error
        assert said in text_of(result)
        assert not (await client.call_tool("workflow_list")).is_error, "the server goes on"


@pytest.mark.anyio
async def test_a_call_by_the_dotted_name_works_and_an_unknown_name_gets_the_nearest(served: Served, era: str) -> None:
    async with served.client(era) as client:
        result = await client.call_tool("workflow_state.read", {"workflow_id": RUN})
        assert result.structured_content == {"count": 1}
        result = await client.call_tool("workflow.get_nxt_step", {"workflow_id": RUN})
    assert result.is_error
    assert "did you mean 'workflow_get_next_step'?" in text_of(result)


@pytest.mark.anyio
async def test_five_megabytes_of_arguments_are_refused_in_words(served: Served, era: str) -> None:
    async with served.client(era) as client:
        result = await client.call_tool("abort", {"reason": "x" * 5_000_000})
        assert result.is_error
        assert "larger than 4 MiB" in text_of(result)
        assert not (await client.call_tool("workflow_list")).is_error
    assert served.service.called("abort") == []


@pytest.mark.anyio
async def test_what_breaks_inside_is_told_without_a_stack_trace(
    served: Served, era: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served.client(era) as client:
        result = await client.call_tool("flow", {"flow_name": "build", "parameters": {"crash": "/secret/path"}})
    assert result.is_error
    assert text_of(result) == "flow failed inside the sidecar (RuntimeError); see its log"
    assert "/secret/path" in caplog.text


@pytest.mark.anyio
async def test_a_run_that_failed_is_an_error_with_all_that_is_known_of_it(served: Served, era: str) -> None:
    async with served.client(era) as client:
        result = await client.call_tool("flow", {"flow_name": "build", "parameters": {"fail": "no compiler"}})
    assert result.is_error
    assert text_of(result).startswith("build failed:")
    assert result.structured_content is not None
    assert result.structured_content["status"] == "failed"


@pytest.mark.anyio
async def test_the_flow_tool_names_every_workflow_and_lists_them(served: Served, era: str) -> None:
    async with served.client(era) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        names = tools["flow"].input_schema["properties"]["flow_name"]["enum"]
        found = await client.call_tool("flow", {"flow_name": "list"})
        table = await client.call_tool("flow", {"flow_name": "list", "format": "table"})
        agents = await client.call_tool("agent", {"agent_name": "list", "verbose": True, "format": "yaml"})
    assert names[0] == "list"
    assert {"build", "plan", "iterate"} <= set(names)
    assert tools["flow"].input_schema["required"] == ["flow_name"]
    listed = {row["name"]: row for row in (found.structured_content or {})["workflows"]}
    assert set(listed) == set(names) - {"list"}
    assert listed["build"] == {
        "name": "build",
        "description": "Builds it.",
        "source": "project",
        "parameters": [
            {"name": "target", "type": "string", "description": "What to build.", "required": False},
        ],
    }
    assert any(line.split()[:2] == ["build", "project"] for line in text_of(table).splitlines())
    assert "agents:\n- name: claude" in text_of(agents)


@pytest.mark.anyio
async def test_a_workflow_called_list_is_called_with_an_underscore(served: Served) -> None:
    workflows = served.root / ".swissarmyhammer" / "workflows"
    (workflows / "list.yaml").write_text((workflows / "build.yaml").read_text())
    async with served.client("legacy") as client:
        result = await client.call_tool("flow", {"flow_name": "_list"})
        assert (result.structured_content or {})["status"] == "completed"
        found = await client.call_tool("flow", {"flow_name": "list"})
    assert "list" in {row["name"] for row in (found.structured_content or {})["workflows"]}


@pytest.mark.anyio
async def test_the_list_of_tools_stays_below_32_kib_whatever_the_project_has(served: Served, era: str) -> None:
    async with served.client(era) as client:
        small = (await client.list_tools()).model_dump_json(by_alias=True, exclude_none=True)
        workflow = (served.root / ".swissarmyhammer" / "workflows" / "build.yaml").read_text()
        for number in range(300):
            path = served.root / ".swissarmyhammer" / "workflows" / f"a-rather-long-name-{number}.yaml"
            path.write_text(workflow)
        large = (await client.list_tools()).model_dump_json(by_alias=True, exclude_none=True)
    assert len(small) < 32 * 1024
    assert len(large) < 32 * 1024
    assert "a-rather-long-name-1" not in large


@pytest.mark.anyio
async def test_what_an_agent_of_a_run_asks_for_is_meant_for_that_run(root: Any, served: Served) -> None:
    async with serving(Site(served.service, str(root), RUN)) as server, anyio.create_task_group() as tasks:  # type: ignore[arg-type]
        path = root / "run.sock"
        await tasks.start(streams.listen, str(path), server.serve)
        served.path = path
        async with served.client("legacy") as client:
            await client.call_tool("abort", {"reason": "harm"})
            await client.call_tool("abort", {"reason": "harm", "workspace": "other"})
            await client.call_tool("stop", {})
            await client.call_tool("stage_gate", {"stage": "design", "output": "x"})
        tasks.cancel_scope.cancel()
    # Which of these it may have is for the use case to say, which has to know who asks.
    assert [(call["asker"], call["workspace"]) for call in served.service.called("abort")] == [
        (RUN, None),
        (RUN, "other"),
    ]
    assert [call["asker"] for call in served.service.called("stop")] == [RUN]
    assert [call["run_id"] for call in served.service.called("stage_gate")] == [RUN]
