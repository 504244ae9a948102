"""What every test may rely on."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees the settings of whoever runs it."""
    for name in ("SIDECAR_PROJECT", "SIDECAR_RUN_ID", "SIDECAR_TASK_ID", "SIDECAR_WORKSPACES_DIR", "SIDECAR_WATCHER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def anyio_backend() -> str:
    """asyncio is what sidecar runs on."""
    return "asyncio"
