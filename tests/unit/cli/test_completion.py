"""What a word could become, from the words before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.cli import completion
from sidecar.model import ulid


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state = tmp_path / ".swissarmyhammer"
    for directory in ("workflows", "agents", "prompts", "workspaces/my-task", "workspaces/not a name"):
        (state / directory).mkdir(parents=True)
    (state / "workflows" / "build.yaml").touch()
    (state / "agents" / "reviewer.yaml").touch()
    (state / "prompts" / "build.md").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sidecar bui", ["build"]),
        ("sidecar _bui", ["_build"]),
        ("sidecar flow ru", ["run"]),
        ("sidecar flow bui", ["build"]),
        ("sidecar flow run 'bui", ["build"]),
        ("sidecar prompt show b", ["build"]),
        ("sidecar agent rev", ["reviewer"]),
        ("sidecar prompt run build --agent rev", ["reviewer"]),
        ("sidecar graph b", ["build"]),
        ("sidecar stop ", ["my-task"]),
        ("sidecar stop my-task ", []),
        ("sidecar iterate ", ["my-task"]),
        ("sidecar flow iterate ", ["my-task"]),
        ("sidecar abort --workspace ", ["my-task"]),
        ("sidecar build --works", ["--workspace"]),
        ("sidecar build --workspace=", ["--workspace=my-task"]),
        ("sidecar flow run build -p ", []),
        ("sidecar flow list --format ", ["table", "json", "yaml"]),
        ("sidecar flow list --source p", ["project"]),
        ("sidecar config ", ["show", "path"]),
        ("sidecar mcp install cu", ["cursor"]),
        ("sidecar workspace sh", ["show"]),
        ("sidecar workspace show ", ["my-task"]),
        ("sidecar --project ", []),
        ("sidecar --project . flow bui", ["build"]),
        ("sidecar --project=. flow bui", ["build"]),
        ("sidecar --project /no/such/directory flow bui", []),
        ("time sidecar flow bui", ["build"]),
        ("sidecar nonsense ", []),
    ],
)
@pytest.mark.usefixtures("project")
def test_a_line_is_completed(line: str, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert completion.complete(["--line", "sidecar", line]) == 0
    assert [found.partition("\t")[0] for found in capsys.readouterr().out.splitlines()] == expected


def test_runs_come_newest_first_and_not_all_of_them(project: Path) -> None:
    runs = [ulid.new() for _ in range(60)]
    for run_id in runs:
        (project / ".swissarmyhammer" / "runs" / run_id).mkdir(parents=True)
    assert list(completion.candidates(["resume", ""])) == sorted(runs, reverse=True)[:50]


@pytest.mark.usefixtures("project")
def test_words_one_by_one_are_completed_like_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    completion.complete(["flow", "run", "bui"])
    completion.complete([])
    first, *commands = capsys.readouterr().out.splitlines()
    assert first == "build"
    assert {"stop", "flow", "build"} <= {line.partition("\t")[0] for line in commands}
