"""What every test may rely on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parent
# What `--quick` runs besides tests/unit: whole files, or some tests of a file. Each holds a promise of its own: stop,
# abort and resume for real, every tool of MCP, every step type with both drivers, and what people and programs see.
QUICK: dict[str, list[str]] = {
    "acceptance/iterate/test_stopping.py": [
        "test_a_stop_file_lets_the_iteration_finish_and_then_ends_the_run_which_can_be_resumed",
    ],
    "acceptance/mcp/test_every_tool.py": [
        "test_a_good_call_of_every_tool_gives_what_its_schema_says_and_the_same_as_text",
    ],
    "acceptance/runs/test_resume.py": [
        "test_a_run_whose_owner_was_killed_is_interrupted_and_completes_when_resumed",
    ],
    "acceptance/snapshots/test_commands.py": [],
    "acceptance/test_agent.py": ["test_an_abort_ends_a_deaf_tree_and_its_receipt_proves_it"],
    "acceptance/test_start_path.py": [],
    "acceptance/test_stop_abort.py": [],
    "integration/agents/test_process.py": [],
    "integration/engine/scenarios/test_scenarios.py": [],
    "integration/signals/test_files_concurrency.py": [],
}
# Whoever runs the tests in the background of a script has these ignored, and every process inherits that.
for ignored in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.default_int_handler if ignored is signal.SIGINT else signal.SIG_DFL)

# Deadlines are timings, and timings never gate a test; a database would be written into the checkout.
hypothesis.settings.register_profile("sidecar", deadline=None, database=None)
hypothesis.settings.load_profile("sidecar")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="tests/unit, and of the others those of QUICK in conftest.py")
    parser.addoption("--long", action="store_true", help="chaos and soak tests in their long form")
    parser.addoption("--real-agents", action="store_true", help="also the real claude, codex and gemini")
    parser.addoption("--real-clients", action="store_true", help="also MCP's conformance suite and Inspector")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--quick`, files that have none of its tests are not even imported."""
    if not config.getoption("quick") or collection_path.suffix != ".py":
        return None
    file = collection_path.relative_to(TESTS).as_posix()
    return None if file.startswith("unit/") or file in QUICK else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("quick"):
        return
    known = {item.nodeid.partition("[")[0] for item in items}
    wanted = [f"tests/{file}::{name}" for file, names in QUICK.items() for name in names]
    gone = [test for test in wanted if test not in known]
    if gone and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        raise pytest.UsageError(f"QUICK in {__file__} has tests that do not exist: {', '.join(gone)}")
    chosen = {item.nodeid for item in items if not QUICK.get(_file(item)) or item.nodeid.partition("[")[0] in wanted}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = [item for item in items if item.nodeid in chosen]


def _file(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).as_posix()


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
