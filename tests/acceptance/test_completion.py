"""Completion in real shells, and what it costs."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit import SIDECAR, new_id

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    workflows = tmp_path / ".swissarmyhammer" / "workflows"
    workflows.mkdir(parents=True)
    (workflows / "zebra-crossing.yaml").write_text("description: Crosses.\nsteps: []\n")
    (workflows / "zoo:feed.yaml").write_text("steps: []\n")
    (tmp_path / ".swissarmyhammer" / "workspaces" / "my-task").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{Path(SIDECAR).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Shell:
    """An interactive shell on a terminal, that is typed into."""

    def __init__(self, argv: list[str], prepare: str) -> None:
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.environ.update({"TERM": "xterm", "PS1": "> ", "INPUTRC": "/dev/null"})
            os.execvp(argv[0], argv)
        self.type(f"{prepare}; echo rea''dy\n")
        self.until("ready")

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, expected: str, within_s: float = 60) -> None:
        """Read until it is there; what a terminal obeys, and not shows, left out."""
        seen = ""
        deadline = time.monotonic() + within_s
        while expected not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\x07", "", seen):
            assert time.monotonic() < deadline, seen
            if select.select([self._fd], [], [], 0.1)[0]:
                seen += os.read(self._fd, 65536).decode(errors="replace")

    def completes(self, typed: str, to: str) -> None:
        self.type(f"{typed}\t")
        self.until(to)
        self.type("\x15")  # away with the line

    def close(self) -> None:
        self.type("\x15exit\n")
        os.close(self._fd)
        os.waitpid(self._pid, 0)


@pytest.fixture(params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest, project: Path) -> Iterator[Shell]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    if request.param == "bash":
        made = Shell(["bash", "--norc", "--noprofile", "-i"], 'eval "$(sidecar completion bash)"')
    else:
        prepare = 'autoload -Uz compinit; compinit -D -u; eval "$(sidecar completion zsh)"'
        made = Shell(["zsh", "-f", "-i"], prepare)
    yield made
    made.close()


def test_a_tab_completes_commands_workflows_workspaces_and_runs(shell: Shell, project: Path) -> None:
    run_id = new_id()
    (project / ".swissarmyhammer" / "runs" / run_id).mkdir(parents=True)
    shell.completes("sidecar redir", "sidecar redirect ")
    shell.completes("sidecar flow run zeb", "sidecar flow run zebra-crossing ")
    shell.completes("sidecar zeb", "sidecar zebra-crossing ")
    shell.completes("sidecar stop my", "sidecar stop my-task ")
    shell.completes("sidecar flow run zebra-crossing --workspace my", "--workspace my-task ")
    shell.completes(f"sidecar resume {run_id[:4]}", f"sidecar resume {run_id} ")
    shell.completes("sidecar flow run zoo:f", "sidecar flow run zoo:feed ")
    shell.completes("sidecar stop --workspace=m", "--workspace=my-task")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.usefixtures("project")
def test_fish_completes_too_and_says_what_each_is() -> None:
    lines = 'complete -C "sidecar flow run zeb"; complete -C "sidecar stop m"; complete -C "sah zoo:f"'
    found = subprocess.run(
        ["fish", "--no-config", "-c", f"sidecar completion fish | source; {lines}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert found.stdout.splitlines() == ["zebra-crossing\tCrosses.", "my-task", "zoo:feed\tflow run zoo:feed"]


@pytest.mark.usefixtures("project")
def test_a_tab_waits_for_nothing_heavy() -> None:
    """As test_start_path.py has it for `stop`: modules are counted, not milliseconds."""
    code = (
        "import sys; sys.argv = ['sidecar', '__complete', 'flow', 'run', 'zeb']\n"
        "from sidecar.__main__ import main\nmain()\n"
        "print(*sorted(name for name in sys.modules), sep='\\n')"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    word, *modules = found.stdout.splitlines()
    assert word == "zebra-crossing\tCrosses."
    heavy = {
        "argparse",
        "json",
        "re",
        "typing",
        "dataclasses",
        "asyncio",
        "anyio",
        "pydantic",
        "yaml",
        "sqlite3",
        "mcp",
    }
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    assert heavy & set(modules) - set(bare.stdout.split()) == set()
