"""What a user or a program sees of sidecar, compared with files in this directory.

With SIDECAR_TEST_WRITE_SNAPSHOTS=1 in the environment the files are written instead; review the difference.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit import Project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.kit.mcp_client import McpClient

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    directory = tmp_path_factory.mktemp("snapshots")
    settings = {"SIDECAR_DEFAULT_AGENT": "command", "SIDECAR_KILL_AFTER_S": "0.3"}
    return Project(directory / "project", HOME=str(directory), COLUMNS="100", **settings)


@pytest.fixture(scope="module")
def client(project: Project) -> Iterator[McpClient]:
    with project.serve() as client:
        yield client.hello()


@pytest.fixture
def same_as_snapshot() -> Callable[[str, str], None]:
    """Compares a text with the file of that name."""

    def compare(name: str, text: str) -> None:
        path = HERE / name
        if os.environ.get("SIDECAR_TEST_WRITE_SNAPSHOTS"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{name} is missing; SIDECAR_TEST_WRITE_SNAPSHOTS=1 writes it"
        assert text == path.read_text()

    return compare
