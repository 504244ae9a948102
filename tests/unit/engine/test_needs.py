"""Whether steps need an agent: of each type, at any depth, through tasks and included workflows, for both drivers."""

from __future__ import annotations

import functools
import textwrap
from pathlib import Path
from typing import Any, get_args

import pytest

from sidecar.catalog import workflows
from sidecar.catalog.workflows import Definition
from sidecar.engine.step import needs_agent
from sidecar.model.events import Driver
from sidecar.model.steps import STEP_CLASSES
from sidecar.model.workflow import Workflow

AGENT = {"type": "agent", "prompt": "p"}
MESSAGE = {"type": "user_message", "message": "m"}
COMMAND = {"type": "shell_command", "command": "true"}
EXAMPLES: dict[str, dict[str, Any]] = {
    "agent": AGENT,
    "apply_hints": {"type": "apply_hints", "file": "f", "hints": []},
    "agent_shell_command": {"type": "agent_shell_command", "command": "true"},
    "mcp_call": {"type": "mcp_call", "mcp": {"method": "m"}},
    "user_input": {"type": "user_input", "prompt": "p"},
    "user_message": MESSAGE,
    "shell_command": COMMAND,
    "state_update": {"type": "state_update", "path": "raw.x", "value": 1},
    "wait": {"type": "wait", "duration": 1},
    "exit": {"type": "exit"},
    "break": {"type": "break"},
    "continue": {"type": "continue"},
    "conditional": {"type": "conditional", "condition": True, "then": []},
    "while": {"type": "while", "condition": True, "body": []},
    "foreach": {"type": "foreach", "items": [], "steps": []},
    "parallel_foreach": {"type": "parallel_foreach", "items": [], "sub_agent_task": "none"},
    "include_workflow": {"type": "include_workflow", "workflow": "none"},
}
FOR_AGENT = {
    "server": {"agent", "apply_hints"},
    "agent": {"agent", "apply_hints", "agent_shell_command", "mcp_call", "user_input", "user_message"},
}
DRIVERS = get_args(Driver)


def ask(driver: Driver, *steps: dict[str, Any], tasks: dict[str, Any] | None = None) -> bool:
    workflow = Workflow.model_validate({"steps": list(steps), "sub_agent_tasks": tasks or {}})
    return needs_agent(
        workflow.steps or (), workflow.sub_agent_tasks or {}, functools.partial(included, "/nowhere"), driver
    )


def included(root: str, includer: Definition | None, name: str) -> Definition:
    return workflows.included(root, includer, name) if includer else workflows.find(root, name)


@pytest.mark.parametrize("driver", DRIVERS)
def test_each_type_of_step_needs_an_agent_or_not(driver: Driver) -> None:
    assert set(EXAMPLES) == set(STEP_CLASSES)
    assert {kind for kind, step in EXAMPLES.items() if ask(driver, step)} == FOR_AGENT[driver]


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    "around",
    [
        lambda step: {"type": "conditional", "condition": False, "then": [COMMAND, step]},
        lambda step: {"type": "conditional", "condition": True, "then": [], "else": [step]},
        lambda step: {"type": "while", "condition": True, "body": [step]},
        lambda step: {"type": "foreach", "items": [], "steps": [step]},
        lambda step: {"type": "foreach", "items": [], "body": [{"type": "while", "condition": True, "body": [step]}]},
    ],
)
def test_a_step_inside_another_counts_whether_it_will_run_or_not(around: Any, driver: Driver) -> None:
    assert ask(driver, around(AGENT))
    assert not ask(driver, around(COMMAND))


@pytest.mark.parametrize("driver", DRIVERS)
def test_parallel_tasks_count_by_what_their_own_steps_need(driver: Driver) -> None:
    step = {"type": "parallel_foreach", "items": [], "sub_agent_task": "outer"}
    inner = {"type": "parallel_foreach", "items": [], "sub_agent_task": "inner"}
    tasks = {"outer": {"steps": [COMMAND, inner]}, "inner": {"steps": [AGENT]}}
    assert ask(driver, step, tasks=tasks)
    assert not ask(driver, step, tasks={**tasks, "inner": {"steps": [COMMAND]}})


def test_the_steps_for_a_tasks_errors_count_too() -> None:
    step = {"type": "parallel_foreach", "items": [], "sub_agent_task": "t"}
    tasks = {"t": {"steps": [COMMAND], "error_handling": {"cleanup_on_error": [MESSAGE]}}}
    assert ask("agent", step, tasks=tasks)
    assert not ask("server", step, tasks=tasks)


@pytest.mark.parametrize("driver", DRIVERS)
def test_tasks_that_start_each_other_are_looked_at_once(driver: Driver) -> None:
    step = {"type": "parallel_foreach", "items": [], "sub_agent_task": "t"}
    assert not ask(driver, step, tasks={"t": {"steps": [COMMAND, step]}})
    assert ask(driver, step, tasks={"t": {"steps": [step, AGENT]}})


@pytest.mark.parametrize("kind", ["agent", "apply_hints"])
def test_a_step_that_names_its_agent_needs_no_other_where_the_sidecar_starts_agents(kind: str) -> None:
    named = {**EXAMPLES[kind], "agent": "reviewer"}
    assert not ask("server", COMMAND, named)
    assert ask("server", named, AGENT)
    assert ask("agent", named)


# --- included workflows


class Project:
    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.folder = root / ".swissarmyhammer" / "workflows"
        self.folder.mkdir(parents=True)

    def write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.yaml").write_text(textwrap.dedent(text))

    def ask(self, name: str, driver: Driver = "server") -> bool:
        definition = workflows.find(self.root, name)

        def includes(includer: Definition | None, included: str) -> Definition:
            return workflows.included(self.root, includer or definition, included)

        return needs_agent(definition.workflow.steps or (), definition.tasks, includes, driver)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_an_included_workflow_counts_with_tasks_and_includes_of_its_own(project: Project) -> None:
    project.write("main", "steps: [{type: include_workflow, workflow: middle}]")
    project.write("middle", "steps: [{type: include_workflow, workflow: last}]")
    last = """
        steps: [{{type: parallel_foreach, items: [1], sub_agent_task: t}}]
        sub_agent_tasks: {{t: {{steps: [{}]}}}}
    """
    project.write("last", last.format("{type: shell_command, command: 'true'}"))
    assert not project.ask("main")
    project.write("last", last.format("{type: agent, prompt: p}"))
    assert project.ask("main")


def test_the_tasks_of_the_includer_are_not_those_of_the_included(project: Project) -> None:
    steps = "steps: [{type: parallel_foreach, items: [1], sub_agent_task: t}]"
    quiet, busy = "{type: shell_command, command: 'true'}", "{type: agent, prompt: p}"
    project.write("quiet", f"{steps}\nsub_agent_tasks: {{t: {{steps: [{quiet}]}}}}\n")
    project.write("busy", f"{steps}\nsub_agent_tasks: {{t: {{steps: [{busy}]}}}}\n")
    main = "steps: [{{type: include_workflow, workflow: {}}}]\nsub_agent_tasks: {{t: {{steps: [{}]}}}}\n"
    project.write("main", main.format("quiet", busy))
    assert not project.ask("main")
    project.write("main", main.format("busy", quiet))
    assert project.ask("main")
    both = "steps: [{type: include_workflow, workflow: quiet}, {type: include_workflow, workflow: busy}]"
    project.write("main", both)
    assert project.ask("main")


def test_a_name_means_what_it_means_to_the_workflow_that_includes(project: Project) -> None:
    # `part` is a component of the middle one only; to everyone else it is the workflow of that name.
    (project.folder / "shared").mkdir()
    project.write("part", "steps: [{type: shell_command, command: 'true'}]")
    project.write("shared/part", "name: part\nsteps: [{type: agent, prompt: p}]")
    project.write("middle", "imports: [shared/part.yaml]\nsteps: [{type: include_workflow, workflow: part}]")
    project.write("main", "steps: [{type: include_workflow, workflow: middle}]")
    project.write("other", "steps: [{type: include_workflow, workflow: part}]")
    assert project.ask("main")
    assert not project.ask("other")


def test_workflows_that_include_each_other_are_looked_at_once(project: Project) -> None:
    project.write("a", "steps: [{type: include_workflow, workflow: b}]")
    project.write("b", "steps: [{type: include_workflow, workflow: a}, {type: user_message, message: m}]")
    assert not project.ask("a", "server")
    assert project.ask("a", "agent")


def test_a_workflow_that_cannot_be_found_or_read_needs_nobody(project: Project) -> None:
    project.write("main", "steps: [{type: include_workflow, workflow: gone}, {type: include_workflow, workflow: bad}]")
    project.write("bad", "steps: 7")
    assert not project.ask("main")
