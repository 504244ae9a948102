"""`sidecar workspace`: make, list, show and clean."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.acceptance.iterate.conftest import WorkspaceProject


def test_init_makes_files_that_explain_themselves_and_never_overwrites_one(project: WorkspaceProject) -> None:
    code, out, _ = project.run("workspace", "init", "new-task")
    made = project.workspace.parent / "new-task"
    assert code == 0
    assert sorted(os.listdir(made)) == [".status.json", "INSTRUCTIONS.md", "TODO.md"]
    assert out.count("made") == 3
    assert "sidecar iterate new-task" in out
    assert json.loads((made / ".status.json").read_text())["complete"] is False
    (made / "TODO.md").write_text("mine\n")
    (made / "INSTRUCTIONS.md").unlink()
    code, out, _ = project.run("workspace", "init", "new-task", "--from", str(project.workspace / "INSTRUCTIONS.md"))
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("  ") and "iterate" not in line] == [
        ["made", "INSTRUCTIONS.md"],
        ["kept", "TODO.md"],
        ["kept", ".status.json"],
    ]
    assert ((made / "TODO.md").read_text(), (made / "INSTRUCTIONS.md").read_text()) == ("mine\n", "Count to three.\n")


def test_init_refuses_what_it_would_have_to_overwrite_and_names_that_are_none(project: WorkspaceProject) -> None:
    source = str(project.root / "wanted.md")
    with open(source, "w") as file:
        file.write("Something else.\n")
    code, _, err = project.run("workspace", "init", "my-task", "--from", source)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "my-task/INSTRUCTIONS.md is there already, and is never overwritten" in err
    assert (project.workspace / "INSTRUCTIONS.md").read_text() == "Count to three.\n"
    code, _, err = project.run("workspace", "init", "../elsewhere")
    assert (code, "not a workspace name" in err) == (2, True)


def test_list_and_show_tell_progress_last_run_and_signals(project: WorkspaceProject) -> None:
    process = project.iterate("-p", "max_iterations=1")
    project.report(progress={"completed": 1, "total": 4}, summary="one of \033[2Jfour")
    assert project.finished(process)[0] == 3
    (project.workspace / ".stop").write_text("not today\n")
    run = project.last()
    _, out, _ = project.run("workspace", "list")
    row = out.splitlines()[1]
    assert row.split("  ")[:2] == ["my-task", "1 / 4 (25%)"]
    assert f"failed {run.run_id}" in row
    assert row.endswith("stop (not today)")
    _, out, _ = project.run("workspace", "show", "my-task")
    assert "\033" not in out
    for told in ("one of", "instructions: written", f"{run.run_id} iterate", "not today", "mode"):
        assert (told in out) is (told != "mode")
    code, out, _ = project.run("workspace", "show", "my-task", "--json")
    found = json.loads(out)
    assert (code, found["status"]["completed"], found["status"]["total"]) == (0, 1, 4)
    assert (found["last_run"]["run_id"], found["last_run"]["status"]) == (run.run_id, "failed")
    assert [signal["signal"] for signal in found["signals"]] == ["stop"]
    assert (found["live_runs"], found["instructions"], found["leftovers"]) == ([], "ready", [".stop"])


def test_a_project_without_workspaces_says_how_to_make_one_and_gets_no_journal(project: WorkspaceProject) -> None:
    (project.workspace / "INSTRUCTIONS.md").unlink()
    project.workspace.rmdir()
    _, out, _ = project.run("workspace", "list")
    assert out == "no workspaces yet: sidecar workspace init NAME\n"
    assert json.loads(project.run("workspace", "list", "--json")[1]) == {"workspaces": []}
    assert not (project.state / "sidecar.db").exists()
    code, _, err = project.run("workspace", "show", "my-task")
    assert (code, "Workspace not found: my-task" in err) == (2, True)


def test_clean_removes_signals_receipts_and_temporary_files_and_nothing_else(project: WorkspaceProject) -> None:
    leftovers = [".stop", ".abort.taken", ".stop.receipt.json", ".abort.0123456789abcdef.tmp"]
    for name in (*leftovers, ".stopper", "TODO.md", ".status.json"):
        (project.workspace / name).touch()
    code, _, err = project.run("workspace", "clean", "my-task")
    assert (code, "--force removes them without asking" in err) == (2, True)
    assert (project.workspace / ".stop").exists()
    code, out, _ = project.run("workspace", "clean", "my-task", "--force")
    assert (code, sorted(out.split())) == (0, sorted(["removed"] * 4 + leftovers))
    assert sorted(os.listdir(project.workspace)) == [".status.json", ".stopper", "INSTRUCTIONS.md", "TODO.md"]
    assert "nothing to clean" in project.run("workspace", "clean", "my-task")[1]


def test_clean_refuses_while_a_run_is_live_there(project: WorkspaceProject) -> None:
    process = project.iterate()
    project.wait_for_turn()
    (project.workspace / ".stop").touch()
    code, _, err = project.run("workspace", "clean", "my-task", "--force")
    assert (code, len(err.splitlines())) == (2, 1)
    assert f"run {project.last().run_id} is live in workspace my-task" in err
    assert (project.workspace / ".stop").exists()
    project.report(worked=True)
    assert project.finished(process)[0] == 0


def test_clean_asks_at_a_terminal(project: WorkspaceProject) -> None:
    (project.workspace / ".stop").touch()
    for answer, code in (("n\n", 1), ("y\n", 0)):
        terminal = project.at_terminal("workspace", "clean", "my-task")
        terminal.shows("  .stop", "Remove them? [y/N]")
        terminal.type(answer)
        assert terminal.end() == code
        assert (project.workspace / ".stop").exists() is (code == 1)
