"""What `validate` finds besides the structure of a file, each mistake in a small workflow, and where it says it is."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from sidecar.analysis import validate
from sidecar.analysis.validate import Finding
from sidecar.catalog import workflows
from sidecar.state.script import Script


class Project:
    """A project's workflows, and what is found in them."""

    def __init__(self, root: Path, script: Script) -> None:
        self.root = root
        self.script = script
        self.workflows = root / ".swissarmyhammer" / "workflows"
        self.workflows.mkdir(parents=True)

    def write(self, name: str, text: str) -> Path:
        path = self.workflows / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def findings(self, *names: str) -> list[Finding]:
        root = str(self.root)
        return validate.check_all(root, names or workflows.of_project(root), self.script)

    def found(self, text: str) -> list[tuple[int, int, str, str]]:
        """Line, column, severity and message of everything in one workflow."""
        self.write("w", text)
        return [(one.line, one.column, one.severity, one.message) for one in self.findings("w")]


@pytest.fixture
def project(tmp_path: Path, script: Script) -> Project:
    return Project(tmp_path, script)


def only(found: list[tuple[int, int, str, str]]) -> tuple[int, int, str, str]:
    assert len(found) == 1, found
    return found[0]


MESSAGE = "steps:\n  - type: user_message\n    message: "


def test_a_name_that_nobody_declares_or_writes_is_an_error_with_the_nearest_one(project: Project) -> None:
    text = 'state_schema:\n  raw: {files: array}\nsteps:\n  - type: user_message\n    message: "of {{ fils.length }}"\n'
    assert only(project.found(text)) == (5, 21, "error", "unknown name 'fils'; did you mean 'files'?")


def test_everything_that_is_declared_or_written_anywhere_is_known(project: Project) -> None:
    found = project.found("""\
        inputs: {n: {type: integer, default: 1}}
        default_state: {raw: {begun: 0, at: "{{ now() }}", id: "{{ uuid() }}"}, state: {kept: null}}
        state_schema:
          raw: {declared: string}
          state: {second: string}
          computed: {derived: {from: raw.declared, transform: input + second + inputs.n, validate: output > input}}
        steps:
          - type: shell_command
            command: date
            state_update: {path: raw.written}
            error_state_update: {path: raw.broken}
          - {type: state_update, updates: [{path: "state.several.x", value: 1}]}
          - type: parallel_foreach
            items: "{{ [1] }}"
            sub_agent_task: t
            on_sub_agent_error: {error_state_path: raw.bad}
          - {id: part, type: include_workflow, workflow: plan, inputs: {plan_filename: x}}
          - type: user_message
            message: >-
              {{ begun + at + id + kept + declared + second + derived + written + broken + several + bad + part.x
              + inputs.n + feedback + workflow_errors + Math.max(1) + JSON.stringify([1].map(one => one + now())) }}
        sub_agent_tasks:
          t: {steps: [{type: user_message, message: "{{ item }}"}]}
        error_handling: {error_collection: {enabled: true}}
        """)
    assert found == []


def test_a_field_whose_name_only_the_run_knows_makes_unknown_names_warnings(project: Project) -> None:
    found = project.found("""\
        steps:
          - {type: state_update, path: "raw.{{ inputs.x }}", value: 1}
          - {type: user_message, message: "{{ anything }}"}
        """)
    assert [(line, severity) for line, _, severity, _ in found] == [(2, "warning"), (3, "warning")]


def test_a_name_that_the_author_asks_for_with_typeof_is_no_finding(project: Project) -> None:
    assert project.found(MESSAGE + "\"{{ typeof extra === 'undefined' ? 1 : extra }}\"\n") == []


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("raw.files", "unknown name 'raw': names are flat in expressions, so raw.files is written files"),
        ("plan", "unknown name 'plan'; did you mean 'inputs.plan'?"),
        ("inputs.plann", "unknown input 'plann'; did you mean 'plan'?"),
        ("inputs['plann']", "unknown input 'plann'; did you mean 'plan'?"),
        ("inputs?.zebra", "unknown input 'zebra'; available: plan"),
        ("files | jsn", "unknown name 'jsn'; did you mean 'json'?"),
    ],
)
def test_slips_that_are_common_get_the_advice_that_helps(project: Project, expression: str, message: str) -> None:
    head = "inputs: {plan: {type: string, default: x}}\nstate_schema: {raw: {files: array}}\n"
    assert only(project.found(head + MESSAGE + f'"{{{{ {expression} }}}}"\n'))[2:] == ("error", message)


@pytest.mark.parametrize("name", ["item", "index", "loop", "result", "error", "input", "output", "applied_count"])
def test_a_name_of_another_place_is_told_where_it_exists(project: Project, name: str) -> None:
    found = only(project.found(MESSAGE + f'"{{{{ {name} }}}}"\n'))
    assert found[2] == "error"
    assert found[3].startswith(f"{name!r} is not known here: it exists in")


def test_loops_tasks_updates_and_error_handling_have_names_of_their_own(project: Project) -> None:
    found = project.found("""\
        steps:
          - type: foreach
            items: "{{ [1] }}"
            body:
              - {type: user_message, message: "{{ item + index + loop.index }}"}
          - type: while
            condition: "{{ loop.index < 3 }}"
            body:
              - type: conditional
                condition: loop.index > 1
                then: [{type: break}]
          - type: apply_hints
            file: x
            hints: y
            state_update: {path: raw.n, value: "{{ applied_count + result }}"}
            error_state_update: {path: raw.e, value: "{{ error.message }}"}
          - {type: parallel_foreach, items: "{{ [1] }}", sub_agent_task: t, sub_agent_prompt_override: "do {{ item }}"}
        sub_agent_tasks:
          t:
            inputs: {file: "{{ item + index }}"}
            steps: [{type: user_message, message: "{{ file + item }}"}]
            error_handling: {cleanup_on_error: [{type: user_message, message: "{{ error.message + file }}"}]}
        error_handling:
          on_failure: [{type: user_message, message: "{{ error.message }}"}]
        """)
    assert found == []


@pytest.mark.parametrize(
    "step",
    [
        'type: foreach\n    items: "{{ [item] }}"\n    body: [{type: wait, duration: 1s}]',
        'type: while\n    condition: "{{ index }}"\n    body: [{type: wait, duration: 1s}]',
        'type: while\n    condition: true\n    body: [{type: user_message, message: "{{ item }}"}]',
        "type: shell_command\n    command: echo {{ result }}\n    state_update: {path: raw.x}",
        'type: shell_command\n    command: date\n    state_update: {path: raw.x, value: "{{ error }}"}',
        'type: shell_command\n    command: date\n    error_state_update: {path: raw.x, value: "{{ result }}"}',
    ],
)
def test_names_of_a_loop_or_an_update_are_unknown_just_outside_of_it(project: Project, step: str) -> None:
    assert "is not known here" in only(project.found(f"steps:\n  - {step}\n"))[3]


def test_a_task_sees_its_own_inputs_and_not_those_of_another(project: Project) -> None:
    found = project.found("""\
        steps:
          - {type: parallel_foreach, items: "{{ [1] }}", sub_agent_task: a}
          - {type: parallel_foreach, items: "{{ [1] }}", sub_agent_task: b}
        sub_agent_tasks:
          a: {inputs: {mine: 1}, steps: [{type: user_message, message: "{{ mine }}"}]}
          b: {steps: [{type: user_message, message: "{{ mine }}"}]}
        """)
    assert [(line, severity) for line, _, severity, _ in found] == [(6, "error")]


def test_defaults_cannot_use_the_state_that_they_make(project: Project) -> None:
    found = only(project.found('default_state: {raw: {a: 1, b: "{{ a }}"}}\nsteps: [{type: exit}]\n'))
    assert found[3] == "'a' is not there yet: the defaults can use inputs, now() and uuid() only"


def test_a_syntax_error_is_told_at_its_line_inside_a_block(project: Project) -> None:
    found = only(
        project.found("""\
        state_schema:
          raw: {files: array}
          computed:
            many:
              from: raw.files
              transform: |
                const size = 3;
                return input.filter(file => );
        steps: [{type: exit}]
        """)
    )
    assert found[0] == 8
    assert found[1] >= 37
    assert found[2] == "error"
    assert found[3].startswith("SyntaxError: ")


def test_a_regular_expression_that_is_none_is_an_error(project: Project) -> None:
    found = only(project.found('steps: [{type: user_input, prompt: "?", validation: {pattern: "(a"}}]\n'))
    assert found[3].startswith("not a regular expression: ")


@pytest.mark.parametrize("key", ["condition", "items"])
def test_text_around_the_braces_where_only_a_value_works_is_an_error(project: Project, key: str) -> None:
    kind = "while" if key == "condition" else "foreach"
    step = f'type: {kind}\n    {key}: "{{{{ [1] }}}} > 0"\n    body: [{{type: wait, duration: 1s}}]'
    assert "put all of it into one {{ }}" in only(project.found(f"steps:\n  - {step}\n"))[3]
