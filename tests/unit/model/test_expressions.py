"""Where a workflow has expressions."""

from __future__ import annotations

from sidecar.catalog import definition, yaml_format
from sidecar.model.language import Role
from sidecar.model.workflow import sites

TEXT = """\
inputs: {n: {type: integer, default: 1}}
default_state: {raw: {a: "{{ now() }}", b: plain, c: {d: ["{{ uuid() }}"]}}}
state_schema:
  computed:
    x: {from: [raw.a, raw.b], transform: "input[0]", validate: output > 0}
steps:
  - id: loop
    type: while
    condition: count < 3
    max_iterations: "{{ inputs.n }}"
    body:
      - id: run
        type: shell_command
        command: echo {{ x }}
        env: {A: "{{ y }}", B: plain}
        timeout: "{{ z }}s"
        state_update: {path: "raw.m.{{ k }}", value: "{{ result }}"}
  - {id: ask, type: user_input, prompt: plain, validation: {pattern: ^a}}
  - {id: each, type: foreach, items: "{{ list }}", body: [{id: say, type: user_message, message: "{{ item }}"}]}
  - {id: llm, type: agent, prompt: "{{ p }}", retry_count: 2}
sub_agent_tasks:
  t: {inputs: {f: "{{ item }}"}, steps: [{id: s, type: state_update, path: raw.q, value: 1}]}
error_handling: {on_failure: [{id: f, type: exit, message: "{{ error }}"}]}
"""


def test_every_expression_is_found_with_its_location_role_and_steps() -> None:
    document = yaml_format.parse(TEXT, "f.yaml")
    found = {
        site.location: (site.role, site.text, [step.id for step in site.steps], site.task)
        for site in sites(definition.parse(document))
    }
    loop, run = ("steps", 0), ("steps", 0, "body", 0)
    assert found == {
        ("default_state", "raw", "a"): (Role.VALUE, "{{ now() }}", [], None),
        ("default_state", "raw", "c", "d", 0): (Role.VALUE, "{{ uuid() }}", [], None),
        ("state_schema", "computed", "x", "from", 0): (Role.SOURCE, "raw.a", [], None),
        ("state_schema", "computed", "x", "from", 1): (Role.SOURCE, "raw.b", [], None),
        ("state_schema", "computed", "x", "transform"): (Role.TRANSFORM, "input[0]", [], None),
        ("state_schema", "computed", "x", "validate"): (Role.CHECK, "output > 0", [], None),
        (*loop, "condition"): (Role.CONDITION, "count < 3", ["loop"], None),
        (*loop, "max_iterations"): (Role.TEMPLATE, "{{ inputs.n }}", ["loop"], None),
        (*run, "command"): (Role.COMMAND, "echo {{ x }}", ["loop", "run"], None),
        (*run, "env", "A"): (Role.VALUE, "{{ y }}", ["loop", "run"], None),
        (*run, "timeout"): (Role.TEMPLATE, "{{ z }}s", ["loop", "run"], None),
        (*run, "state_update", "path"): (Role.PATH, "raw.m.{{ k }}", ["loop", "run"], None),
        (*run, "state_update", "value"): (Role.VALUE, "{{ result }}", ["loop", "run"], None),
        ("steps", 1, "validation", "pattern"): (Role.PATTERN, "^a", ["ask"], None),
        ("steps", 2, "items"): (Role.ITEMS, "{{ list }}", ["each"], None),
        ("steps", 2, "body", 0, "message"): (Role.MESSAGE, "{{ item }}", ["each", "say"], None),
        ("steps", 3, "prompt"): (Role.PROMPT, "{{ p }}", ["llm"], None),
        ("sub_agent_tasks", "t", "inputs", "f"): (Role.VALUE, "{{ item }}", [], "t"),
        ("sub_agent_tasks", "t", "steps", 0, "path"): (Role.PATH, "raw.q", ["s"], "t"),
        ("error_handling", "on_failure", 0, "message"): (Role.MESSAGE, "{{ error }}", ["f"], None),
    }


def test_a_default_stands_in_no_file_and_is_not_told() -> None:
    text = "steps: []\nerror_handling: {error_collection: {enabled: true}}\n"
    assert list(sites(definition.parse(yaml_format.parse(text, "f.yaml")))) == []


def test_a_location_leads_to_the_text_in_the_file_also_below_the_wrapper() -> None:
    wrapped = "workflow:\n" + "".join(f"  {line}\n" for line in TEXT.splitlines())
    document = yaml_format.parse(wrapped, "f.yaml")
    found = list(sites(definition.parse(document)))
    assert len(found) == 20
    for site in found:
        value = document.value
        location = ("workflow", *site.location)
        for part in location:
            value = value[part]
        assert value == site.text
        line, column = document.value_place(location)
        assert wrapped.splitlines()[line - 1][column - 1 :].startswith(site.text)
