"""`sidecar validate`, as a user has it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.kit import call

WORKFLOWS = ".swissarmyhammer/workflows"
GOOD = "steps: [{type: user_message, message: hello}]\n"
BAD = """\
state_schema:
  raw: {files: array}
steps:
  - type: user_message
    message: "{{ fils }}"
  - type: break
"""
DOUBTFUL = 'steps: [{type: user_message, message: "{{ inputs.x }}"}]\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / WORKFLOWS).mkdir(parents=True)
    return tmp_path


def validate(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return call("validate", *arguments, cwd=root)


def write(root: Path, name: str, text: str) -> None:
    (root / WORKFLOWS / f"{name}.yaml").write_text(text)


def test_without_a_name_every_workflow_of_the_project_is_checked(root: Path) -> None:
    write(root, "good", GOOD)
    write(root, "bad", BAD)
    ended = validate(root)
    assert ended.stdout.splitlines() == [
        f"{WORKFLOWS}/bad.yaml:5: unknown name 'fils'; did you mean 'files'?",
        f"{WORKFLOWS}/bad.yaml:6: `break` is outside of any loop",
        "2 workflows, 2 problems",
    ]
    assert (ended.returncode, ended.stderr) == (2, "")


def test_a_name_and_a_file_choose_what_is_checked(root: Path) -> None:
    write(root, "good", GOOD)
    write(root, "bad", BAD)
    (root / "elsewhere.yml").write_text(GOOD)
    ended = validate(root, "good", "elsewhere.yml", "plan")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3 workflows, no problems\n", "")
    assert validate(root, f"{WORKFLOWS}/bad.yaml").returncode == 2


def test_warnings_are_told_apart_and_do_not_fail(root: Path) -> None:
    write(root, "doubtful", DOUBTFUL)
    ended = validate(root)
    assert ended.stdout.splitlines() == [
        f"{WORKFLOWS}/doubtful.yaml:1: warning: no inputs are declared: inputs.x is always undefined",
        "1 workflow, no problems, 1 warning",
    ]
    assert ended.returncode == 0


REFUSED = [
    'S=sh; $S -c "echo {{ x }}"',
    '${SHELL:-sh} -c "echo {{ x }}"',
    'c=-c; sh $c "echo {{ x }}"',
    "printf '%s\\0' {{ x }} | xargs -0 -n1 sh -c",
    "sh -c 'eval \"$1\"' sh {{ x }}",
    "export CMD={{ x }}; sh -c 'eval \"$CMD\"'",
    '. /dev/stdin <<< "{{ x }}"',
    "i={{ x }}; arr[i]=1",
    "timeout 5 {{ x }}",
    "xargs {{ x }}",
    "find . -exec {{ x }} \\;",
]
WARNED_OF = [
    'python3 -c"print({{ x }})"',
    'perl -e"print {{ x }}"',
    "make {{ x }}",
    "git -c {{ x }} status",
    "ssh -o {{ x }} host uptime",
    "tar cf all.tar {{ x }}",
    "GIT_SSH_COMMAND={{ x }} git fetch",
    ["sh", "-c", "echo {{ x }}"],
]
QUIET = ["ls -- {{ x }} '{{ x }}' \"{{ x }}\" $(cat < {{ x }})", ["ls", "--", "{{ x }}"]]


def test_a_value_that_the_shell_would_run_is_an_error_and_one_that_another_program_may_run_a_warning(
    root: Path,
) -> None:
    steps = [{"type": "shell_command", "command": command} for command in (*REFUSED, *WARNED_OF, *QUIET)]
    write(root, "commands", yaml.safe_dump({"state_schema": {"raw": {"x": "string"}}, "steps": steps}, width=1000))
    told = json.loads(validate(root, "--json").stdout)["findings"]
    assert [finding["severity"] for finding in told] == ["error"] * len(REFUSED) + ["warning"] * len(WARNED_OF)
    for finding in told[: len(REFUSED)]:
        assert "Write `command` as a list, or pass the value in `env:`; `| raw` turns this off" in finding["message"]


@pytest.mark.parametrize("command", [[], [""], ["ls", 1], {"a": "b"}, "", ["ls", ["a"]]])
def test_a_command_is_a_text_or_a_list_of_texts(root: Path, command: object) -> None:
    write(root, "wrong", yaml.safe_dump({"steps": [{"type": "shell_command", "command": command}]}))
    assert validate(root).returncode == 2


def test_json_is_for_programs(root: Path) -> None:
    write(root, "bad", BAD)
    ended = validate(root, "--json")
    told = json.loads(ended.stdout)
    assert (ended.returncode, told["valid"], len(told["findings"])) == (2, False, 2)
    assert told["findings"][0] == {
        "file": f"{WORKFLOWS}/bad.yaml",
        "line": 5,
        "column": 18,
        "severity": "error",
        "message": "unknown name 'fils'; did you mean 'files'?",
    }
    write(root, "bad", DOUBTFUL)
    told = json.loads(validate(root, "--json").stdout)
    assert (told["valid"], [finding["severity"] for finding in told["findings"]]) == (True, ["warning"])


def test_what_is_not_yaml_or_not_there_is_a_finding_and_not_a_crash(root: Path) -> None:
    (root / "torn.yaml").write_text("steps: [\n")
    (root / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    (root / "text.yaml").write_text("only a text\n")
    ended = validate(root, "torn.yaml", "bytes.yaml", "text.yaml", "missing.yaml")
    assert ended.returncode == 2
    assert [line.partition(":")[0] for line in ended.stdout.splitlines()[:-1]] == [
        "torn.yaml",
        "bytes.yaml",
        "text.yaml",
        "missing.yaml",
    ]
    assert ended.stderr == ""


def test_a_name_that_nobody_has_is_bad_usage_with_the_names_there_are(root: Path) -> None:
    ended = validate(root, "implemnt")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("sidecar: no such workflow: implemnt; available: implement,")
    assert ended.stderr.count("\n") == 1


def test_what_a_file_says_cannot_command_the_terminal(root: Path) -> None:
    write(root, "w", 'steps: [{type: user_message, message: "{{ 1 + \\e]0;title\\a }}"}]\n')
    ended = validate(root)
    assert ended.returncode == 2
    assert all(character.isprintable() or character == "\n" for character in ended.stdout)


def test_a_project_without_workflows_has_no_problems(root: Path) -> None:
    ended = validate(root)
    assert (ended.returncode, ended.stdout) == (0, "no workflows, no problems\n")


def test_a_workflow_without_a_step_is_refused_by_validate_and_by_flow_run_alike(root: Path) -> None:
    write(root, "empty", "description: x\nsteps: []\n")
    told = f"{WORKFLOWS}/empty.yaml:2: `steps` is empty: there is nothing to do"
    checked = validate(root)
    assert (checked.returncode, checked.stdout.splitlines()[0][: len(told)]) == (2, told)
    ended = call("flow", "run", "empty", cwd=root)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert told in ended.stderr


WRONG = """\
state_schema:
  raw: {files: array}
steps:
  - type: user_message
    message: "{{ fils }}"
  - {type: parallel_foreach, items: "{{ files }}", sub_agent_task: nobody}
  - {type: include_workflow, workflow: nowhere}
  - type: while
    condition: "{{ files.length }}"
    body:
      - {type: user_message, message: "{{ another }}"}
"""
FOUND = [
    "unknown name 'fils'",
    "unknown sub-agent task 'nobody'",
    "no such workflow: nowhere",
    "unknown name 'another'",
]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (f"descripton: x\n{WRONG}", "unknown key 'descripton'"),
        (f"description: x\n{WRONG}description: y\n", "'description' is there twice"),
        (f"description: [x]\n{WRONG}", "`description` has to be text"),
        (f"limits: {{max_duration: soon}}\n{WRONG}", "'soon' is not a duration"),
        (f"yes: x\n{WRONG}", "the key True is not text"),
        (WRONG.replace("    message:", "    sevrity: x\n    message:"), "unknown key 'sevrity'"),
        (WRONG.replace('condition: "{{ files.length }}"', "max_iterations: 3"), "`condition` is missing"),
        (WRONG.replace("type: while", "type: whille"), "unknown step type 'whille'"),
        (WRONG.replace("sub_agent_task: nobody", "sub_agent_task: nobody, zzz: 1"), "unknown key 'zzz'"),
    ],
)
def test_what_is_wrong_in_structure_hides_no_other_problem(root: Path, wrong: str, problem: str) -> None:
    write(root, "w", wrong)
    found = [finding["message"] for finding in json.loads(validate(root, "--json").stdout)["findings"]]
    for told in (problem, *FOUND):
        assert [message for message in found if told in message], (told, found)
    assert len(found) == 1 + len(FOUND), found


def test_a_name_that_a_wrong_part_may_have_declared_is_not_called_unknown(root: Path) -> None:
    write(root, "w", "stat_schema: {raw: {files: array}}\n" + 'steps: [{type: user_message, message: "{{ files }}"}]\n')
    found = json.loads(validate(root, "--json").stdout)["findings"]
    assert [finding["message"].partition(";")[0] for finding in found] == ["unknown key 'stat_schema'"]


def test_an_import_that_is_wrong_hides_nothing_of_its_importer(root: Path) -> None:
    write(root, "part", "zzz: 1\nsub_agent_tasks: {t: {steps: [{type: user_message, message: '{{ lost }}'}]}}\n")
    steps = "[{type: parallel_foreach, items: [1], sub_agent_task: t}, {type: user_message, message: '{{ nobody }}'}]"
    write(root, "w", f"imports: [part.yaml]\nsteps: {steps}\n")
    found = json.loads(validate(root, "w", "--json").stdout)["findings"]
    assert {finding["message"].partition(":")[0].partition(";")[0] for finding in found} == {
        "unknown name 'nobody'",
        "unknown key 'zzz'",
        "unknown name 'lost'",
    }


BARE = """\
limits:
  max_duration: 90
error_handling:
  on_error: retry_workflow
  retry_delay: 2
steps:
  - type: shell_command
    command: make
    timeout: 30
    on_error: retry
    retry_delay: "5"
  - type: foreach
    items: [1]
    body:
      - type: wait
        duration: 0.5
  - type: wait
    until: true
    interval: 999
    timeout: 20
"""
CLEAR = """\
limits: {max_duration: 2h}
steps:
  - {type: shell_command, command: make, timeout: 30ms, on_error: retry, retry_delay: 0}
  - {type: wait, duration: 0}
  - {type: wait, duration: 1000}
  - {type: wait, duration: "{{ 30 }}"}
  - {type: wait, until: true, interval: 100ms, timeout: "5000"}
"""


def test_a_small_number_without_a_unit_in_a_duration_is_a_warning_with_both_readings(root: Path) -> None:
    write(root, "bare", BARE)
    ended = validate(root)
    told = "without a unit means milliseconds"
    assert ended.stdout.splitlines() == [
        f"{WORKFLOWS}/bare.yaml:2: warning: `max_duration`: 90 {told}; write 90s for seconds, or 90ms",
        f"{WORKFLOWS}/bare.yaml:5: warning: `retry_delay`: 2 {told}; write 2s for seconds, or 2ms",
        f"{WORKFLOWS}/bare.yaml:9: warning: `timeout`: 30 {told}; write 30s for seconds, or 30ms",
        f"{WORKFLOWS}/bare.yaml:11: warning: `retry_delay`: 5 {told}; write 5s for seconds, or 5ms",
        f"{WORKFLOWS}/bare.yaml:16: warning: `duration`: 0.5 {told}; write 0.5s for seconds, or 0.5ms",
        f"{WORKFLOWS}/bare.yaml:19: warning: `interval`: 999 {told}; write 999s for seconds, or 999ms",
        f"{WORKFLOWS}/bare.yaml:20: warning: `timeout`: 20 {told}; write 20s for seconds, or 20ms",
        "1 workflow, no problems, 7 warnings",
    ]
    assert ended.returncode == 0


def test_a_duration_that_can_be_read_in_one_way_only_is_no_warning(root: Path) -> None:
    write(root, "clear", CLEAR)
    assert validate(root).stdout == "1 workflow, no problems\n"


def test_a_small_number_in_the_limits_of_an_agent_that_a_step_names_is_a_warning_in_its_file(root: Path) -> None:
    (root / ".swissarmyhammer/agents").mkdir()
    text = "adapter: claude\nlimits:\n  timeout: 20\n  idle_timeout: 3m\n"
    (root / ".swissarmyhammer/agents/fixer.yaml").write_text(text)
    steps = "[{type: agent, prompt: x, agent: fixer}, {type: agent, prompt: y, agent: fixer}]"
    write(root, "w", f"steps: {steps}\n")
    told = "`timeout`: 20 without a unit means milliseconds; write 20s for seconds, or 20ms"
    assert validate(root).stdout.splitlines() == [
        f".swissarmyhammer/agents/fixer.yaml:3: warning: {told}",
        "1 workflow, no problems, 1 warning",
    ]
