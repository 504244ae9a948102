"""`keep_runs` and `keep_days`: what goes of runs that are over, with no daemon at all."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.kit import Project


@pytest.fixture
def quick(flows: Project) -> Project:
    flows.workflow("quick", {"id": "a", "type": "shell_command", "command": "true"})
    return flows


def keep(flows: Project, settings: str) -> None:
    (flows.state / "config.yaml").write_text(settings)


def completed(flows: Project, *arguments: str) -> str:
    run_id: str = flows.json("flow", "run", "quick", "--json", *arguments)["run_id"]
    return run_id


def known(flows: Project) -> set[str]:
    """The runs that have a directory, which are those that the journal has."""
    found = {run["run_id"] for run in flows.json("status", "--json")["runs"]}
    assert set(os.listdir(flows.state / "runs")) == found
    return found


def test_at_the_end_of_a_run_in_a_terminal_the_surplus_goes_with_its_directories(quick: Project) -> None:
    keep(quick, "keep_runs: 2\n")
    ids = [completed(quick) for _ in range(4)]
    assert known(quick) == set(ids[2:])


def test_at_the_end_of_a_detached_run_without_a_daemon_too(quick: Project) -> None:
    ids = [completed(quick) for _ in range(2)]
    keep(quick, "keep_runs: 1\n")
    code, out, _ = quick.run("flow", "run", "quick", "--detach", "-q")
    assert code == 0
    assert out.strip() not in ids
    quick.until(lambda: os.listdir(quick.state / "runs") == [out.strip()])
    assert known(quick) == {out.strip()}


def test_at_the_end_of_a_client_that_is_served_without_a_daemon_too(quick: Project) -> None:
    ids = [completed(quick) for _ in range(2)]
    keep(quick, "keep_runs: 1\n")
    assert quick.run("serve")[0] == 0
    assert known(quick) == {ids[1]}


def test_what_has_not_ended_stays_however_old_it_is_and_can_be_gone_on_with(quick: Project) -> None:
    quick.workflow(
        "asking",
        {"id": "a", "type": "user_input", "prompt": "which?", "state_update": {"path": "raw.which"}},
        state_schema={"raw": {"which": "string"}},
    )
    quick.workflow("failing", {"id": "a", "type": "shell_command", "command": "false"})
    paused = quick.json("flow", "run", "asking", "--json")["run_id"]
    process = quick.start("flow", "run", "counting", "-q")
    quick.until_exists("at-0")
    process.send_signal(signal.SIGINT)
    assert quick.finished(process)[0] == 130
    interrupted = quick.journalled()[0].run_id
    assert quick.run("flow", "run", "failing", "-q")[0] == 2
    keep(quick, "keep_runs: 1\nkeep_days: 0.0000001\n")
    last = completed(quick)
    assert known(quick) == {paused, interrupted, last}
    assert quick.run("answer", paused, "this")[0] == 0
    quick.touch("go")
    assert quick.run("resume", interrupted, "-q")[0] == 0


def test_completed_runs_are_counted_and_no_others(quick: Project) -> None:
    quick.workflow("failing", {"id": "a", "type": "shell_command", "command": "false"})
    first = completed(quick)
    failed = {quick.json("flow", "run", "failing", "--json", code=2)["run_id"] for _ in range(2)}
    keep(quick, "keep_runs: 2\n")
    second = completed(quick)
    assert known(quick) == {first, *failed, second}
