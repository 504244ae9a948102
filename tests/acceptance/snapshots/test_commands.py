"""What is fixed of the command line and of the MCP server: help, tools, the schema, the keys of JSON output."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tests.kit.mcp_client import STATELESS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit import Project

    Compare = Callable[[str, str], None]

Step = dict[str, Any]
COMMANDS = [
    "init",
    "stop",
    "abort",
    "flow",
    "flow list",
    "flow run",
    "flow run iterate",
    "status",
    "logs",
    "resume",
    "answer",
    "redirect",
    "workspace",
    "workspace init",
    "workspace list",
    "workspace show",
    "workspace clean",
    "prompt",
    "prompt list",
    "prompt run",
    "prompt run orchestrator",
    "prompt show",
    "agent",
    "agent list",
    "agent run",
    "agent run claude",
    "validate",
    "schema",
    "graph",
    "daemon",
    "serve",
    "service",
    "service install",
    "service uninstall",
    "service status",
    "mcp",
    "mcp install",
    "demo",
    "config",
    "config show",
    "config path",
    "completion",
    "doctor",
    "support-bundle",
]
WAITING: Step = {"id": "work", "type": "shell_command", "command": "until [ -e go ]; do sleep 0.05; done"}
QUESTION: Step = {"id": "ask", "type": "user_input", "prompt": "Which?", "answer_type": "string"}
LOOP: Step = {"id": "loop", "type": "while", "condition": True, "max_iterations": 1, "body": [WAITING]}


def test_the_help_of_every_command(project: Project, same_as_snapshot: Compare) -> None:
    top = project.output("--help")
    listed = re.findall(r"^  ([\w-]+) ", top.split("\ncommands:\n")[1].split("\n\n")[0], re.MULTILINE)
    assert sorted({command.split()[0] for command in COMMANDS}) == sorted(listed)
    texts = [f"$ sidecar --help\n{top}"]
    texts += [f"$ sidecar {command} --help\n{project.output(*command.split(), '--help')}" for command in COMMANDS]
    without_paths = re.sub(r"^(It is builtin: )/.*/", r"\1/…/", "\n".join(texts), flags=re.MULTILINE)
    same_as_snapshot("help.txt", without_paths)


def test_the_list_of_tools_in_both_eras(project: Project, same_as_snapshot: Compare) -> None:
    lists = []
    for params in ({}, {"_meta": STATELESS}):
        with project.serve() as client:
            if not params:
                client.hello()
            client.request(1, "tools/list", params)
            lists.append(client.answer(1)["result"]["tools"])
    assert lists[0] == lists[1]
    same_as_snapshot("tools.json", json.dumps(lists[0], indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def test_the_schema_of_workflows(project: Project, same_as_snapshot: Compare) -> None:
    same_as_snapshot("schema.json", project.output("schema"))


def test_the_keys_of_doctor(project: Project, same_as_snapshot: Compare) -> None:
    found = json.loads(project.output("doctor", "--json"))
    same_as_snapshot("doctor-keys.txt", "".join(f"{line}\n" for line in shape(found)))


def test_the_keys_of_status(project: Project, same_as_snapshot: Compare) -> None:
    """Of runs that are completed, failed, paused and running, the last with a signal."""
    for name, step in {"asks": QUESTION, "loops": LOOP, "works": WAITING}.items():
        project.workflow(name, step)
    (project.state / "workspaces" / "here").mkdir(parents=True)
    project.output("flow", "run", "asks", "--workspace", "here")
    with project.start("flow", "run", "works", "--json-events") as live:
        assert live.stdout is not None
        events = map(json.loads, live.stdout)
        run_id = next(event["run_id"] for event in events if event["kind"] == "agent_started")
        project.output("stop", "--run", run_id)
        next(event for event in events if event["kind"] == "signal")
        running = json.loads(project.output("status", "--json"))
        project.output("stop", "--run", run_id, "--cancel")
        (project.root / "go").touch()
        list(events)
    project.output("flow", "run", "loops", code=3)
    ended = json.loads(project.output("status", "--json"))
    statuses = {one["status"] for one in [*running["runs"], *ended["runs"]]}
    assert statuses == {"running", "paused", "completed", "failed"}
    lines = shape({"runs": [*running["runs"], *ended["runs"]]})
    same_as_snapshot("status-keys.txt", "".join(f"{line}\n" for line in lines))


def shape(value: Any) -> list[str]:
    """Every key with the types of its values, as `runs[].agents[].pid: number`."""
    types: dict[str, set[str]] = {}

    def walk(value: Any, path: str) -> None:
        types.setdefault(path, set()).add(json_type(value))
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{path}.{key}" if path else key)
        elif isinstance(value, list):
            for inner in value:
                walk(inner, f"{path}[]")

    walk(value, "")
    return [f"{path or 'whole'}: {' | '.join(sorted(types[path]))}" for path in sorted(types)]


def json_type(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    known = {str: "string", int: "number", float: "number", list: "array", dict: "object"}
    return known[type(value)]
