from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from sidecar.mcp_server import tools
from sidecar.mcp_server.calls import Site
from sidecar.service.driving import Driving

SEEDS = [
    "workflow.get_info",
    "workflow.start",
    "workflow.get_next_step",
    "workflow.step_complete",
    "workflow.resume",
    "workflow.load_definition",
    "workflow.checkpoint",
    "workflow.complete",
    "workflow.list",
    "workflow_state.read",
    "workflow_state.update",
    "workflow_state.dependencies",
    "workflow.trace_transformations",
    "workflow.debug_info",
    "workflow.test_transformation",
    "workflow.explain_plan",
]


@pytest.mark.parametrize("name", SEEDS)
def test_every_dotted_name_of_the_seeds_is_a_tool(name: str) -> None:
    assert tools._listed_name(name) == name.replace(".", "_")


def test_names_are_ones_that_every_client_takes() -> None:
    assert all(name.replace("_", "").isalpha() and name.islower() and len(name) <= 64 for name in tools.TOOLS)


def test_a_directory_that_cannot_be_listed_hides_no_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sidecar.errors import SidecarError
    from sidecar.mcp_server import offers

    def fail(*_: object) -> list[str]:
        raise SidecarError("cannot list it")

    monkeypatch.setattr(offers, "tool_names", fail)
    listed = {tool.name: tool for tool in tools.listed(Site(None, str(tmp_path))).tools}  # type: ignore[arg-type]
    assert listed["flow"].input_schema["properties"]["flow_name"]["enum"] == ["list"]


@pytest.mark.parametrize("tool", [tool for tool in tools.TOOLS.values() if tool.use_case], ids=lambda tool: tool.name)
def test_a_tool_takes_what_its_use_case_takes(tool: tools.Tool) -> None:
    taken = inspect.signature(getattr(Driving, str(tool.use_case))).parameters
    known = {name for name in taken if name not in ("self", "asker")}
    required = {name for name in known if taken[name].default is inspect.Parameter.empty}
    assert set(tool.input["properties"]) == known
    assert required <= set(tool.input.get("required", ()))
    assert tool.knows_asker == ("asker" in taken)
