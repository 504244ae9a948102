"""What no operating system starts fails the step that wants it, in words, and nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.kit import Project


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"args": ["a\0b"]}, "argument 1 holds a NUL byte"),
        ({"args": ["\ud800"]}, "argument 1 holds half a surrogate pair"),
        ({"env": {"TOKEN": "a\0b"}}, "the variable 'TOKEN' holds a NUL byte"),
        ({"env": {"A=B": "c"}}, "'A=B' cannot be the name of a variable"),
        ({"env": {"": "c"}}, "'' cannot be the name of a variable"),
        ({"cwd": "a\0b"}, "the working directory holds a NUL byte"),
    ],
)
def test_an_mcp_server_that_cannot_be_started_costs_no_other_agent_its_life(
    flows: Project, server: dict[str, Any], said: str
) -> None:
    (flows.root / ".mcp.json").write_text(json.dumps({"mcpServers": {"bad": {"command": "true", **server}}}))
    flows.workflow(
        "both",
        {
            "id": "both",
            "type": "parallel_foreach",
            "items": ["works", "calls"],
            "max_parallel": 2,
            "sub_agent_task": "one",
        },
        sub_agent_tasks={
            "one": {
                "description": "",
                "steps": [
                    {
                        "id": "which",
                        "type": "conditional",
                        "condition": "{{ item == 'works' }}",
                        "then": [
                            {
                                "id": "work",
                                "type": "shell_command",
                                "command": "touch working; until [ -e called ]; do sleep 0.02; done; touch worked",
                            }
                        ],
                        "else": [
                            {
                                "id": "wait",
                                "type": "shell_command",
                                "command": "until [ -e working ]; do sleep 0.02; done",
                            },
                            {
                                "id": "call",
                                "type": "mcp_call",
                                "mcp": {"server": "bad", "method": "t"},
                                "on_error": "continue",
                            },
                            {"id": "done", "type": "shell_command", "command": "touch called"},
                        ],
                    }
                ],
            }
        },
    )
    code, out, err = flows.run("flow", "run", "both")
    assert (code, err) == (0, ""), out
    assert (flows.root / "worked").exists()
    events = flows.events(flows.journalled()[0].run_id)
    errors = [event.data["error"]["message"] for event in events if event.kind == "step_failed"]
    assert len(errors) == 1
    assert said in errors[0]


@pytest.mark.parametrize("value", ["a\0b", "a\ud800b"])
@pytest.mark.parametrize("kind", ["shell_command", "agent"])
def test_a_variable_or_a_directory_that_no_program_can_have_fails_the_step(
    flows: Project, kind: str, value: str
) -> None:
    flows.agent("worker", "cat")
    does = {"command": "true"} if kind == "shell_command" else {"agent": "worker", "prompt": "go"}
    common = {"type": kind, **does, "on_error": "continue"}
    flows.workflow(
        "odd",
        {"id": "env", **common, "env": {"X": f"{{{{ {json.dumps(value)} }}}}"}},
        {"id": "dir", **common, "working_dir": f"{{{{ {json.dumps(value)} }}}}"},
    )
    code, out, err = flows.run("flow", "run", "odd")
    assert (code, err) == (0, ""), out
    events = flows.events(flows.journalled()[0].run_id)
    errors = {event.data["id"]: event.data["error"]["message"] for event in events if event.kind == "step_failed"}
    what = "a NUL byte" if "\0" in value else "half a surrogate pair"
    assert f"the variable 'X' holds {what}" in errors["env"]
    assert errors["dir"].startswith(f"working_dir {value!r} holds {what}")
