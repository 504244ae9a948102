from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.mcp_server import aliases, tools
from sidecar.mcp_server.tool import Site

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
    assert aliases.resolve(name, tools.TOOLS) == name.replace(".", "_")


def test_names_are_ones_that_every_client_takes() -> None:
    assert all(name.replace("_", "").isalpha() and name.islower() and len(name) <= 64 for name in tools.TOOLS)


def test_a_directory_that_cannot_be_listed_hides_no_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sidecar.errors import SidecarError
    from sidecar.mcp_server import listing

    def fail(*_: object) -> list[str]:
        raise SidecarError("cannot list it")

    monkeypatch.setattr(listing, "names", fail)
    listed = {tool.name: tool for tool in tools.listed(Site(None, str(tmp_path))).tools}  # type: ignore[arg-type]
    assert listed["flow"].input_schema["properties"]["flow_name"]["enum"] == ["list"]
