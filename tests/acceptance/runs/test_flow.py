"""`sidecar flow`, as a user has it: what goes in, what comes out, and with which exit code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.kit import SIDECAR

if TYPE_CHECKING:
    from tests.kit import Project

GREETING: dict[str, Any] = {
    "description": "Greets somebody.",
    "inputs": {
        "who": {"type": "string", "required": True, "description": "Whom."},
        "times": {"type": "integer", "default": 1},
        "loud": {"type": "boolean", "default": False},
    },
    "state_schema": {"raw": {"said": "string"}},
    "steps": [
        {
            "id": "say",
            "type": "shell_command",
            "command": "echo {{ inputs.who }} {{ inputs.times }} {{ inputs.loud }}",
            "output_format": "text",
            "state_update": {"path": "raw.said"},
        },
        {"id": "tell", "type": "user_message", "message": "said: {{ said }}"},
    ],
}


@pytest.fixture
def greeting(flows: Project) -> Project:
    flows.workflow("greeting", **GREETING)
    return flows


def failing(flows: Project, *arguments: str) -> str:
    """What a command says that ends with 2: one line."""
    code, out, err = flows.run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), (out, err)
    return err


def test_without_proc_a_run_is_refused_in_plain_words(greeting: Project) -> None:
    probe = ["unshare", "-rm", "true"]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("no user and mount namespaces on this machine")
    hidden = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    command = [*hidden, SIDECAR, "flow", "run", "greeting", "Ada"]
    ended = subprocess.run(
        command, cwd=greeting.root, env=greeting.environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended
    assert ended.stderr.startswith("sidecar: no agent or command can be started here: /proc is not mounted")


def test_settings_that_are_wrong_are_told_all_at_once_with_their_lines(greeting: Project) -> None:
    (greeting.state / "config.yaml").write_text("kill_after_s: soon\nkeep_runs: 0\n")
    greeting.environment["SIDECAR_WATCHER"] = "eyes"
    path = greeting.state / "config.yaml"
    assert failing(greeting, "flow", "run", "greeting", "Ada") == (
        f"sidecar: {path}:1: kill_after_s: has to be a number; {path}:2: keep_runs: has to be 1 or more, not 0; "
        "SIDECAR_WATCHER: 'eyes' is not 'auto', 'inotify', 'watchdog' or 'polling'\n"
    )


# --- the list


def test_the_list_has_every_workflow_with_its_parameters(greeting: Project) -> None:
    found = {one["name"]: one for one in greeting.json("flow", "list", "--format", "json")["workflows"]}
    assert found["greeting"] | {"parameters": None} == {
        "name": "greeting",
        "description": "Greets somebody.",
        "source": "project",
        "parameters": None,
    }
    assert found["greeting"]["parameters"][0] == {
        "name": "who",
        "type": "string",
        "required": True,
        "description": "Whom.",
    }
    code, out, _ = greeting.run("flow", "list", "--format", "yaml", "--source", "local")
    assert code == 0
    assert [one["name"] for one in yaml.safe_load(out)["workflows"]] == ["counting", "greeting"]


def test_a_broken_file_is_told_and_hides_no_other_workflow(greeting: Project) -> None:
    (greeting.state / "workflows" / "broken.yaml").write_text("steps: [{type: nonsense}]\n")
    code, out, err = greeting.run("flow", "list", "-v", "--source", "project")
    assert code == 2
    assert "broken.yaml:1" in err
    assert "greeting  project  Greets somebody." in out
    assert "who (string, required)" in out


# --- what goes in


def test_words_fill_the_required_parameters_and_p_names_any(greeting: Project) -> None:
    run = greeting.json("flow", "run", "greeting", "you all", "-p", "times=3", "-p", "loud=true", "--json")
    assert (run["status"], run["workflow"], run["state"]["said"]) == ("completed", "greeting", "you all 3 true")
    assert run["messages"] == ["said: you all 3 true"]
    assert {"run_id", "workspace", "step", "iteration", "started_at", "ended_at", "reason", "signals", "agents"} <= set(
        run
    )


def test_var_works_with_a_warning_and_p_beats_it(greeting: Project) -> None:
    code, out, err = greeting.run("flow", "greeting", "--var", "who=a", "--var", "times=5", "-p", "who=b", "--json")
    assert code == 0
    assert json.loads(out)["state"]["said"] == "b 5 false"
    assert "--var is deprecated" in err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "parameter 'who' is required"),
        (["a", "-p", "tims=1"], "did you mean 'times'?"),
        (["a", "-p", "times=many"], "times has to be a whole number, such as 3, not 'many'"),
        (["a", "-p", "times"], "-p takes KEY=VALUE"),
    ],
)
def test_a_wrong_parameter_is_one_line_with_the_usage(greeting: Project, arguments: list[str], problem: str) -> None:
    told = failing(greeting, "flow", "run", "greeting", *arguments)
    assert problem in told
    assert "usage: sidecar flow run greeting WHO [-p times=INTEGER] [-p loud=BOOLEAN]" in told
    assert not (greeting.state / "sidecar.db").exists()


def test_an_unknown_workflow_or_command_names_the_nearest(greeting: Project) -> None:
    assert "available: greeting" in failing(greeting, "flow", "run", "greting", "x")
    assert "did you mean 'status'" in failing(greeting, "stauts")


def test_a_workspace_binds_the_run_and_fills_the_parameter_of_that_name(flows: Project) -> None:
    (flows.root / "area").mkdir()
    flows.workflow(
        "bound",
        {"type": "shell_command", "command": "echo {{ inputs.workspace }} > seen"},
        inputs={"workspace": {"type": "string", "required": True}},
    )
    run = flows.json("flow", "bound", "--workspace", "area", "--json")
    assert run["workspace"] == str(flows.root / "area")
    assert flows.lines("seen") == ["area"]


# --- what comes out


def test_a_dry_run_tells_the_plan_and_does_nothing(flows: Project) -> None:
    flows.workflow("writing", {"id": "write", "type": "shell_command", "command": "touch written"})
    code, out, _ = flows.run("flow", "run", "writing", "--dry-run")
    assert code == 0
    assert "write: run `touch written`" in out
    assert flows.json("flow", "run", "writing", "--dry-run", "--json")["steps"][0]["step_id"] == "write"
    assert not (flows.root / "written").exists()
    assert not (flows.state / "sidecar.db").exists()


def test_the_lines_tell_what_happens_and_quiet_only_the_result(greeting: Project) -> None:
    code, out, err = greeting.run("flow", "greeting", "you")
    assert (code, err) == (0, "")
    assert [word for word in ("started greeting", "say | you 1 false", "said: you", "completed") if word in out]
    assert out.rstrip().endswith("completed")
    code, out, err = greeting.run("flow", "greeting", "you", "-q")
    assert (code, out, err) == (0, f"completed {greeting.journalled()[0].run_id}\n", "")


def test_a_command_that_prints_an_object_without_a_newline_is_shown_with_it_always(flows: Project) -> None:
    """Twenty times, because what comes first is by chance: its last line, or that it has ended."""
    commands = [f"printf '{{\"n\": {number}}}'" for number in range(20)]
    steps = [{"id": f"s{n}", "type": "shell_command", "command": command} for n, command in enumerate(commands)]
    flows.workflow("objects", *steps)
    code, out, err = flows.run("flow", "run", "objects")
    assert code == 0, err
    assert [line.partition(" ")[2] for line in out.splitlines() if "|" in line] == [
        f's{number} | {{"n": {number}}}' for number in range(20)
    ]


def test_json_events_are_a_line_each_in_order(greeting: Project) -> None:
    code, out, _ = greeting.run("flow", "greeting", "you", "--json-events", "--json")
    *events, run = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [events[0]["kind"], events[-1]["kind"]] == ["run_started", "run_ended"]
    kept = [event["seq"] for event in events if event["seq"]]
    assert kept == sorted(kept)
    assert run["state"]["said"] == "you 1 false"


def test_numbers_that_json_has_no_word_for_are_null_to_programs(flows: Project) -> None:
    update = {"type": "state_update", "path": "raw.n", "value": "{{ [0 / 0, 1 / 0, 1] }}"}
    again = {"type": "foreach", "items": "{{ n }}", "body": [{"type": "user_message", "message": "{{ item }}"}]}
    flows.workflow("odd", update, again, default_state={"raw": {"n": None}})

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    run = json.loads(flows.run("flow", "run", "odd", "--json")[1], parse_constant=refuse)
    assert (run["state"]["n"], run["messages"]) == ([None, None, 1], ["NaN", "Infinity", "1"])
    lines = flows.run("flow", "run", "odd", "--json-events")[1].splitlines()
    assert len([json.loads(line, parse_constant=refuse) for line in lines]) > 3


def test_a_failing_step_is_exit_2_and_says_how_to_go_on(flows: Project) -> None:
    flows.workflow("failing", {"id": "bad", "type": "shell_command", "command": "echo oh no >&2; exit 4"})
    code, out, err = flows.run("flow", "run", "failing")
    assert code == 2
    assert "failed: the command ended with exit code 4: oh no" in out
    assert err.endswith(f"to continue: sidecar resume {flows.journalled()[0].run_id}\n")


def test_a_limit_is_exit_3(flows: Project) -> None:
    flows.touch("go")
    content = yaml.safe_load((flows.state / "workflows" / "counting.yaml").read_text())
    flows.workflow("limited", **content, limits={"max_iterations": 2})
    run = flows.json("flow", "run", "limited", "--json", code=3)
    assert (run["status"], run["limit"]) == ("failed", "max_iterations")
    assert flows.lines("ran") == ["0", "1"]


def test_who_has_reached_a_limit_is_told_how_to_go_on_and_can(flows: Project) -> None:
    flows.touch("go")
    content = yaml.safe_load((flows.state / "workflows" / "counting.yaml").read_text())
    flows.workflow("limited", **content, limits={"max_iterations": 2})
    code, _, err = flows.run("flow", "run", "limited", "-q")
    run_id = flows.journalled()[0].run_id
    way = f"to continue: sidecar resume {run_id} --with-changes once the workflow allows more, or a new run\n"
    assert (code, err.endswith(way)) == (3, True)
    flows.workflow("limited", **content, limits={"max_iterations": 3})
    assert flows.run("resume", run_id, "-q", "--with-changes")[0] == 0
    assert flows.lines("ran") == ["0", "1", "2"]


# --- a reader that is slow, or gone


def test_a_reader_that_does_not_read_holds_up_no_run(flows: Project) -> None:
    flows.workflow("talking", {"type": "shell_command", "command": "yes a line that is longer than most | head -20000"})
    process = flows.start("flow", "run", "talking")
    flows.until(
        lambda: (
            (flows.state / "sidecar.db").exists() and flows.journalled() and flows.journalled()[0].status == "completed"
        )
    )
    assert process.poll() is None, "there was nothing that nobody had read"
    code, out, _ = flows.finished(process)
    assert code == 0
    assert out.rstrip().endswith("completed")


def test_a_reader_that_has_gone_ends_no_run(flows: Project) -> None:
    read, write = os.pipe()
    os.close(read)
    process = flows.start("flow", "run", "counting", stdout=write, stderr=subprocess.DEVNULL)
    os.close(write)
    flows.touch("go")
    assert process.wait(timeout=120) == 0
    assert flows.lines("ran") == ["0", "1", "2"]


# --- Ctrl-C and SIGTERM


@pytest.mark.parametrize(
    ("arguments", "closed"),
    [
        (("flow", "run", "short"), (1,)),
        (("flow", "run", "short"), (0, 1, 2)),
        (("status",), (0, 1, 2)),
        (("flow", "list"), (2,)),
    ],
)
def test_streams_that_the_caller_has_closed_change_nothing(
    flows: Project, arguments: tuple[str, ...], closed: tuple[int, ...]
) -> None:
    flows.workflow("short", {"type": "shell_command", "command": "echo done >> ran"})

    def close() -> None:
        for number in closed:
            os.close(number)

    code, _, err = flows.finished(flows.start(*arguments, preexec_fn=close))
    assert (code, err) == (0, "")
    if arguments == ("flow", "run", "short"):
        assert flows.lines("ran") == ["done"]


def test_output_that_cannot_be_written_is_told_in_one_line(flows: Project) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        code, _, err = flows.finished(flows.start("flow", "list", stdout=full))
    assert (code, err) == (2, "sidecar: cannot write: No space left on device\n")


@pytest.mark.parametrize("file", ["config.yaml", "sidecar.db"])
def test_a_server_that_cannot_begin_says_why_in_one_line(flows: Project, file: str) -> None:
    (flows.state / file).write_text("kill_after_s: [\n")
    code, out, err = flows.run("serve")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"sidecar: {flows.state / file}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_first_signal_ends_the_agents_and_the_run_can_be_resumed(flows: Project, number: int, code: int) -> None:
    process = flows.start("flow", "run", "counting", "--json")
    flows.until_exists("at-0")
    process.send_signal(number)
    out = process.communicate(timeout=120)[0]
    run = json.loads(out)
    assert (process.returncode, run["status"]) == (code, "interrupted")
    shown = "".join(flows.run(*words)[1] for words in (("status",), ("status", run["run_id"]), ("logs", run["run_id"])))
    lines = [line for line in shown.splitlines() if "interrupted" in line]
    assert [line.count("interrupted") for line in lines] == [1, 1, 1, 1]  # it is its own reason
    flows.touch("go")
    assert flows.json("resume", run["run_id"][:12], "--json")["status"] == "completed"
    assert flows.lines("ran") == ["0", "0", "1", "2"]


def test_a_second_signal_does_not_wait_for_the_grace(flows: Project) -> None:
    flows.environment["SIDECAR_KILL_AFTER_S"] = "300"
    flows.workflow(
        "deaf", {"type": "shell_command", "command": "trap 'touch asked' TERM; touch at; while :; do sleep 0.1; done"}
    )
    process = flows.start("flow", "run", "deaf", "-q")
    flows.until_exists("at")
    process.send_signal(signal.SIGINT)
    flows.until_exists("asked")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert flows.tagged() == []


def test_a_stop_that_became_an_abort_says_so_wherever_the_end_is_shown(flows: Project) -> None:
    process = flows.start("flow", "run", "counting", "--json")
    flows.until_exists("at-0")
    code, out, err = flows.run("stop", "--all", "--reason", "lunch", "--timeout", "0.2")
    assert code == 0, (out, err)
    code, out, err = flows.finished(process)
    told = json.loads(out)
    reason = "lunch (not stopped within 0.2 s)"
    assert (code, told["status"], told["reason"]) == (2, "aborted", reason)
    assert flows.json("status", told["run_id"], "--json")["runs"][0]["reason"] == reason
    assert flows.events(told["run_id"])[-1].data["reason"] == reason
    assert reason in err


# --- commands


def test_a_command_that_is_a_list_has_no_shell(flows: Project) -> None:
    hostile = "a b; touch pwned $(touch pwned) *"
    flows.workflow(
        "listed",
        {
            "id": "say",
            "type": "shell_command",
            "command": ["printf", "<%s>", "{{ x }}", "$HOME; touch pwned", "in {{ x }}"],
            "state_update": {"path": "raw.said"},
        },
        {"type": "shell_command", "command": ["sh", "-c", "cat; printf '%s' \"$1\" > from-input", "sh", "{{ x }}"]},
        {"id": "end", "type": "agent_shell_command", "command": ["touch", "{{ x }}"]},
        state_schema={"raw": {"said": "string", "x": "string"}},
        default_state={"raw": {"x": hostile}},
    )
    done = flows.json("flow", "run", "listed", "--json")
    assert done["state"]["said"] == f"<{hostile}><$HOME; touch pwned><in {hostile}>"
    assert (flows.root / "from-input").read_text() == hostile
    assert (flows.root / hostile).exists()
    assert not (flows.root / "pwned").exists()


def test_a_list_is_shown_as_a_person_would_type_it(flows: Project) -> None:
    flows.workflow(
        "listed",
        {"type": "shell_command", "command": ["git", "commit", "-m", "fix {{ inputs.what }}", "{{ uuid() }}"]},
        inputs={"what": {"type": "string", "default": "it's"}},
    )
    code, out, err = flows.run("flow", "run", "listed", "--dry-run")
    assert (code, err) == (0, "")
    assert """run `git commit -m 'fix ''it'"'"'s' {{ uuid() }}`""" in out
    assert "git commit -m fix {{ inputs.what }}" in flows.run("graph", "listed", "--format", "ascii")[1]


def test_a_list_whose_program_is_not_there_fails_its_step(flows: Project) -> None:
    flows.workflow("listed", {"type": "shell_command", "command": ["no-such-program", "a"]})
    code, _, err = flows.run("flow", "run", "listed")
    assert code == 2
    assert "exit code 127" in err


def test_a_workflow_with_a_value_that_the_shell_would_run_does_not_begin(flows: Project) -> None:
    flows.workflow(
        "unsafe",
        {"type": "shell_command", "command": "touch began"},
        {"type": "shell_command", "command": "y={{ inputs.x }}; timeout 5 $y"},
        inputs={"x": {"type": "string", "default": "ls"}},
    )
    code, _, err = flows.run("flow", "run", "unsafe")
    assert code == 2
    assert "the name of a command has to be written out" in err
    assert not (flows.root / "began").exists()
