"""What every test may rely on."""

from __future__ import annotations

import os
import signal

import hypothesis
import pytest

# Whoever runs the tests in the background of a script has these ignored, and every process inherits that.
for ignored in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.default_int_handler if ignored is signal.SIGINT else signal.SIG_DFL)

# Deadlines are timings, and timings never gate a test; a database would be written into the checkout.
hypothesis.settings.register_profile("sidecar", deadline=None, database=None)
hypothesis.settings.load_profile("sidecar")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="chaos and soak tests in their long form")
    parser.addoption("--real-agents", action="store_true", help="also the real claude, codex and gemini")
    parser.addoption("--real-clients", action="store_true", help="also MCP's conformance suite and Inspector")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees the settings of whoever runs it."""
    for name in [name for name in os.environ if name.startswith("SIDECAR_") and not name.startswith("SIDECAR_TEST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def anyio_backend() -> str:
    """asyncio is what sidecar runs on."""
    return "asyncio"
