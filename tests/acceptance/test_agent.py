"""`sidecar agent`, as a user has it: real processes, real signal files, real signals."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
import yaml

from tests.kit import SIDECAR, Project, until

if TYPE_CHECKING:
    from collections.abc import Iterator

DEAF = "trap '' TERM INT HUP; setsid sh -c \"trap '' TERM; touch born; while :; do sleep 50; done\" & wait; sleep 100"


class AgentProject(Project):
    """A project with a workspace, and agents that are one shell script each."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, SIDECAR_KILL_AFTER_S="0.5")
        (self.state / "workspaces" / "ws").mkdir(parents=True)

    def begin(self, script: str, *options: str, prompt: str = "go") -> subprocess.Popen[str]:
        """`agent run`, with an agent that does this."""
        command = f"command={json.dumps(['sh', '-c', script])}"
        return self.start("agent", "run", "command", "-p", command, *options, prompt)

    def script(self, script: str, *options: str, prompt: str = "go") -> tuple[int, str, str]:
        return self.finished(self.begin(script, *options, prompt=prompt))

    def completed(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(arguments, *self.run(*arguments))

    def define(self, name: str, **definition: object) -> None:
        (self.state / "agents" / f"{name}.yaml").write_text(yaml.safe_dump(definition))

    def logs(self) -> str:
        return "".join(path.read_text() for path in self.state.glob("runs/*/agents/*.log"))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[AgentProject]:
    with AgentProject(tmp_path).alone() as project:
        yield project


# --- what goes in and what comes out


def test_the_prompt_goes_in_by_stdin_and_the_answer_comes_out(project: AgentProject) -> None:
    assert project.script("tr a-z A-Z", prompt="hello\nyou")[:2] == (0, "HELLO\nYOU\n")


def test_only_the_answer_goes_to_stdout_and_everything_about_it_to_stderr(project: AgentProject) -> None:
    code, out, err = project.script("echo answer; echo aside >&2")
    assert (code, out) == (0, "answer\n")
    lines = [line.partition(" ")[2] for line in err.splitlines()]
    assert lines[0].startswith("started agent:command, run ")
    assert "command | aside" in lines
    assert lines[-1] == "completed"


def test_a_failing_agent_is_exit_2_with_its_code_and_what_it_said(project: AgentProject) -> None:
    code, out, err = project.script("echo what I have; exit 3", "-q")
    assert (code, out) == (2, "what I have\n")
    assert err.startswith("sidecar: failed: agent 'command': it ended with exit code 3; to continue: sidecar resume ")
    assert err.count("\n") == 1


def test_a_program_that_is_not_there_fails_the_run_which_says_so(project: AgentProject) -> None:
    result = project.completed("agent", "run", "command", "-p", 'command=["no-such-program"]', "x", "-q")
    assert (result.returncode, result.stdout) == (2, "")
    assert "cannot find the program 'no-such-program'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_json_is_one_object_with_everything(project: AgentProject) -> None:
    code, out, err = project.script("echo '{\"a\": 1}'", "--json")
    run = json.loads(out)
    assert (code, err) == (0, "")
    assert (run["status"], run["exit_code"], run["ended"], run["survivors"]) == ("completed", 0, "exited", 0)
    assert (run["text"], run["structured"]) == ('{"a": 1}', {"a": 1})
    assert (run["workflow"], run["state"], run["messages"]) == ("agent:command", {"answer": '{"a": 1}'}, [])
    assert (run["rung"], run["session_id"], run["cost_usd"]) == ("exited", None, None)
    assert run["tokens"] == {"input": 0, "output": 0, "cached": 0}
    assert run["pid"] > 0
    assert run["duration_s"] > 0


def test_quiet_prints_the_final_answer_only(project: AgentProject) -> None:
    assert project.script("echo one; echo two; echo noise >&2", "-q") == (0, "one\ntwo\n", "")


def test_an_agent_of_ones_own_is_a_yaml_file(project: AgentProject) -> None:
    project.define(
        "greeter",
        description="Greets.",
        adapter="command",
        command=["sh", "-c", 'printf "%s|%s\\n" "$1" "$GREETING"', "sh"],
        prompt_via="argument",
        env={"GREETING": "hi"},
        prompt="Say {{ word }} to {{ who }}",
        parameters=[
            {"name": "word"},
            {"name": "who", "required": True},
            {"name": "loud", "type": "boolean", "default": False},
        ],
    )
    assert (
        project.completed("agent", "run", "greeter", "hello", "-p", "loud=true", "you").stdout
        == "Say hello to you|hi\n"
    )
    assert project.completed("agent", "greeter", "-p", "who=me", "bye", "-q").stdout == "Say bye to me|hi\n"


# --- a run like any other


def test_a_workspace_binds_the_run_and_is_where_the_agent_works(project: AgentProject) -> None:
    code, out, _ = project.script("pwd", "--workspace", "ws", "--json")
    run, workspace = json.loads(out), str((project.state / "workspaces" / "ws").resolve())
    assert (code, run["workspace"], run["text"]) == (0, workspace, workspace)


def test_while_it_works_the_status_has_it_and_what_was_interrupted_is_resumed(project: AgentProject) -> None:
    agent = project.begin("touch born; until [ -e go ]; do sleep 0.02; done; echo done")
    project.until_exists("born")
    (run,) = json.loads(project.completed("status", "--json").stdout)["runs"]
    assert (run["workflow"], run["status"], run["agents"][0]["name"]) == ("agent:command", "running", "command")
    agent.send_signal(signal.SIGINT)
    assert AgentProject.finished(agent)[0] == 130
    (project.root / "go").touch()
    resumed = project.completed("resume", run["run_id"], "--json")
    assert (resumed.returncode, json.loads(resumed.stdout)["state"]) == (0, {"answer": "done"})


def test_a_detached_agent_goes_on_by_itself(project: AgentProject) -> None:
    code, run_id, _ = project.script("until [ -e go ]; do sleep 0.02; done; touch did", "--detach", "-q")
    assert code == 0
    (project.root / "go").touch()
    project.until_exists("did")
    found = project.completed("logs", run_id.strip(), "-f").stdout
    assert "completed" in found


def test_a_dry_run_starts_no_agent(project: AgentProject) -> None:
    code, out, _ = project.script("touch born", "--dry-run")
    assert code == 0
    assert "have command do: go" in out
    assert not (project.root / "born").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["agent", "run", "nobody", "x"], "no such agent: nobody; available: "),
        (["agent", "run", "claude"], "agent 'claude': parameter 'prompt' is required"),
        (["agent", "run", "claude", "one", "two"], "a text needs quotes; usage: sidecar agent run claude PROMPT"),
        (["agent", "run", "claude", "x", "-p", "promt=y"], "did you mean 'prompt'?"),
        (["agent", "run", "command", "-p", "command=[sh", "x"], "command has to be a list in JSON"),
        (["agent", "run", "command", "-p", "command", "x"], "-p takes KEY=VALUE"),
        (["agent", "run", "command", "x"], "parameter 'command': an argv is a list"),
        (
            ["agent", "run", "command", "--workspace", "none", "-p", 'command=["true"]', "x"],
            "Workspace not found: none",
        ),
    ],
)
def test_bad_input_gets_one_line_that_says_what_would_be_right(
    project: AgentProject, arguments: list[str], said: str
) -> None:
    result = project.completed(*arguments)
    assert result.returncode == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (project.state / "runs").exists()


def test_a_tool_that_is_not_installed_says_how_to_point_to_it(project: AgentProject) -> None:
    project.environment["PATH"] = "/usr/bin:/bin"
    result = project.completed("agent", "run", "gemini", "hello")
    assert result.returncode == 2
    assert "SIDECAR_GEMINI=/path/to/gemini" in result.stderr


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_the_list_shows_built_in_and_own_agents(project: AgentProject, form: str) -> None:
    project.define(
        "reviewer", adapter="claude", description="Reviews.", prompt="Review {{ what }}", parameters=[{"name": "what"}]
    )
    out = project.completed("agent", "list", "--format", form).stdout
    if form == "table":
        assert [line.split()[:2] for line in out.splitlines()] == [
            ["claude", "builtin"],
            ["codex", "builtin"],
            ["command", "builtin"],
            ["gemini", "builtin"],
            ["reviewer", "project"],
        ]
        return
    agents = {agent["name"]: agent for agent in (json.loads if form == "json" else yaml.safe_load)(out)["agents"]}
    assert agents["reviewer"]["parameters"] == [{"name": "what", "type": "string", "required": True, "description": ""}]
    assert agents["command"]["source"] == "builtin"


def test_a_broken_definition_is_reported_with_its_place_and_hides_no_other(project: AgentProject) -> None:
    project.define("broken", adapter="claude", promt="x")
    result = project.completed("agent", "list")
    assert result.returncode == 2
    assert "broken.yaml:2: " in result.stderr
    assert "claude" in result.stdout


# --- signals


def test_an_abort_ends_a_deaf_tree_and_its_receipt_proves_it(project: AgentProject) -> None:
    agent = project.begin(DEAF, "-q")
    project.until_exists("born")
    written = project.completed("abort", "enough is enough", "--wait")
    assert written.returncode == 0
    assert "none left" in written.stdout
    code, out, err = AgentProject.finished(agent)
    assert (code, out) == (2, "")
    assert err.startswith("sidecar: aborted: enough is enough; to continue: ")
    receipt = json.loads((project.state / ".abort.receipt.json").read_text())
    assert (receipt["state"], receipt["survivors"], receipt["removed"]) == ("applied", 0, True)
    assert len(receipt["processes"]) >= 3
    assert {process["rung"] for process in receipt["processes"]} >= {"kill"}
    assert project.tagged() == []


def test_a_receipt_names_the_programs_and_never_what_was_said_to_them(project: AgentProject) -> None:
    script = 'sh -c "touch born; sleep 100; :" sh "$1" & wait'
    command = ["sh", "-c", script, "sh"]
    project.define("told", adapter="command", command=command, prompt_via="argument", prompt="{{ prompt }}")
    agent = project.start("agent", "run", "told", "the plan nobody else may read", "-q")
    project.until_exists("born")
    written = project.completed("abort", "enough", "--wait", "--json")
    assert AgentProject.finished(agent)[0] == 2
    text = (project.state / ".abort.receipt.json").read_text()
    processes = json.loads(text)["processes"]
    assert len(processes) >= 2
    assert {process["program"] for process in processes} <= {"sh", "sleep"}
    for shown in (text, written.stdout):
        assert "nobody else" not in shown
        assert "born" not in shown


@pytest.mark.parametrize("where", ["project", "workspace", "run"])
def test_an_abort_file_works_in_each_place(project: AgentProject, where: str) -> None:
    agent = project.begin("touch born; sleep 100", "--workspace", "ws")
    until((project.state / "workspaces" / "ws" / "born").exists)
    place = {
        "project": project.state,
        "workspace": project.state / "workspaces" / "ws",
        "run": next((project.state / "runs").iterdir()),
    }[where]
    (place / ".abort").touch()
    code, out, err = AgentProject.finished(agent)
    assert (code, out) == (2, "")
    assert "aborted: Unknown abort reason" in err
    assert not (place / ".abort").exists()


def test_a_stop_never_interrupts_an_agent_and_is_consumed_at_its_end(project: AgentProject) -> None:
    agent = project.begin("touch born; until [ -e go ]; do sleep 0.01; done; echo done")
    project.until_exists("born")
    assert project.completed("stop", "--all").returncode == 0
    (project.root / "go").touch()
    assert AgentProject.finished(agent)[:2] == (0, "done\n")
    assert not (project.state / ".stop").exists()
    assert json.loads((project.state / ".stop.receipt.json").read_text())["state"] == "applied"


# --- the terminal and the system


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_interrupt_ends_the_tree_by_the_ladder(project: AgentProject, number: signal.Signals, code: int) -> None:
    agent = project.begin("trap 'echo bye; exit 0' TERM; touch born; while :; do sleep 0.01; done")
    project.until_exists("born")
    agent.send_signal(number)
    found, out, err = AgentProject.finished(agent)
    assert (found, out) == (code, "")  # what is said by one that is being ended is no answer
    assert "sidecar: interrupted; to continue: sidecar resume " in err
    assert "bye" in project.logs()


def test_ctrl_c_on_a_terminal_is_for_the_sidecar_and_reaches_the_agent_through_the_ladder(
    project: AgentProject,
) -> None:
    """The agent has a session of its own: the terminal's SIGINT does not hit it, sidecar's SIGTERM does."""
    script = "trap 'echo INT' INT; trap 'echo TERM; exit' TERM; touch born; while :; do sleep 0.01; done"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(project.root)
        command = f"command={json.dumps(['sh', '-c', script])}"
        os.execve(SIDECAR, ["sidecar", "agent", "run", "command", "-p", command, "go"], project.environment)
    project.until_exists("born")
    os.write(terminal, b"\x03")
    shown = b""
    try:
        while data := os.read(terminal, 4096):
            shown += data
    except OSError:  # Linux says EIO when the other side has closed
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert b"interrupted; to continue: sidecar resume " in shown
    assert "TERM" in project.logs()
    assert "INT" not in project.logs()


def test_a_reader_that_goes_away_ends_no_agent_and_is_told_where_the_answer_is(project: AgentProject) -> None:
    agent = project.begin("touch born; until [ -e go ]; do sleep 0.02; done; echo answer", "-q")
    project.until_exists("born")
    assert agent.stdout is not None
    assert agent.stderr is not None
    agent.stdout.close()
    (project.root / "go").touch()
    assert agent.wait(120) == 2
    said = agent.stderr.read()
    agent.stderr.close()
    assert said.startswith("sidecar: completed, but the result cannot be written: Broken pipe; to read it: sidecar ")
    command = said.rpartition("; to read it: sidecar ")[2].split()
    assert json.loads(project.completed(*command).stdout)["state"]["answer"] == "answer"


@pytest.mark.parametrize("option", ["-q", "--json"])
def test_a_full_disk_behind_stdout_is_one_line(project: AgentProject, option: str) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        words = ["agent", "run", "command", "-p", 'command=["echo", "answer"]', option, "go"]
        code, _, err = project.finished(project.start(*words, stdout=full))
    assert (code, err.count("\n")) == (2, 1)
    assert "No space left on device" in err


def test_a_project_that_cannot_be_written_is_one_line(project: AgentProject) -> None:
    """A file where the directory of runs should be: that stops root too."""
    (project.state / "runs").write_text("")
    code, out, err = project.script("echo never")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert str(project.state / "runs") in err


def test_kill_9_of_the_owner_leaves_nothing(project: AgentProject) -> None:
    agent = project.begin(DEAF)
    project.until_exists("born")
    agent.kill()
    AgentProject.finished(agent)
    until(lambda: project.tagged() == [])


def test_what_a_dead_owner_and_its_sentinel_left_is_reaped_by_the_next_run(project: AgentProject) -> None:
    agent = project.begin("touch born; sleep 100")
    project.until_exists("born")
    owner = psutil.Process(agent.pid)
    sentinel = next(child for child in owner.children() if "sentinel" in " ".join(child.cmdline()))
    # Stopped first: otherwise whichever dies first lets the other one do its work.
    sentinel.suspend()
    owner.suspend()
    sentinel.kill()
    owner.kill()
    AgentProject.finished(agent)
    until(lambda: not sentinel.is_running() or sentinel.status() == psutil.STATUS_ZOMBIE)
    assert any(process.name() == "sleep" for process in project.tagged())
    code, out, err = project.script("echo next")
    assert (code, out) == (0, "next\n")
    assert "left by a run whose owner died" in err
    assert project.tagged() == []


# --- limits


def test_a_timeout_ends_the_agent_with_exit_3(project: AgentProject) -> None:
    project.define("slow", adapter="command", command=["sleep", "100"], limits={"timeout": "300ms"})
    result = project.completed("agent", "run", "slow", "go", "--json")
    run = json.loads(result.stdout)
    assert result.returncode == 3
    assert (run["status"], run["ended"]) == ("failed", "timeout")
    assert "timeout" in run["reason"]


def test_a_silent_idle_agent_is_ended_as_stalled(project: AgentProject) -> None:
    project.define("idle", adapter="command", command=["sleep", "100"], limits={"idle_timeout": "500ms"})
    result = project.completed("agent", "run", "idle", "go", "--json")
    assert result.returncode == 3
    assert json.loads(result.stdout)["ended"] == "stall"


@pytest.mark.parametrize(
    "busy",
    [
        "while [ ! -e over ]; do :; done",  # CPU time
        "while [ ! -e over ]; do echo .; sleep 0.05; done",  # output
    ],
    ids=["cpu", "output"],
)
def test_a_busy_agent_is_never_ended_as_stalled(project: AgentProject, busy: str) -> None:
    """It works for many times its idle timeout, then is told to finish: had it been ended, the code would be 3."""
    limits = {"idle_timeout": "600ms"}
    script = f"touch born; ({busy}); echo done"
    project.define("busy", adapter="command", command=["sh", "-c", script], limits=limits)
    agent = project.start("agent", "run", "busy", "go")
    project.until_exists("born")
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 3)
    (project.root / "over").touch()
    assert agent.communicate(timeout=120)[0].endswith("done\n")
    assert agent.returncode == 0


def _waiting_agent(project: AgentProject, *arguments: str) -> subprocess.Popen[str]:
    """In the root it uses no CPU and says nothing, until somebody writes to `over`; started, and at work."""
    os.mkfifo(project.root / "over")
    command = ["sh", "-c", "touch born; cat over"]
    project.define("waiting", adapter="command", command=command, limits={"idle_timeout": "600ms"})
    workflow = {"description": "", "steps": [{"type": "agent", "agent": "waiting", "prompt": "go"}]}
    (project.state / "workflows" / "waits.yaml").write_text(yaml.safe_dump(workflow))
    agent = project.start("flow", "run", "waits", "-q", *arguments)
    project.until_exists("born")
    return agent


def _in_git(project: AgentProject, ignored: str = "") -> None:
    subprocess.run(["git", "init", "-q"], cwd=project.root, check=True)
    (project.root / ".gitignore").write_text(f".swissarmyhammer/\n{ignored}")


def _workspace(project: AgentProject) -> Path:
    made = project.state / "workspaces" / "task"
    made.mkdir(parents=True)
    return made


@pytest.mark.parametrize("place", ["root", "workspace", "workspace in git", "large tree", "large tree in git"])
def test_an_agent_whose_files_change_is_not_stalled(project: AgentProject, place: str) -> None:
    if "git" in place:
        _in_git(project)
    work, arguments = project.root / "work", []
    if "workspace" in place:
        work, arguments = _workspace(project) / "TODO.md", ["--workspace", "task"]
    if "large" in place:
        for number in range(60):
            directory = project.root / f"many-{number:02}" / "files"
            directory.mkdir(parents=True)
            for name in range(100):
                (directory / f"{name}").touch()
        work = project.root / "the" / "last" / "and" / "deepest" / "of" / "all" / "work"  # also in the order of names
        work.parent.mkdir(parents=True)
    agent = _waiting_agent(project, *arguments)
    began = time.monotonic()

    def has_worked_long_enough() -> bool:
        work.write_text(str(time.monotonic()))
        return time.monotonic() - began > 3

    until(has_worked_long_enough)
    # Without a reader there, it was ended.
    os.close(os.open(project.root / "over", os.O_WRONLY | os.O_NONBLOCK))
    assert agent.communicate(timeout=120)[0].startswith("completed")


@pytest.mark.parametrize("name", ["signals", "journal", "ignored"])
def test_what_others_write_is_no_sign_of_life_of_an_agent(project: AgentProject, name: str) -> None:
    _in_git(project, ignored="build/\n")
    (project.root / "build").mkdir()
    workspace = _workspace(project)
    agent = _waiting_agent(project, "--workspace", "task")
    files = {
        "signals": [workspace / ".stop", workspace / ".abort.receipt.json", project.root / ".stop.receipt.json"],
        "journal": [project.state / "sidecar.db-elsewhere", project.state / "runs" / "other.log"],
        "ignored": [project.root / "build" / "output"],
    }[name]

    def was_ended() -> bool:
        for file in files:
            file.write_text(str(time.monotonic()))
        return agent.poll() is not None

    until(was_ended)
    assert "file change" in agent.communicate(timeout=120)[0]
    assert agent.returncode == 3


# --- secrets


def test_a_secret_appears_neither_in_the_log_nor_in_the_output(project: AgentProject) -> None:
    project.environment["ANTHROPIC_API_KEY"] = "sk-very-secret"
    project.environment["OTHER_KEY"] = "also-secret"
    (project.state / "config.yaml").write_text("secrets: [ANTHROPIC_API_KEY, OTHER_KEY]\n")
    code, out, err = project.script("echo $ANTHROPIC_API_KEY; echo $OTHER_KEY >&2; echo plain", "--json")
    assert code == 0
    assert "plain" in out
    assert "plain" in project.logs()
    assert "secret" not in out + err + project.logs()
