"""An iteration loop at a terminal: the live panel, the key `s`, Ctrl-C."""

from __future__ import annotations

import signal
import termios
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.acceptance.iterate.conftest import WorkspaceProject


REQUESTED = "Stop requested (Press 's' to cancel)"


def test_the_key_s_asks_for_a_stop_which_comes_after_the_iteration(project: WorkspaceProject) -> None:
    """Seed 002: the key `s` alone asks for a stop; the display shows it, and the terminal is given back."""
    terminal = project.at_terminal()
    terminal.shows("iterate · my-task", "RUNNING", "0 / 5 (0%)", "Mode: loop", "Press s to toggle stop")
    terminal.takes_keys()
    project.wait_for_turn()
    terminal.type("xs")  # any other key does nothing
    terminal.shows(REQUESTED, "by keyboard")
    project.report(worked=True)
    assert terminal.end() == 0
    run = project.last()
    assert (run.status, project.turns()) == ("stopped", 1)
    assert "■ STOPPED" in terminal.text
    assert "1 / 5 (20%)" in terminal.text
    assert f"to continue: sidecar resume {run.run_id}" in terminal.text.replace("\n", "")
    assert not (project.state / "runs" / run.run_id / ".stop").exists()
    assert termios.tcgetattr(terminal.slave) == terminal.before


def test_the_key_s_again_cancels_the_stop_in_time(project: WorkspaceProject) -> None:
    """Seed 002: the key is a toggle, `S` too."""
    terminal = project.at_terminal()
    terminal.takes_keys()
    project.wait_for_turn()
    terminal.type("S")
    terminal.shows(REQUESTED)
    terminal.type("s")
    terminal.until(lambda: REQUESTED not in terminal.text)
    project.report(worked=True)
    terminal.shows("1 / 5 (20%)")
    project.report(complete=True)
    assert terminal.end() == 0
    assert (project.last().status, project.turns()) == ("completed", 2)
    assert "✓ COMPLETED" in terminal.text


def test_a_stop_file_is_shown_with_its_reason_and_the_key_refuses_it_for_this_run(project: WorkspaceProject) -> None:
    """Seed 002: the display tells which source a stop has; the key toggles against a file, too."""
    terminal = project.at_terminal()
    terminal.takes_keys()
    project.wait_for_turn()
    (project.workspace / ".stop").write_text("Tests are red\n")
    terminal.shows(REQUESTED, "by file", "Tests are red")
    terminal.type("s")
    terminal.until(lambda: REQUESTED not in terminal.text)
    project.report(worked=True)
    project.report(complete=True)
    assert terminal.end() == 0
    assert (project.last().status, project.turns()) == ("completed", 2)


def test_ctrl_c_interrupts_at_once_and_the_run_can_be_resumed(project: WorkspaceProject) -> None:
    """Seed 002: Ctrl-C works beside the key, with exit code 130, and cleans up."""
    terminal = project.at_terminal()
    terminal.takes_keys()
    project.report(progress={"completed": 1, "total": 2})
    project.wait_for_turn()
    terminal.type("s\x03")  # a stop that was asked for changes nothing in that
    assert terminal.end() == 128 + signal.SIGINT
    run = project.last()
    assert run.status == "interrupted"
    assert "! INTERRUPTED" in terminal.text
    assert termios.tcgetattr(terminal.slave) == terminal.before
    project.turns_told = project.turns()
    resumed = project.at_terminal("resume", run.run_id)
    # What it did before counts.
    resumed.shows("RUNNING", "1 / 5 (20%)", "iteration 2", "attempt 2")
    project.report(complete=True)
    assert resumed.end() == 0
    assert [event.data["iteration"] for event in project.last_events("iteration")] == [1, 2]


def test_ctrl_c_twice_kills_an_agent_that_does_not_listen_without_waiting_for_it(project: WorkspaceProject) -> None:
    project.environment["SIDECAR_KILL_AFTER_S"] = "3000"
    terminal = project.at_terminal()
    terminal.takes_keys()
    project.tell("trap 'touch asked' TERM; touch ready; while :; do sleep 1000 & wait $!; done")
    terminal.until((project.root / "ready").exists)
    terminal.type("\x03")
    terminal.shows("Ctrl-C once more kills them")
    terminal.until((project.root / "asked").exists)
    terminal.type("\x03")
    assert terminal.end() == 128 + signal.SIGINT
    assert project.last().status == "interrupted"


def test_killed_with_9_it_leaves_the_first_screen_and_the_setting_that_it_found(project: WorkspaceProject) -> None:
    terminal = project.at_terminal()
    terminal.shows("RUNNING", "Press s to toggle stop")
    terminal.takes_keys()
    project.wait_for_turn()
    terminal.process.kill()
    terminal.until(lambda: terminal.text.strip() == "")  # nothing had been on it
    terminal.until(lambda: termios.tcgetattr(terminal.slave) == terminal.before)
    assert not terminal.screen.cursor.hidden
    terminal.until(lambda: not project.tagged())


def test_without_a_panel_a_terminal_gets_lines_and_the_key_is_heard_all_the_same(project: WorkspaceProject) -> None:
    terminal = project.at_terminal("flow", "run", "iterate", "my-task", "--no-panel")
    terminal.shows("loop: iteration 1 of 50")
    terminal.takes_keys()
    project.wait_for_turn()
    terminal.type("s")
    terminal.shows("stop requested, after this iteration, by keyboard")
    project.report(worked=True)
    assert terminal.end() == 0
    assert "RUNNING" not in terminal.text
    assert project.last().status == "stopped"


def test_messages_and_warnings_are_on_the_terminal_when_the_panel_is_gone(project: WorkspaceProject) -> None:
    (project.workspace / ".abort").write_text("from yesterday\n")
    terminal = project.at_terminal(lines=40)
    project.tell(f"printf %s '{{\"comp' > {project.status}")
    project.report(complete=True)
    assert terminal.end() == 0
    shown = terminal.text.replace("\n", "")
    assert "Iteration 1: .status.json cannot be used: the output is not JSON" in shown
    assert "older than this run (from yesterday)" in shown
