"""Plans: what a run would do, told without doing any of it, and without claiming to know what only the run knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from sidecar.analysis.plan import RunPlan, explain
from sidecar.catalog import workflows
from sidecar.config import Settings
from sidecar.errors import ExpressionError, InputError
from sidecar.model.steps import STEP_CLASSES
from sidecar.model.workflow import walk
from sidecar.state.script import Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.analysis.plan import PlanStep

    Explain = Callable[..., RunPlan]

SETTINGS = Settings.model_validate({})
BUILTIN: dict[str, dict[str, Any]] = {
    "iterate": {"workspace": "w"},
    "plan": {"plan_filename": "spec.md"},
    "implement": {},
    "code-review": {"target_branch": "main", "source_branch": "topic"},
    "standards:fix": {"check_command": "ruff check"},
    "example:transform": {},
    "example:shared-checks": {"files": ["a.md"]},
    "example:quality-gate": {},
    "example:task-graph": {},
    "example:batches": {},
}
# What the tables below stand on: `files` and `n` are known, `seen` is written by a step, `at` only the run knows.
BASE = """
inputs:
  n: {type: integer, default: 2}
  name: {type: string, required: false}
default_state:
  raw: {files: [a, b c], seen: [], at: "{{ now() }}", flag: true}
  state: {mode: fast}
state_schema:
  raw: {files: array, seen: array, at: string, flag: boolean, unset: string, x: integer}
  computed:
    count: {from: raw.files, transform: input.length * inputs.n}
    seen_count: {from: raw.seen, transform: input.length}
    seen_twice: {from: [computed.seen_count, raw.files], transform: "input[0] * 2"}
    when: {from: raw.at, transform: input}
"""
WRITE = {"id": "write", "type": "shell_command", "command": "git ls-files", "state_update": {"path": "raw.seen"}}
WRITES = "{id: write, type: shell_command, command: git ls-files, state_update: {path: raw.seen}}"


@pytest.fixture
def plan(tmp_path: Path, script: Script) -> Explain:
    """Explains steps, in YAML or as they are, on top of BASE."""

    def explained(steps: str | list[dict[str, Any]], inputs: dict[str, Any] | None = None, **more: Any) -> RunPlan:
        parsed = yaml.safe_load(steps) if isinstance(steps, str) else steps
        path = tmp_path / "w.yaml"
        path.write_text(json.dumps({**yaml.safe_load(BASE), "steps": parsed, **more}))
        return explain(workflows.load("/", str(path)), inputs or {}, script, str(tmp_path), SETTINGS)

    return explained


def step(plan: RunPlan, step_id: str) -> PlanStep:
    return next(one for one in plan.steps if one.step_id == step_id)


def text_of(plan: RunPlan) -> str:
    """What the last step of a plan does."""
    return plan.steps[-1].does


def say(text: str, **more: Any) -> dict[str, Any]:
    return {"id": "say", "type": "user_message", "message": text, **more}


# --- the built-in workflows


def all_ids(plan: RunPlan) -> set[str]:
    inner = {one for each in plan.steps if each.plan for one in all_ids(each.plan)}
    return {each.step_id for each in plan.steps} | set(plan.skipped) | inner


@pytest.mark.parametrize("name", BUILTIN)
def test_every_step_of_a_built_in_workflow_is_planned_or_known_not_to_run(
    name: str, tmp_path: Path, script: Script
) -> None:
    definition = workflows.find(str(tmp_path), name)
    found = explain(definition, BUILTIN[name], script, str(tmp_path), SETTINGS)
    assert {each.id for each, _ in walk(definition.workflow)} <= all_ids(found)
    assert not [problem for each in found.steps for problem in each.problems]
    assert len(found.lines()) >= 3 + len(found.steps)
    shown = json.loads(json.dumps(found.to_json()))
    assert {"steps", "estimated_duration", "required_tools"} <= shown.keys()
    assert all({"step_id", "type", "conditions", "dependencies"} <= each.keys() for each in shown["steps"])
    assert not list(tmp_path.iterdir())


def test_a_plan_reads_like_the_run(tmp_path: Path, script: Script) -> None:
    definition = workflows.find(str(tmp_path), "code-review")
    inputs = {"target_branch": "main", "source_branch": "a b"}
    lines = explain(definition, inputs, script, str(tmp_path), SETTINGS).lines()
    assert lines[:5] == [
        'code-review with target_branch="main", source_branch="a b", parallel=4, output="REVIEW.md"',
        "  list: run `git diff --name-only --diff-filter=d --end-of-options main...'a b' --` → raw.changed_files",
        "  nothing: if files.length === 0",
        "    then: end the run: a b changes nothing that needs a review.",
        "  review: for each of {{ files }}, 4 at a time: task review_file by claude",
    ]
    assert lines[-2:] == [
        "takes: at least 0s; agents and commands not counted",
        "needs: agent:claude, command:git",
    ]


def test_nothing_is_executed_and_nothing_is_written(plan: Explain, tmp_path: Path) -> None:
    touch = f"touch {tmp_path}/ran"
    steps = "[{type: agent, agent: toucher, prompt: x}, {type: mcp_call, mcp: {server: toucher, method: touch}}]"
    plan([{"type": f"{kind}shell_command", "command": touch} for kind in ("", "agent_")] + yaml.safe_load(steps))
    assert [each.name for each in tmp_path.iterdir()] == ["w.yaml"]


# --- each type of step

LINES: dict[str, tuple[str, str]] = {
    "shell_command": (
        """command: 'ls {{ files }} {{ at }}', working_dir: '{{ mode }}', timeout: '{{ inputs.n * 1000 }}',
        state_update: {path: 'raw.k.{{ files[1] }}'}, env: {A: '{{ count }}', B: '{{ at }}'}""",
        "run `ls a 'b c' {{ at }}` in fast, for 2s at most → raw.k.b c",
    ),
    "agent_shell_command": ("command: ./x, reason: 'needs {{ count }}'", "run `./x` on the terminal (needs 4)"),
    "agent": (
        'prompt: "Do {{ count }}\\nof {{ when }}.", agent: "{{ inputs.name }}"',
        "have claude do: Do 4 of {{ when }}.",
    ),
    "mcp_call": (
        "mcp: {method: lint, params: {files: '{{ files }}', at: '{{ at }}'}}, timeout: 30s",
        'call the MCP tool lint with {"files": ["a", "b c"], "at": "{{ at }}"}, for 30s at most',
    ),
    "state_update": (
        "updates: [{path: raw.x, operation: increment}, {path: 'raw.k.{{ mode }}', value: '{{ at }}'}]",
        "increase raw.x by 1, set raw.k.fast to {{ at }}",
    ),
    "user_input": (
        "prompt: 'Which of {{ files }}?', choices: [a], state_update: {path: raw.x}",
        'ask: Which of ["a", "b c"]? ("a") → raw.x',
    ),
    "user_message": ("message: '{{ count }} since {{ at }}'", "say: 4 since {{ at }}"),
    "apply_hints": (
        "file: '{{ files[0] }}', hints: '{{ at }}', agent: codex",
        "have codex apply hints to a: {{ at }}",
    ),
    "conditional": ("condition: '{{ flag }}', then: []", "flag is true: nothing to do"),
    "while": (
        "condition: at !== null, max_iterations: '{{ inputs.n }}', body: []",
        "repeat while at !== null (max 2)",
    ),
    "foreach": ("items: '{{ files }}', body: []", 'for each of 2 items ("a", "b c"), one after the other'),
    "parallel_foreach": (
        "items: '{{ files }}', sub_agent_task: t, max_parallel: '{{ inputs.n }}', agent: gemini, wait_for_all: false",
        'for each of 2 items ("a", "b c"), 2 at a time: task t by gemini, going on when the first is done',
    ),
    "include_workflow": (
        "workflow: 'example:shared-checks', inputs: {files: '{{ files }}'}",
        'run the workflow example:shared-checks with files=["a", "b c"]',
    ),
    "break": ("description: x", "leave the loop"),
    "continue": ("description: x", "continue with the loop's next iteration"),
    "wait": ("duration: '{{ inputs.n * 750 }}'", "wait 1.5s"),
    "wait for": ("until: '{{ seen.length > 0 }}', timeout: 1h30m", "wait until seen.length > 0, for 1h30m at most"),
    "exit": ("status: failed, message: 'after {{ count }}'", "end the run as failed: after 4"),
}


@pytest.mark.parametrize("kind", [*STEP_CLASSES, "wait for"])
def test_each_type_of_step_says_what_it_would_do(kind: str, plan: Explain) -> None:
    keys, expected = LINES[kind]
    tasks = {"t": {"steps": [{"type": "agent", "prompt": "{{ item }}"}]}}
    found = plan(f"[{{id: it, type: {kind.partition(' ')[0]}, {keys}}}]", sub_agent_tasks=tasks)
    assert (step(found, "it").does, step(found, "it").problems) == (expected, ())


def test_steps_with_every_key_that_they_can_have_are_planned(plan: Explain) -> None:
    steps = yaml.safe_load((Path(__file__).parents[1] / "model" / "full_steps.yaml").read_text())
    loose = [one for one in steps if one["type"] != "exit"]
    found = plan(loose, sub_agent_tasks={"t": {"steps": [{"type": "break"}]}})
    assert {one.type for one in found.steps} == set(STEP_CLASSES)
    assert json.dumps(found.to_json())


# --- what is known, and what is not


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ files.length }} {{ count }} {{ mode }}", "say: 2 4 fast"),
        ("{{ inputs.n }}", "say: 2"),
        ("{{ unset === null }}", "say: true"),  # declared, and nobody writes it before
        ("{{ at }} {{ when }}", "say: {{ at }} {{ when }}"),  # from the clock
        ("{{ feedback }}", "say: {{ feedback }}"),  # a resumed run may have some
        ("{{ now() }} {{ uuid() }}", "say: {{ now() }} {{ uuid() }}"),
        ("{{ nobody }} {{ raw.files }}", "say: {{ nobody }} {{ raw.files }}"),
        ("{{ item }} {{ loop.index }}", "say: {{ item }} {{ loop.index }}"),
        ("{{ files.map(file => file.length) }}", "say: [1, 3]"),
        ("{{ [n => n * 2].length + inputs['n'] }}", "say: 3"),
    ],
)
def test_at_the_start_only_what_no_clock_and_no_resume_decides_is_known(
    text: str, expected: str, plan: Explain
) -> None:
    assert text_of(plan([say(text)])) == expected


@pytest.mark.parametrize(
    "text", ["{{ seen }}", "{{ seen_count }}", "{{ seen_twice }}", "{{ files.length + seen_twice }}"]
)
def test_behind_a_step_that_writes_a_field_it_and_all_that_follows_from_it_is_unknown(text: str, plan: Explain) -> None:
    assert "{{" not in text_of(plan([say(text)]))
    found = plan([WRITE, say(f"{text} {{{{ count }}}}")])
    assert text_of(found) == f"say: {text} 4"
    assert step(found, "say").dependencies == ("write",)


@pytest.mark.parametrize(
    "writer",
    [
        "type: state_update, path: raw.seen, value: [1]",
        "type: state_update, updates: [{path: raw.x, value: 1}, {path: raw.seen.a, value: 1}]",
        "type: state_update, path: 'raw.{{ mode }}', value: 1",  # a name that only the run knows
        "type: shell_command, command: x, error_state_update: {path: raw.seen}",
        "type: user_input, prompt: '?', state_update: {path: raw.seen}",
        f"type: conditional, condition: '{{{{ at }}}}', then: [], else: [{WRITES}]",
        f"type: conditional, condition: true, then: [{WRITES}]",
        f"type: while, condition: '{{{{ at }}}}', body: [{WRITES}]",
        f"type: foreach, items: '{{{{ files }}}}', body: [{WRITES}]",
        "type: parallel_foreach, items: '{{ files }}', sub_agent_task: writes",
        "type: parallel_foreach, items: '{{ files }}', sub_agent_task: cleans",
        """type: parallel_foreach, items: '{{ at }}', sub_agent_task: nothing,
        on_sub_agent_error: {collect_errors: true, error_state_path: raw.seen}""",
    ],
)
def test_every_way_to_write_a_field_makes_it_unknown(writer: str, plan: Explain) -> None:
    nothing: list[dict[str, Any]] = [{"type": "user_message", "message": "x"}]
    tasks = {
        "writes": {"steps": [{**WRITE, "id": "written"}]},
        "cleans": {"steps": nothing, "error_handling": {"cleanup_on_error": [{**WRITE, "id": "cleaned"}]}},
        "nothing": {"steps": nothing},
    }
    message = "{id: say, type: user_message, message: '{{ seen }}, {{ seen_count }}'}"
    found = plan(f"[{{id: writer, {writer}}}, {message}]", sub_agent_tasks=tasks)
    assert text_of(found) == "say: {{ seen }}, {{ seen_count }}"


def test_inside_a_loop_or_a_task_what_it_writes_is_unknown_from_the_start(plan: Explain) -> None:
    body = [say("{{ seen_count }} of {{ count }}: {{ item }}"), WRITE]
    found = plan([{"id": "each", "type": "foreach", "items": "{{ files }}", "body": body}])
    assert step(found, "say").does == "say: {{ seen_count }} of 4: {{ item }}"
    assert (step(found, "say").dependencies, step(found, "say").inside) == (("write",), ("each",))
    inputs = {"known": "{{ count }}", "own": "{{ item }}"}
    tasks = {"t": {"inputs": inputs, "steps": [say("{{ known }} {{ own }} {{ seen }}"), WRITE]}}
    found = plan("[{type: parallel_foreach, items: '{{ files }}', sub_agent_task: t}]", sub_agent_tasks=tasks)
    assert step(found, "say").does == "say: {{ known }} {{ own }} {{ seen }}"


def test_a_name_that_a_loop_or_a_task_gives_hides_the_field_of_that_name(plan: Explain) -> None:
    found = plan(
        "[{type: foreach, items: [1, 2], body: [{id: in, type: user_message, message: '{{ item }}'}]},"
        " {type: parallel_foreach, items: [1, 2], sub_agent_task: t}]",
        default_state={"raw": {"item": "field", "files": "field"}},
        state_schema={},
        sub_agent_tasks={"t": {"inputs": {"files": "{{ item }}"}, "steps": [say("{{ files }} {{ item }}")]}},
    )
    assert (step(found, "in").does, step(found, "in").dependencies) == ("say: {{ item }}", ())
    assert step(found, "say").does == "say: {{ files }} {{ item }}"


@pytest.mark.parametrize("name", ["steps_completed", "last_error", "workflow_errors", "kept"])
def test_what_the_engine_itself_writes_is_unknown(name: str, plan: Explain) -> None:
    handling = {"error_collection": {"state_path": "raw.kept"}}
    found = plan(
        [say(f"{{{{ {name} }}}}")], default_state={"raw": {name: []}}, state_schema={}, error_handling=handling
    )
    assert text_of(found) == f"say: {{{{ {name} }}}}"


def test_a_field_computed_with_a_name_that_is_unknown_is_unknown(plan: Explain) -> None:
    schema = {"raw": {"at": "string"}, "computed": {"made": {"from": "raw.flag", "transform": "`${input} ${at}`"}}}
    assert text_of(plan([say("{{ made }}")], state_schema=schema)) == "say: {{ made }}"


# --- which way it goes


def choice(condition: str | bool) -> dict[str, Any]:
    return {
        "id": "choice",
        "type": "conditional",
        "condition": condition,
        "then": [{"id": "yes", "type": "user_message", "message": "y"}],
        "else": [{"id": "no", "type": "user_message", "message": "n"}],
    }


@pytest.mark.parametrize(
    ("condition", "taken", "skipped"),
    [("{{ count > 3 }}", "then", "no"), ("count > 4", "else", "yes"), (False, "else", "yes")],
)
def test_a_condition_that_is_known_shows_the_branch_that_is_taken(
    condition: str | bool, taken: str, skipped: str, plan: Explain
) -> None:
    found = plan([choice(condition)])
    assert step(found, "choice").does.endswith(f"is {'true' if taken == 'then' else 'false'}: {taken}")
    assert found.skipped == (skipped,)
    assert skipped not in {one.step_id for one in found.steps}
    assert found.steps[-1].conditions == ()


def test_a_condition_that_only_the_run_knows_shows_both_branches_with_its_text(plan: Explain) -> None:
    found = plan([WRITE, choice("{{ seen_count > 0 }}"), say("x")])
    assert step(found, "choice").does == "if seen_count > 0"
    assert step(found, "choice").dependencies == ("write",)
    assert (step(found, "yes").conditions, step(found, "yes").branch) == (("seen_count > 0",), "then")
    assert (step(found, "no").conditions, step(found, "no").branch) == (("!(seen_count > 0)",), "else")
    assert step(found, "say").conditions == ()
    assert found.skipped == ()


def test_behind_the_end_of_the_run_nothing_is_planned(plan: Explain) -> None:
    leaves = "{{type: conditional, condition: '{{{{ {} }}}}', then: [{{id: out, type: exit}}, {}]}}"
    after = "{id: say, type: user_message, message: x}"
    found = plan(f"[{leaves.format('flag', WRITES)}, {after}]")
    assert [one.step_id for one in found.steps] == ["0.conditional", "out"]
    assert found.skipped == ("write", "say")
    assert step(plan(f"[{leaves.format('at', WRITES)}, {after}]"), "say").conditions == ("!(at)",)
    for items, skipped in (("files", ("say",)), ("at", ())):
        loop = f"{{type: foreach, items: '{{{{ {items} }}}}', body: [{{type: exit}}]}}"
        assert plan(f"[{loop}, {after}]").skipped == skipped


def test_behind_a_break_the_rest_of_the_body_is_not_planned_but_what_follows_the_loop_is(plan: Explain) -> None:
    body = [{"id": "out", "type": "break"}, WRITE]
    found = plan([{"type": "while", "condition": True, "body": body}, say("x")])
    assert [one.step_id for one in found.steps] == ["0.while", "out", "say"]
    assert found.skipped == ("write",)


@pytest.mark.parametrize(
    "loop",
    [
        {"type": "while", "condition": "{{ count > 9 }}", "body": [WRITE]},
        {"type": "foreach", "items": "{{ files.slice(9) }}", "body": [WRITE]},
        {"type": "foreach", "items": [], "body": [WRITE]},
    ],
)
def test_the_steps_of_a_loop_that_is_known_to_do_nothing_are_not_run(loop: dict[str, Any], plan: Explain) -> None:
    found = plan([{"id": "loop", **loop}, say("x")])
    assert found.skipped == ("write",)
    assert [one.step_id for one in found.steps] == ["loop", "say"]


def test_the_condition_of_a_loop_is_the_condition_of_its_steps(plan: Explain) -> None:
    found = plan([WRITE, {"id": "loop", "type": "while", "condition": "seen_count < 3", "body": [say("x")]}])
    assert step(found, "loop").does == "repeat while seen_count < 3 (max 100)"
    assert step(found, "say").conditions == ("seen_count < 3",)
    state = {"raw": {"loop": {"index": 9}}}
    found = plan("[{id: w, type: while, condition: loop.index < 3, body: []}]", default_state=state)
    assert step(found, "w").does == "repeat while loop.index < 3 (max 100)"


def test_a_step_depends_on_those_that_may_write_what_it_reads_and_not_on_itself(plan: Explain) -> None:
    count = {"id": "own", "type": "state_update", "path": "raw.seen", "value": "{{ seen.concat(item) }}"}
    found = plan([{"id": "each", "type": "foreach", "items": [1, 2], "body": [count, {**WRITE, "id": "later"}]}])
    assert step(found, "own").dependencies == ("later",)
    write = {"id": "any", "type": "state_update", "path": "raw.{{ inputs.name }}", "value": 1}
    found = plan([write, say("{{ files }} {{ mode }}")])
    assert (step(found, "say").does, step(found, "say").dependencies) == ("say: {{ files }} fast", ("any",))


def test_the_steps_for_a_failure_know_nothing_that_any_step_writes(plan: Explain) -> None:
    handling = {
        "on_failure": [{"id": "sorry", "type": "user_message", "message": "{{ error.message }} {{ seen }} {{ count }}"}]
    }
    found = plan([WRITE], error_handling=handling)
    assert text_of(found) == "say: {{ error.message }} {{ seen }} 4"
    assert found.steps[-1].conditions == ("the run fails",)
    assert found.lines()[2] == "  on failure: sorry: say: {{ error.message }} {{ seen }} 4"


# --- parallel tasks


@pytest.mark.parametrize(
    ("items", "count"), [("{{ files }}", 2), ([1, "{{ at }}", 3], 3), ("{{ seen }}", None), ([], 0)]
)
def test_the_sub_agents_are_counted_where_the_items_are_known(items: Any, count: int | None, plan: Explain) -> None:
    task = {"steps": [{"id": "one", "type": "agent", "prompt": "{{ item }}"}]}
    fan = {"id": "fan", "type": "parallel_foreach", "items": items, "sub_agent_task": "t", "agent": "codex"}
    found = plan([WRITE, fan], sub_agent_tasks={"t": task}).to_json()
    assert found["steps"][1].get("estimated_sub_agents") == count
    assert [one["step_id"] for one in found["steps"][2:]] == ["one"] * (count != 0)


def test_a_task_that_needs_an_agent_is_done_by_the_agent_of_the_step_and_others_by_sidecar(plan: Explain) -> None:
    tasks = yaml.safe_load("""
        talks: {steps: [{id: inner, type: agent, prompt: x}, {id: named, type: agent, agent: gemini, prompt: y}]}
        runs: {steps: [{type: shell_command, command: make}]}
        named: {steps: [{type: agent, agent: gemini, prompt: z}]}""")
    fan = {"type": "parallel_foreach", "items": [1], "agent": "codex"}
    found = plan([{**fan, "sub_agent_task": name} for name in tasks], sub_agent_tasks=tasks)
    assert (step(found, "inner").does, step(found, "named").does) == ("have codex do: x", "have gemini do: y")
    by = {"talks": "codex", "runs": "sidecar itself", "named": "sidecar itself"}
    expected = [f"for each of 1 item (1), 5 at a time: task {name} by {agent}" for name, agent in by.items()]
    assert [one.does for one in found.steps if one.type == "parallel_foreach"] == expected
    assert found.required_tools == ("agent:codex", "agent:gemini", "command:make")


def test_a_task_that_starts_itself_is_shown_once(plan: Explain) -> None:
    again = {"id": "again", "type": "parallel_foreach", "items": "{{ item }}", "sub_agent_task": "t"}
    found = plan([{**again, "id": "first"}], sub_agent_tasks={"t": {"steps": [again]}})
    assert [one.step_id for one in found.steps] == ["first", "again"]
    assert text_of(found).endswith("not shown again")


# --- other workflows

INNER = """
name: inner
inputs:
  known: {type: integer}
  open: {type: string}
  extra: {type: string, default: e}
default_state: {raw: {from_open: "{{ inputs.open }}", from_known: "{{ inputs.known }}"}}
state_schema:
  raw: {from_open: string, from_known: integer}
  computed:
    twice: {from: raw.from_known, transform: input * 2}
    mixed: {from: raw.from_known, transform: "`${input} ${inputs['open']}`"}
steps:
  - {id: say, type: user_message, message: "{{ inputs.known }} {{ twice }} {{ inputs.extra }} {{ from_known }}"}
  - {id: ask, type: user_message, message: "{{ inputs.open }} {{ from_open }} {{ mixed }} {{ inputs }}"}
  - {id: run, type: shell_command, command: make}
"""


def included(found: RunPlan) -> RunPlan:
    inner = step(found, "inc").plan
    assert inner is not None
    return inner


def test_an_included_workflow_is_planned_with_its_inputs_where_all_of_them_are_known(
    plan: Explain, tmp_path: Path
) -> None:
    (tmp_path / "inner.yaml").write_text(INNER)
    include = {"id": "inc", "type": "include_workflow", "workflow": "inner"}
    known = {**include, "inputs": {"known": "{{ count }}", "open": "{{ files[0] }}"}}
    found = plan([known, say("{{ inc.twice }} {{ count }}")], imports=["inner.yaml"])
    assert included(found).inputs == {"known": 4, "open": "a", "extra": "e"}
    assert step(included(found), "say").does == "say: 4 8 e 4"
    assert (step(found, "say").does, step(found, "say").dependencies) == ("say: {{ inc.twice }} 4", ("inc",))
    assert (found.required_tools, found.estimated_duration) == (("command:make",), "at least 0s; commands not counted")
    assert found.lines()[2] == "    say: say: 4 8 e 4"
    assert found.to_json()["steps"][0]["plan"]["steps"][0]["does"] == "say: 4 8 e 4"
    found = plan([{**include, "inputs": {"known": "{{ count }}", "open": "{{ at }}"}}], imports=["inner.yaml"])
    assert included(found).inputs == {"known": 4, "open": "{{ at }}", "extra": None}
    expected = "say: {{ inputs.known }} {{ twice }} {{ inputs.extra }} {{ from_known }}"
    assert (step(included(found), "say").does, step(included(found), "run").does) == (expected, "run `make`")


def test_what_an_included_workflow_is_given_sets_its_fields_and_its_exit_ends_the_run(
    plan: Explain, tmp_path: Path
) -> None:
    (tmp_path / "inner.yaml").write_text("""
name: inner
default_state: {raw: {files: [], when: never}}
state_schema: {computed: {n: {from: raw.files, transform: input.length}}}
steps: [{id: say, type: user_message, message: '{{ files }} {{ n }} {{ inputs.files }}, {{ when }}'}, {type: exit}]
""")
    include = "{id: inc, type: include_workflow, workflow: inner, inputs: {files: [a, b], when: '{{ files[0] }}'}}"
    found = plan(f"[{include}, {{id: after, type: user_message, message: x}}]", imports=["inner.yaml"])
    assert step(included(found), "say").does == 'say: ["a", "b"] 2 ["a", "b"], a'
    assert found.skipped == ("after",)


@pytest.mark.parametrize(
    ("workflow", "inputs", "problem"),
    [
        ("nowhere", {}, "no such workflow: nowhere"),
        ("inner", {"known": "{{ files }}", "open": "x"}, "'known' has to be of type integer"),
        ("inner", {"known": 1}, "'open' is required"),
        ("inner", {"known": 1, "open": "", "exta": 1}, "did you mean 'extra'?"),
    ],
)
def test_what_is_wrong_with_an_inclusion_is_told_at_its_step(
    workflow: str, inputs: dict[str, Any], problem: str, plan: Explain, tmp_path: Path
) -> None:
    (tmp_path / "inner.yaml").write_text(INNER)
    directory = tmp_path / ".swissarmyhammer" / "workflows"
    directory.mkdir(parents=True)
    (directory / "self.yaml").write_text("steps: [{id: inc, type: include_workflow, workflow: self}]")
    include = {"id": "inc", "type": "include_workflow", "workflow": workflow, "inputs": inputs}
    lines = plan([include], imports=["inner.yaml"]).lines()
    assert any("! would fail: " in line and problem in line for line in lines)


def test_a_workflow_that_includes_itself_is_shown_once(tmp_path: Path, script: Script) -> None:
    path = tmp_path / ".swissarmyhammer" / "workflows" / "self.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("steps: [{id: inc, type: include_workflow, workflow: self}]")
    found = explain(workflows.find(str(tmp_path), "self"), {}, script, str(tmp_path), SETTINGS)
    assert [one.plan for one in found.steps] == [None]


def test_workflows_that_multiply_by_inclusion_still_have_a_plan(tmp_path: Path, script: Script) -> None:
    directory = tmp_path / ".swissarmyhammer" / "workflows"
    directory.mkdir(parents=True)
    for number in range(24):
        twice = [{"type": "include_workflow", "workflow": f"w{number + 1}"}] * 2
        (directory / f"w{number}.yaml").write_text(json.dumps({"steps": twice}))
    (directory / "w24.yaml").write_text("steps: [{type: user_message, message: x}]")
    found = explain(workflows.find(str(tmp_path), "w0"), {}, script, str(tmp_path), SETTINGS)
    assert len(found.lines()) < 5000
    assert any(line.endswith("not shown any more") for line in found.lines())


def test_what_two_texts_of_a_step_would_fail_with_is_one_problem(plan: Explain) -> None:
    updates = [{"path": f"raw.{name}", "value": "{{ inputs.n.a.b }}"} for name in ("seen", "x")]
    assert len(step(plan([{"id": "bad", "type": "state_update", "updates": updates}]), "bad").problems) == 1


def test_imported_tasks_are_planned_with_the_importer_s_state(plan: Explain, tmp_path: Path) -> None:
    (tmp_path / "tasks.yaml").write_text(
        "sub_agent_tasks: {t: {steps: [{id: say, type: user_message, message: '{{ count }} {{ seen }}'},"
        " {id: w, type: state_update, path: raw.seen, value: []}]}}"
    )
    fan = {"type": "parallel_foreach", "items": "{{ files }}", "sub_agent_task": "t"}
    found = plan([fan], imports=["tasks.yaml"])
    assert step(found, "say").does == "say: 4 {{ seen }}"


# --- commands and tools


@pytest.mark.parametrize(
    ("command", "shown", "tools"),
    [
        ("ls {{ files }}", "ls a 'b c'", ["ls"]),
        ('ls \'{{ files[1] }}\' "{{ files[1] }}" "x {{ files[1] }}"', 'ls \'b c\' "b c" "x b c"', ["ls"]),
        ("cat x{{ files[1] }}y '{{ inputs.name }}'", "cat x'b c'y 'it's'", ["cat"]),
        ('cat "< {{ inputs.name }} >" "{{ at }}"', 'cat "< it\'s >" "{{ at }}"', ["cat"]),
        ("make {{ at | quote }} {{ seen }}", "make {{ at | quote }} {{ seen }}", ["make"]),
        ("{{ 'git diff' | raw }} | sort | uniq -c", "git diff | sort | uniq -c", ["git", "sort", "uniq"]),
        ("{{ at | raw }} x && ./go", "{{ at | raw }} x && ./go", []),
        ("A=1 B=2 env C=3 python3 -m x > out; echo done", None, ["env", "python3"]),
        ("for f in *.c; do cc -c $f; done\nif grep -q x y; then exec make; fi", None, ["cc", "grep", "make"]),
        ("# look\ncd src && find . -name \\\n  x 2>/dev/null || true", None, ["find"]),
        ("cat <<END\nrm -r /\nEND", None, []),  # a heredoc is not read
        ("< in.txt sort 2>&1 >> out.txt | tee x", None, ["sort", "tee"]),
        ("$TOOL 'quo|ted; rm x' && \"$X\" a", None, []),
        ("echo \"it's", None, []),
    ],
)
def test_a_command_is_shown_as_a_person_would_type_it_with_the_programs_it_needs(
    command: str, shown: str | None, tools: list[str], plan: Explain
) -> None:
    found = plan([WRITE, {"id": "c", "type": "shell_command", "command": command}], {"name": "it's"})
    assert step(found, "c").does == f"run `{' '.join((shown or command).split())}`"
    assert found.required_tools == tuple(sorted({"command:git", *(f"command:{tool}" for tool in tools)}))


def test_the_tools_are_the_agents_the_mcp_tools_and_the_programs(plan: Explain) -> None:
    steps = """
        - {type: agent, prompt: x}
        - {type: agent, prompt: x, agent: "{{ inputs.name }}"}
        - {type: agent, prompt: x, agent: "{{ at }}"}
        - {type: mcp_call, mcp: {method: lint_project}}
        - {type: mcp_call, mcp: {server: s, method: "{{ mode }}"}}
        - {type: conditional, condition: false, then: [{type: agent, agent: codex, prompt: x}]}"""
    tools = ("agent:claude", "agent:gemini", "agent:{{ at }}", "mcp:lint_project", "mcp:s/fast")
    assert plan(steps, {"name": "gemini"}).required_tools == tools


# --- how long it takes


def wait(duration: Any = "2s") -> dict[str, Any]:
    return {"type": "wait", "duration": duration}


WAIT, RUN = "{type: wait, duration: 2s}", "{type: shell_command, command: x}"
MAYBE = "type: conditional, condition: '{{ at }}'"
FAN = "type: parallel_foreach, max_parallel: 2, items"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("{type: user_message, message: x}", "at once"),
        (f"{WAIT}, {{type: wait, duration: 500}}", "about 2.5s"),
        (f"{WAIT}, {RUN}", "at least 2s; commands not counted"),
        (f"{WAIT}, {{type: agent, prompt: x}}, {RUN}", "at least 2s; agents and commands not counted"),
        (
            "{type: wait, duration: 1h30m}, {type: shell_command, command: x, timeout: 5s}",
            "at least 1h30m; commands not",
        ),
        ("{type: wait, duration: '{{ at }}'}", "at least 0s; waits not counted"),
        ("{type: wait, until: '{{ at }}', timeout: 10s}", "at least 0s; waits not counted"),
        (f"{{{MAYBE}, then: [{{type: wait, duration: 5s}}], else: [{WAIT}]}}", "at least 2s; branches not counted"),
        (f"{{{MAYBE}, then: [{RUN}]}}, {WAIT}", "at least 2s; commands not counted"),
        (f"{{{MAYBE}, then: [{{type: exit}}]}}, {WAIT}", "at least 0s; branches not counted"),
        (f"{{type: foreach, items: [1, 2], body: [{WAIT}]}}", "about 4s"),
        (f"{{type: foreach, items: '{{{{ at }}}}', body: [{WAIT}]}}", "at least 0s; loops not counted"),
        (
            f"{{type: foreach, items: [1, 2], body: [{WAIT}, {{{MAYBE}, then: [{{type: break}}]}}]}}",
            "at least 2s; loops not counted",
        ),
        (
            f"{{type: while, condition: '{{{{ at }}}}', max_iterations: 3, body: [{WAIT}]}}",
            "at least 0s; loops not counted",
        ),
        (f"{{{FAN}: [1, 2, 3], sub_agent_task: waits}}", "about 4s"),
        (f"{{{FAN}: [1, 2, 3], sub_agent_task: talks}}", "at least 0s; agents not counted"),
        (f"{{{FAN}: '{{{{ at }}}}', sub_agent_task: waits}}", "at least 0s; tasks not counted"),
        (f"{{{FAN}: [1, 2, 3], sub_agent_task: waits, wait_for_all: false}}", "about 2s"),
    ],
)
def test_the_duration_counts_waits_and_names_the_rest(steps: str, expected: str, plan: Explain) -> None:
    tasks = {"waits": {"steps": [wait()]}, "talks": {"steps": [{"type": "agent", "prompt": "x", "timeout": "1s"}]}}
    assert plan(f"[{steps}]", sub_agent_tasks=tasks).estimated_duration.startswith(expected)


@pytest.mark.parametrize(
    ("handling", "expected"),
    [
        (f"on_failure: [{RUN}]", "at least 2s; commands not counted"),
        ("on_error: retry_workflow", "at least 2s; retries not counted"),
        ("on_error: continue", "about 2s"),
    ],
)
def test_the_duration_counts_what_is_done_about_a_failure(handling: str, expected: str, plan: Explain) -> None:
    assert plan([wait()], error_handling=yaml.safe_load(handling)).estimated_duration == expected


# --- what is wrong


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("type: user_message, message: '{{ unset.length }}'", "cannot read property 'length' of null"),
        ("type: shell_command, command: 'rm -r {{ unset }}/build'", "has no value (null)"),
        ("type: conditional, condition: unset.x, then: []", "cannot read property 'x' of null"),
        ("type: foreach, items: '{{ mode }}', body: []", "has to be a list, not 'fast'"),
        ("type: while, condition: true, max_iterations: '{{ mode }}', body: []", "a whole number, 1 or more"),
        (
            "type: parallel_foreach, items: [1], sub_agent_task: t, max_parallel: '{{ count - 4 }}'",
            "has to be a whole number, 1 or more, not 0",
        ),
        ("type: agent, agent: nobody, prompt: x", "no such agent: nobody"),
        ("type: wait, duration: '{{ mode }}'", "'fast' is not a duration"),
    ],
)
def test_a_step_that_would_fail_says_so_and_the_plan_goes_on(given: str, problem: str, plan: Explain) -> None:
    following = "{id: next, type: user_message, message: x}"
    found = plan(f"[{{id: bad, {given}}}, {following}]", sub_agent_tasks={"t": {"steps": [wait()]}})
    assert problem in " ".join(step(found, "bad").problems)
    assert problem in " ".join(found.to_json()["steps"][0]["problems"])
    assert found.steps[-1].step_id == "next"


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [({"n": "two"}, "'n' has to be of type integer"), ({"m": 1}, "unknown parameter 'm'")],
)
def test_inputs_that_do_not_fit_are_refused(inputs: dict[str, Any], problem: str, plan: Explain) -> None:
    with pytest.raises(InputError, match=problem):
        plan([say("x")], inputs)


@pytest.mark.parametrize(
    "more",
    [
        {"default_state": {"raw": {"x": "{{ inputs.name.length }}"}}, "state_schema": {}},
        {
            "default_state": {"raw": {"x": None}},
            "state_schema": {"computed": {"y": {"from": "raw.x", "transform": "input.z"}}},
        },
    ],
)
def test_a_run_that_could_not_begin_has_no_plan(more: dict[str, Any], plan: Explain) -> None:
    with pytest.raises(ExpressionError, match="cannot read property"):
        plan([say("x")], **more)


def test_no_value_can_break_a_line_or_the_terminal(plan: Explain) -> None:
    found = plan([say("{{ inputs.name }}" * 3)], {"name": "a\n\x1b[2J" + "b" * 200})
    assert len(found.lines()) == 4
    assert all(len(line) < 200 and line.isprintable() for line in found.lines())
