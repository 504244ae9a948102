"""What `validate` finds in the state, in the flow of steps, and in the names of other things."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.analysis import validate
from sidecar.catalog import listing, workflows
from sidecar.state.script import Script

EXIT = "steps: [{type: exit}]\n"


class Project:
    """A project's files, and what is found in them."""

    def __init__(self, root: Path, script: Script) -> None:
        self.root = root
        self.script = script
        self.state = root / ".swissarmyhammer"

    def write(self, path: str, text: str) -> None:
        target = self.state / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def all(self, *names: str) -> list[str]:
        """Everything, as it is printed, without the directories."""
        root = str(self.root)
        found = validate.check_all(root, names or workflows.of_project(root), self.script)
        return [str(one).replace(f"{self.state}/workflows/", "") for one in found]

    def found(self, text: str) -> list[str]:
        self.write("workflows/w.yaml", text)
        return [one.removeprefix("w.yaml:") for one in self.all("w")]


@pytest.fixture
def project(tmp_path: Path, script: Script) -> Project:
    return Project(tmp_path, script)


def test_a_source_that_is_not_there_is_an_error_with_the_nearest_field(project: Project) -> None:
    assert project.found(f"""\
state_schema:
  raw: {{files: array}}
  computed:
    a: {{from: raw.fils, transform: input}}
    b:
      from:
        - raw.files
        - computed.aa
      transform: input
    c: {{from: files, transform: input}}
    d: {{from: inputs.x, transform: input}}
    e: {{from: "raw.files[", transform: input}}
{EXIT}""") == [
        "4: there is no raw.fils; did you mean 'raw.files'?",
        "8: there is no computed.aa; did you mean 'computed.a'?",
        "10: 'files' does not say where it is: did you mean raw.files?",
        "11: 'inputs.x' never changes, so nothing follows from it: use it in the `transform`",
        "12: 'raw.files[' is not a path: inside [ ], write a number or a key in quotes, as in [\"src/a.ts\"]",
    ]


def test_every_circle_of_computed_fields_is_told_once(project: Project) -> None:
    assert project.found(f"""\
state_schema:
  computed:
    a: {{from: computed.b, transform: input}}
    b: {{from: computed.a, transform: input}}
    self: {{from: computed.self, transform: input}}
{EXIT}""") == [
        "3: computed fields depend on each other: a → b → a",
        "5: computed fields depend on each other: self → self",
    ]


def test_a_raw_field_named_like_a_computed_one_is_an_error_wherever_it_comes_from(project: Project) -> None:
    why = "is hidden by the computed field of that name: rename one of them"
    assert project.found("""\
default_state: {state: {b: 1}}
state_schema:
  raw: {a: array, source: array}
  computed:
    a: {from: raw.source, transform: input}
    b: {from: raw.source, transform: input}
    c: {from: raw.source, transform: input}
steps:
  - {type: state_update, path: raw.c, value: 1}
""") == [f"1: state.b {why}", f"3: raw.a {why}", f"9: raw.c {why}"]


def test_fields_that_nobody_can_read_are_warnings(project: Project) -> None:
    assert project.found(f"""\
state_schema:
  raw:
    class: string
    inputs: string
    twice: string
  state:
    twice: string
{EXIT}""") == [
        "3: warning: 'class' is a word of JavaScript: no expression can read a field of that name",
        "4: warning: 'inputs' is something else in every expression: none can read a field of that name",
        "7: warning: state.twice is hidden by raw.twice wherever the name is read",
    ]


def test_a_write_that_looks_like_a_slip_is_a_warning(project: Project) -> None:
    assert project.found("""\
state_schema: {raw: {results: object}}
steps:
  - {type: state_update, path: raw.reslts.x, value: 1}
  - {type: state_update, path: raw.something_else, value: 1}
""") == ["3: warning: raw.reslts is declared nowhere; did you mean 'raw.results'?"]


def test_defaults_have_to_fit_their_types(project: Project) -> None:
    assert project.found(f"""\
inputs:
  n:
    type: integer
    default: many
default_state: {{raw: {{}}}}
{EXIT}""") == ["4: `default` is not of type integer"]
    assert project.found(f"""\
inputs: {{n: {{default: x}}}}
default_state:
  raw:
    count: many
    later: "{{{{ inputs.n }}}}"
    none: null
state_schema: {{raw: {{count: integer, later: integer, none: integer}}}}
{EXIT}""") == ["4: raw.count is not of type integer, which it is declared to be"]


def test_break_and_continue_outside_of_a_loop_are_errors(project: Project) -> None:
    assert project.found("""\
steps:
  - type: conditional
    condition: true
    then:
      - type: break
  - type: foreach
    items: [1]
    steps:
      - type: conditional
        condition: true
        then: [{type: continue}]
  - {type: parallel_foreach, items: [1], sub_agent_task: t}
sub_agent_tasks:
  t:
    steps:
      - type: continue
""") == ["5: `break` is outside of any loop", "16: `continue` is outside of any loop"]


def test_steps_that_nothing_leads_to_are_errors(project: Project) -> None:
    assert project.found("""\
steps:
  - type: while
    condition: true
    body:
      - type: conditional
        condition: true
        then: [{type: break}]
        else: [{type: continue}]
      - type: wait
        duration: 1s
      - type: wait
        duration: 1s
  - type: exit
  - type: wait
    duration: 1s
""") == [
        "9: this step is never reached: both ways through the `conditional` before it lead elsewhere",
        "14: this step is never reached: the step before it is `exit`",
    ]


def test_a_missing_task_workflow_agent_and_prompt_are_errors_with_the_nearest_name(project: Project) -> None:
    project.write("agents/reviewer.yaml", "adapter: claude\n")
    project.write("prompts/ask.md", "Look at {{ file }}.\n")
    found = project.found("""\
steps:
  - type: parallel_foreach
    items: [1]
    sub_agent_task: chek
    agent: reviewr
  - type: include_workflow
    workflow: implemnt
  - type: agent
    prompt_name: aks
  - type: apply_hints
    agent: "{{ 'nobody knows yet' }}"
    file: x
    hints: y
  - type: agent
    agent: reviewer
    prompt_name: ask
    parameters: {file: x}
sub_agent_tasks:
  check: {steps: [{type: exit}]}
""")
    assert [one.partition(", ")[0] for one in found] == [
        "4: unknown sub-agent task 'chek'; did you mean 'check'?",
        "5: no such agent: reviewr; available: reviewer",
        "7: no such workflow: implemnt; available: implement",
        "9: no such prompt: aks; available: ask",
    ]


def test_what_is_given_to_a_workflow_or_a_prompt_has_to_be_what_it_asks_for(project: Project) -> None:
    project.write("prompts/ask.md", "Look at {{ file }}.\n")
    assert project.found("""\
steps:
  - type: include_workflow
    workflow: plan
    inputs:
      outptu: x
  - type: include_workflow
    workflow: implement
    inputs:
      max_tasks: many
      plan: "{{ 1 }}"
  - type: agent
    prompt_name: ask
    parameters:
      files: x
""") == [
        "4: workflow 'plan': 'plan_filename' is required",
        "5: workflow 'plan': unknown input 'outptu'; did you mean 'output'?",
        "9: workflow 'implement': 'max_tasks' has to be of type integer",
        "13: prompt 'ask': 'file' is required",
        "14: prompt 'ask': unknown input 'files'; did you mean 'file'?",
    ]


def test_workflows_that_include_each_other_are_an_error_in_each(project: Project) -> None:
    project.write("workflows/a.yaml", "steps:\n  - {type: include_workflow, workflow: b}\n")
    project.write("workflows/b.yaml", "steps:\n  - {type: include_workflow, workflow: a}\n")
    project.write("workflows/c.yaml", "steps:\n  - {type: include_workflow, workflow: a}\n")
    assert project.all() == [
        "a.yaml:2: workflows include each other: a → b → a",
        "b.yaml:2: workflows include each other: b → a → b",
    ]


LIBRARY = """\
sub_agent_tasks:
  look:
    steps:
      - {type: user_message, message: "{{ files }} {{ filse }}"}
"""
IMPORTER = """\
imports: [shared/tasks.yaml]
state_schema: {raw: {files: array}}
steps:
  - {type: parallel_foreach, items: "{{ files }}", sub_agent_task: look}
  - {type: user_message, message: "{{ nothing }}"}
"""


def test_imported_files_are_checked_after_the_importer_with_what_it_lends_their_tasks(project: Project) -> None:
    project.write("workflows/shared/tasks.yaml", LIBRARY)
    assert project.found(IMPORTER) == [
        "5: unknown name 'nothing': no field has it, and no step writes it",
        "shared/tasks.yaml:4: unknown name 'filse'; did you mean 'files'?",
    ]


def test_what_imported_tasks_write_is_known_to_the_importer(project: Project) -> None:
    task = "sub_agent_tasks: {look: {steps: [{type: state_update, path: raw.seen, value: 1}]}}\n"
    project.write("workflows/shared/tasks.yaml", task)
    assert project.found(IMPORTER.replace("nothing", "seen")) == []


def test_tasks_alone_are_judged_mildly_unless_somebody_imports_them(project: Project) -> None:
    project.write("workflows/tasks.yaml", LIBRARY)
    assert [one.split(": ")[1] for one in project.all("tasks")] == ["warning", "warning"]
    project.write("workflows/w.yaml", IMPORTER.replace("shared/", ""))
    assert project.all() == [
        "w.yaml:5: unknown name 'nothing': no field has it, and no step writes it",
        "tasks.yaml:4: unknown name 'filse'; did you mean 'files'?",
    ]


@pytest.mark.parametrize("row", listing.workflows("/nonexistent", "builtin")[0], ids=lambda row: row["name"])
def test_every_built_in_workflow_is_without_findings(project: Project, row: listing.Row) -> None:
    assert project.all(row["path"]) == []


def test_an_included_workflow_that_is_broken_itself_is_an_error_of_the_includer(project: Project) -> None:
    project.write("workflows/broken.yaml", "steps: 3\n")
    found = project.found("steps:\n  - {type: include_workflow, workflow: broken}\n")
    assert len(found) == 1
    assert found[0].startswith("2: it has problems itself: ")
