"""An owner killed by -9 while a failure is seen to: its steps are done once, and the run ends as it would have."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit import journal

Starter = Callable[..., dict[str, Any]]
KILLED = -signal.SIGKILL
SAMPLE = 3


def effect(name: str, command: str = "true") -> dict[str, Any]:
    """A step that can be counted from outside."""
    return {"id": name, "type": "shell_command", "command": f"echo {name} >> $EFFECTS; {command}"}


# Each kind of step that a failure may have: done here, done at once, in a loop, in parallel, included.
SEEING_TO_IT: list[dict[str, Any]] = [
    effect("first"),
    {"id": "count", "type": "state_update", "path": "raw.n", "operation": "increment"},
    {
        "id": "loop",
        "type": "foreach",
        "items": "{{ [1, 2] }}",
        "body": [
            {"id": "more", "type": "state_update", "path": "raw.n", "operation": "increment"},
            effect("turn"),
        ],
    },
    {"id": "note", "type": "state_update", "path": "raw.error", "value": "{{ error.message }}"},
    effect("last"),
]
DECLARED = {"default_state": {"raw": {"n": 0, "error": ""}}, "state_schema": {"raw": {"n": "number"}}}
ONCE = {"bad": 1, "first": 1, "turn": 2, "last": 1}
INNER = {
    "name": "inner",
    **DECLARED,
    "steps": [effect("bad", "exit 3")],
    "error_handling": {"on_failure": SEEING_TO_IT},
}
INCLUDE = {"id": "part", "type": "include_workflow", "workflow": "inner"}
TASKS = {"id": "all", "type": "parallel_foreach", "items": [7], "sub_agent_task": "work"}
CONTINUE = {"on_sub_agent_error": {"strategy": "continue"}}
WORKFLOWS: dict[str, tuple[dict[str, Any], str, dict[str, int]]] = {
    "the run's own": (
        {**DECLARED, "steps": [effect("bad", "exit 3")], "error_handling": {"on_failure": SEEING_TO_IT}},
        "failed",
        ONCE,
    ),
    "a task's": (
        {
            **DECLARED,
            "steps": [{**TASKS, **CONTINUE}, effect("after")],
            "sub_agent_tasks": {
                "work": {
                    "steps": [effect("bad", "exit 3")],
                    "error_handling": {"cleanup_on_error": SEEING_TO_IT},
                }
            },
        },
        "completed",
        {**ONCE, "after": 1},
    ),
    "of what is included, which the run goes on behind": (
        {"imports": ["inner.yaml"], "steps": [{**INCLUDE, "on_error": "continue"}, effect("after")]},
        "completed",
        {**ONCE, "after": 1},
    ),
    "of what is included, which fails the run": (
        {"imports": ["inner.yaml"], "steps": [INCLUDE, effect("after")]},
        "failed",
        ONCE,
    ),
    "after an exit in a task": (
        {
            **DECLARED,
            "steps": [TASKS, effect("after")],
            "sub_agent_tasks": {
                "work": {
                    "steps": [
                        effect("bad"),
                        {"id": "out", "type": "exit", "status": "failed", "message": "{{ 'item ' + item }}"},
                    ]
                }
            },
            "error_handling": {"on_failure": SEEING_TO_IT},
        },
        "failed",
        ONCE,
    ),
}


@pytest.fixture(scope="module")
def start(starter: Callable[..., Starter]) -> Starter:
    return starter()


class Trial:
    """One run in a project of its own."""

    def __init__(self, root: Path, start: Starter, content: dict[str, Any]) -> None:
        self._root, self._start = root, start
        self._effects = root / "effects"
        self._effects.touch()
        workflows = root / ".swissarmyhammer" / "workflows"
        (workflows / "fails.yaml").write_text(yaml.safe_dump({"name": "fails", **content}))
        (workflows / "inner.yaml").write_text(yaml.safe_dump(INNER))

    def start(self, run_id: str | None = None, **request: Any) -> dict[str, Any]:
        environment = {"EFFECTS": str(self._effects)}
        return self._start(self._root, run_id, "fails", environment=environment, **request)

    def run_id(self) -> str | None:
        return next((run.run_id for run in journal.runs(self._root)), None)

    def done(self) -> dict[str, int]:
        """How often each step had its effect."""
        return Counter(self._effects.read_text().split())


@pytest.mark.parametrize("which", WORKFLOWS)
def test_a_crash_at_any_write_changes_nothing_about_the_steps_for_a_failure(
    project: Callable[[Path], Path], place: Path, start: Starter, pytestconfig: pytest.Config, which: str
) -> None:
    content, status, done = WORKFLOWS[which]
    undisturbed = Trial(project(place), start, content)
    expected = undisturbed.start()
    assert (expected.get("status"), undisturbed.done()) == (status, done), expected
    writes = range(1, expected["writes"] + 1)
    if not pytestconfig.getoption("--long"):
        writes = writes[-SAMPLE * 6 :: 6]  # the later ones: the earlier are the start of any run
    for write in writes:
        trial = Trial(project(place), start, content)
        if trial.start(die=["before", write, {}])["code"] == KILLED:
            answer = trial.start(trial.run_id())
            found = {name: answer.get(name) for name in ("status", "reason", "state")}
            assert found == {name: expected[name] for name in found}, f"at write {write}: {answer}"
        assert _besides_in_flight(trial.done(), done), f"at write {write}: {trial.done()}"


def _besides_in_flight(found: dict[str, int], done: dict[str, int]) -> bool:
    """Everything was done as often as wanted; one step was in flight at the crash, and was done once more."""
    more = Counter(found) - Counter(done)
    return not Counter(done) - Counter(found) and more.total() <= 1


def test_an_exit_in_a_task_still_ends_the_run_when_its_owner_was_killed_before_it_could(
    project: Callable[[Path], Path], place: Path, start: Starter
) -> None:
    out = [effect("bad", "until grep -q nap $EFFECTS; do sleep 0.01; done"), {"id": "out", "type": "exit"}]
    either = {"id": "either", "type": "conditional", "condition": "{{ index == 0 }}"}
    out[1]["message"] = "{{ 'item ' + item }}"
    content = {
        "steps": [{**TASKS, "items": [7, 8]}, effect("after")],
        "sub_agent_tasks": {"work": {"steps": [{**either, "then": out, "else": [effect("nap", "sleep 1")]}]}},
    }
    trial = Trial(project(place), start, content)
    assert trial.start(die=["before", 1, {"kind": "run_ended"}])["code"] == KILLED
    answer = trial.start(trial.run_id())
    assert (answer["status"], answer["reason"]) == ("completed", "item 7")
    assert (trial.done()["bad"], trial.done()["after"]) == (1, 0)
