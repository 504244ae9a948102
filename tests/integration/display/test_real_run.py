"""The events of a real run, as the displays understand them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.config import Project, open_project
from sidecar.display.lines import PlainLines
from sidecar.display.progress import Progress
from sidecar.engine.owner import Owner
from sidecar.engine.server_driven import ServerDriven
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent
from sidecar.service import runs
from sidecar.state.script import Script

_WORKFLOW = """
name: both
default_state: {raw: {n: 0}}
steps:
  - {id: hello, type: shell_command, command: "echo hello"}
  - id: outer
    type: while
    condition: "n < 3"
    max_iterations: 5
    steps:
      - {id: count, type: state_update, path: raw.n, value: "{{ n + 1 }}"}
      - id: inner
        type: foreach
        items: "{{ [1, 2] }}"
        steps:
          - {id: say, type: shell_command, command: "echo inner {{ item }}"}
      - {id: tell, type: user_message, message: "round {{ n }}"}
  - id: each
    type: parallel_foreach
    items: "{{ ['a', 'b', 'c'] }}"
    max_parallel: 2
    sub_agent_task: check
  - id: ask
    type: agent
    agent: speaker
    prompt: "anything"
sub_agent_tasks:
  check:
    description: checks one
    steps:
      - {id: look, type: shell_command, command: "echo looking at {{ item }}"}
"""
_SPEAKER = """
description: speaks
adapter: claude
command: [sh, -c, 'cat {script}', sh]
"""
_SPOKEN = """\
{"type": "system", "subtype": "init", "session_id": "s"}
{"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": "I did it."}]}}
{"type": "result", "subtype": "success", "is_error": false, "result": "I did it.", "session_id": "s", \
"total_cost_usd": 0.25, "usage": {"input_tokens": 100, "output_tokens": 20}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    home = tmp_path / ".swissarmyhammer"
    (home / "workflows").mkdir(parents=True)
    (home / "workflows" / "both.yaml").write_text(_WORKFLOW)
    (home / "agents").mkdir()
    spoken = tmp_path / "spoken.jsonl"
    spoken.write_text(_SPOKEN)
    (home / "agents" / "speaker.yaml").write_text(_SPEAKER.replace("{script}", str(spoken)))
    return open_project(str(tmp_path))


async def told_by(project: Project) -> list[RunEvent]:
    events: list[RunEvent] = []
    async with Owner(project.root, project.settings, project.environment, lambda _: None) as owner:
        definition = runs.find_workflow(project, "both", Script(worker=False))
        run_id = runs.begin(project, runs.prepare(project, definition, {}), database=owner.database)
        await ServerDriven(owner, run_id, events.append).execute()
    return events


@pytest.mark.anyio
async def test_a_real_run_is_understood_from_its_start_to_its_end(project: Project) -> None:
    events = await told_by(project)
    progress = Progress()
    loops: set[tuple[str, int | None]] = set()
    counts: set[int | None] = set()
    for event in events:
        progress.on_event(event)
        if progress.loop is not None:
            loops.add((progress.loop.id, progress.loop.of))
        if event.kind == kinds.TASK_STARTED:
            counts.add(progress.tasks.count()[2])
    assert (progress.status, progress.workflow) == ("completed", "both"), progress.messages
    assert loops == {("outer", 5)}
    assert progress.loop is not None
    assert (progress.loop.done, progress.loop.is_over) == (3, True)
    assert counts == {3}
    assert progress.tasks.count() == (3, 0, 3)
    assert [message.text for message in progress.messages] == ["round 1", "round 2", "round 3"]
    assert (progress.agents.cost_usd, progress.agents.tokens) == (0.25, 120)
    said = [line.text for line in progress.agents.lines]
    assert said[:3] == ["hello", "inner 1", "inner 2"]
    assert {"looking at a", "looking at b", "looking at c"} < set(said)
    assert said[-1] == "I did it."
    assert progress.agents.running == {}


@pytest.mark.anyio
async def test_in_plain_lines_a_real_run_reads_well(project: Project) -> None:
    written: list[str] = []
    plain = PlainLines(written.append)
    for event in await told_by(project):
        plain.on_event(event)
    lines = [line[9:-1] for line in written]
    assert lines[0].startswith("started both, run ")
    assert lines[1:4] == ["step hello: shell_command", "hello | hello", "step hello: done in 0s"]
    assert "outer: iteration 3 of 5" in lines
    assert "round 3" in lines
    assert "look of each.1 | looking at b" in lines
    assert "speaker | I did it." in lines
    assert "step ask: $0.2500, 120 tokens" in lines
    assert not [line for line in lines if "{" in line]
    assert lines[-1] == "completed"
