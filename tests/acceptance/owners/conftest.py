"""A project whose processes end with the test, and the two eras of MCP clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import Project
from tests.kit.mcp_client import ERAS


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    found = Project(tmp_path / "project")
    yield found
    found.close()


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    """The handshake era and the stateless one."""
    return str(request.param)
