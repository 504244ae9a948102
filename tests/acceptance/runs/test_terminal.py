"""`sidecar flow run` at a terminal: questions, and the key `s`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.kit import Project

ENTER, LEAVE = "\033[?1049h", "\033[?1049l"


def test_at_a_terminal_a_question_is_asked_there_until_the_answer_is_right(flows: Project) -> None:
    flows.workflow(
        "asking",
        {
            "id": "ask",
            "type": "user_input",
            "prompt": "How many {{ inputs.things }}?",
            "answer_type": "integer",
            "state_update": {"path": "raw.count"},
        },
        {"id": "tell", "type": "user_message", "message": "{{ count }} it is"},
        inputs={"things": {"type": "string", "required": True, "choices": ["cups", "spoons"]}},
        state_schema={"raw": {"count": "number"}},
    )
    sitting = flows.terminal("flow", "asking", "-i")
    sitting.has_written("one of: cups, spoons")
    sitting.type("forks\n")
    sitting.has_written("\nthe answer has to be one of cups, spoons\r\n")
    sitting.type("cups\n")
    sitting.has_written("How many cups?: ")
    sitting.type("several\n")
    sitting.has_written("\nthe answer has to be a whole number")
    sitting.type("4\n")
    sitting.has_written("4 it is")
    assert sitting.end() == 0


def test_a_failed_pattern_says_the_authors_words_and_nothing_else(flows: Project) -> None:
    validation = {"pattern": "^(branch .+|HEAD)$", "error_message": "Please provide a valid option"}
    ask = {"type": "user_input", "prompt": "Which files?", "validation": validation}
    step = {**ask, "state_update": {"path": "raw.choice"}}
    flows.workflow("asking", step, state_schema={"raw": {"choice": "string"}})
    sitting = flows.terminal("flow", "run", "asking")
    sitting.has_written("Which files?: ")
    sitting.type("no idea\n")
    sitting.has_written("\r\nPlease provide a valid option\r\nWhich files?: ")
    sitting.type("\x04")  # nobody answers: the run waits for `sidecar answer`
    assert sitting.end() == 0
    run_id = flows.journalled()[0].run_id
    assert flows.run("answer", run_id, "no idea") == (2, "", "Please provide a valid option\n")
    assert flows.json("answer", run_id, "HEAD", "--json")["state"]["choice"] == "HEAD"


def test_the_key_s_stops_the_run_after_the_iteration(flows: Project) -> None:
    sitting = flows.terminal("flow", "run", "counting")
    flows.until_exists("at-0")
    sitting.takes_keys()
    sitting.type("s")
    sitting.has_written("Press 's' to cancel")
    flows.touch("go")
    assert sitting.end() == 0
    assert (flows.journalled()[0].status, flows.lines("ran")) == ("stopped", ["0"])


ASKING = {"id": "login", "type": "agent_shell_command", "command": "test -t 0 -a -t 1 -a -t 2 && printf 'name? ' && %s"}


def command(script: str) -> dict[str, str]:
    return {**ASKING, "command": ASKING["command"] % script}


def test_a_command_for_the_person_has_the_terminal_and_then_the_panel_is_back(flows: Project) -> None:
    flows.workflow(
        "login",
        {"id": "wait", "type": "shell_command", "command": "touch at-work; until [ -e go ]; do sleep 0.02; done"},
        command("read name </dev/tty && read rest && echo $name $rest > seen"),
        {"id": "rest", "type": "shell_command", "command": "touch at-rest; until [ -e on ]; do sleep 0.02; done"},
    )
    sitting = flows.terminal("flow", "run", "login")
    sitting.has_written("RUNNING")
    flows.until_exists("at-work")
    flows.touch("go")
    sitting.has_written("name? ")
    shown = sitting.printed[: sitting.printed.rindex("name? ")]
    assert shown.count(ENTER) == shown.count(LEAVE) == 1  # the panel is out of the way
    assert sitting.is_as_before()
    sitting.type("sam\n")  # with an s, which is no key now
    sitting.has_written("sam")
    sitting.type("smith\n")
    flows.until_exists("at-rest")
    sitting.until(lambda: sitting.printed.count(ENTER) == 2)
    flows.touch("on")
    assert sitting.end() == 0
    assert (flows.journalled()[0].status, flows.lines("seen")) == ("completed", ["sam smith"])


def test_ctrl_c_at_such_a_command_interrupts_the_run(flows: Project) -> None:
    flows.workflow("login", command("read name"), {"type": "shell_command", "command": "touch never"})
    sitting = flows.terminal("flow", "run", "login")
    sitting.has_written("name? ")
    sitting.type("\x03")
    assert sitting.end() == 130
    assert flows.journalled()[0].status == "interrupted"
    assert not (flows.root / "never").exists()


def test_an_abort_ends_such_a_command_with_all_that_it_started_and_mends_the_terminal(flows: Project) -> None:
    deaf = "echo $$ > pid; trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 600' & stty raw -echo; read name"
    flows.workflow("login", command(deaf))
    sitting = flows.terminal("flow", "run", "login")
    sitting.has_written("name? ")
    sitting.takes_keys()
    (flows.state / ".abort").write_text("enough\n")
    sitting.has_written("ABORTED")
    sitting.until(sitting.is_as_before)
    assert sitting.end() == 2
    receipt = json.loads((flows.state / ".abort.receipt.json").read_text())
    assert (receipt["survivors"], flows.journalled()[0].status) == (0, "aborted")
    assert int(flows.lines("pid")[0]) in [process["pid"] for process in receipt["processes"]]
    assert flows.tagged() == []


def test_such_a_command_does_not_outlive_the_owner(flows: Project) -> None:
    flows.workflow("login", command("{ setsid sleep 600 & read name; }"))
    sitting = flows.terminal("flow", "run", "login")
    sitting.has_written("name? ")
    sitting.process.kill()
    flows.until(lambda: flows.tagged() == [])
    sitting.end()


def test_such_a_command_that_fails_or_takes_too_long_fails_its_step(flows: Project) -> None:
    flows.workflow(
        "login", command("exit 3") | {"on_error": "continue"}, command("read name") | {"id": "b", "timeout": "1s"}
    )
    sitting = flows.terminal("flow", "run", "login", "--no-panel")
    assert sitting.end() == 2
    assert "step login: failed: the command ended with exit code 3" in sitting.printed
    assert "did not end within 1 s" in sitting.printed


def test_without_a_terminal_such_a_command_is_like_any_other(flows: Project) -> None:
    flows.workflow("login", {**ASKING, "command": "test -t 0 || echo nobody; cat"})
    code, out, _ = flows.run("flow", "run", "login")
    assert code == 0
    assert "login | nobody" in out


def test_without_a_terminal_interactive_says_what_is_missing(flows: Project) -> None:
    flows.workflow("asking", {"type": "user_message", "message": "hi"}, inputs={"what": {"required": True}})
    code, _, err = flows.run("flow", "asking", "-i")
    assert code == 2
    assert "what missing, and there is no terminal to ask" in err
