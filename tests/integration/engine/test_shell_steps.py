"""Commands of a run: real shells under real supervision, and what becomes of their output."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from sidecar.agents.supervisor import Agent, Launch, Supervisor
from sidecar.config import Settings
from sidecar.engine.evaluation import Texts, View
from sidecar.engine.steps import command
from sidecar.engine.steps.context import Context, RunServices
from sidecar.errors import StepFailed, TemplateError
from sidecar.model.agent import AgentEnded, EndReason
from sidecar.model.events import AGENT_OUTPUT
from sidecar.model.steps import AgentShellCommand, ShellCommand
from sidecar.state.script import Script
from sidecar.state.world import World
from tests.kit import alive, eventually

pytestmark = pytest.mark.anyio
MIB = 1 << 20
HOSTILE = 'it\'s; rm -rf "$HOME"'


class Bench:
    """A run's surroundings with a real supervisor, and everything that was told or started."""

    def __init__(self, root: Path, view: View, supervisor: Supervisor, ended: list[AgentEnded]) -> None:
        self.root = root
        self.supervisor = supervisor
        self.ended = ended
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.names: list[str] = []
        self.logs = 0
        self.before_return: Callable[[], Awaitable[None]] | None = None
        services = RunServices(
            root=str(root),
            run_id="RUN",
            workspace=None,
            environment={"PATH": os.environ["PATH"], "FROM": "run", "BOTH": "run", "SIDECAR_TASK_ID": "outer"},
            settings=Settings.model_validate({"kill_after_s": 0.3}),
            secrets=("hunter2-the-secret",),
        )
        self.context = Context(
            services=services,
            view=view,
            key="cmd",
            attempt=1,
            task_id=None,
            additions=(),
            cost_remaining_usd=None,
            start=self.start,
            log_path=self.log_path,
            emit=self.tell,
            spend=lambda cost, tokens: None,
        )

    async def start(self, launch: Launch, name: str) -> Agent:
        agent = await self.supervisor.start(launch)
        self.names.append(name)
        if self.before_return is not None:
            await self.before_return()
        return agent

    def log_path(self) -> str:
        self.logs += 1
        return str(self.root / "agents" / f"{self.logs}.log")

    def tell(self, kind: str, data: dict[str, Any]) -> None:
        self.told.append((kind, data))

    def said(self, stream: str) -> list[str]:
        printed = [data for kind, data in self.told if kind == AGENT_OUTPUT and data["stream"] == stream]
        return [line for data in printed for line in data["lines"]]

    async def run(self, script: str, **keys: Any) -> Any:
        step = ShellCommand(type="shell_command", command=script, **keys)
        with anyio.fail_after(120):
            return await command.run_command(step, self.context)

    async def failure(self, script: str, **keys: Any) -> dict[str, Any]:
        with pytest.raises(StepFailed) as caught:
            await self.run(script, **keys)
        return caught.value.error


@pytest.fixture
def script() -> Iterator[Script]:
    with Script(worker=False) as opened:
        yield opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path.resolve()  # what `pwd -P` says


@pytest.fixture
async def bench(root: Path, script: Script) -> AsyncIterator[Bench]:
    world = World(script)
    for name, value in {"word": HOSTILE, "files": ["a b", "c"], "nothing": None}.items():
        world.set(name, value)
    ended: list[AgentEnded] = []
    async with Supervisor(str(root), on_ended=ended.append) as supervisor:
        yield Bench(root, View(Texts(script), world, {}), supervisor, ended)


def waits_or_is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_SLEEPING, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


# What comes out.


async def test_the_result_is_stdout_in_the_format_of_the_step(bench: Bench) -> None:
    assert await bench.run("echo out; echo err >&2; printf rest") == "out\nrest"
    assert await bench.run("printf 'a\\nb\\n'", output_format="lines") == ["a", "b"]
    assert await bench.run("echo '{\"n\": [1]}'", output_format="json") == {"n": [1]}
    assert await bench.run("echo k=v; echo l: w", output_format="key_value") == {"k": "v", "l": "w"}
    assert await bench.run(":", id="quiet") == ""
    assert bench.names == ["shell_command"] * 4 + ["quiet"]


async def test_what_is_said_is_told_while_it_is_said_and_logged(bench: Bench) -> None:
    gate = bench.root / "gate"
    os.mkfifo(gate)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.run, f"echo first; echo oops >&2; read _ <{gate}; echo last")
        await eventually(lambda: bench.said("stdout") == ["first"] and bench.said("stderr") == ["oops"])
        (agent,) = bench.supervisor.agents.values()
        assert {data["agent_id"] for _, data in bench.told} == {agent.agent_id}
        gate.write_text("\n")
    assert bench.said("stdout") == ["first", "last"]
    assert sorted((bench.root / "agents" / "1.log").read_text().split()) == ["first", "last", "oops"]


async def test_a_flood_of_lines_is_told_in_part_and_its_result_is_whole(bench: Bench) -> None:
    numbers = await bench.run("seq 1 200000", output_format="lines")
    assert numbers == [str(number) for number in range(1, 200_001)]
    dropped = sum(data.get("dropped", 0) for _, data in bench.told)
    assert dropped > 0
    assert len(bench.said("stdout")) + dropped == 200_000
    assert bench.said("stdout")[-1] == "200000"


async def test_nothing_is_lost_when_the_journal_takes_its_time_after_the_start(bench: Bench) -> None:
    """An early listener keeps 64 KiB: a command that wrote more before we listened would lose its beginning."""
    log = bench.root / "agents" / "1.log"

    async def slow_journal() -> None:
        """Until the command has written far more than that, or is seen to wait, again and again, without a word."""
        (agent,) = bench.supervisor.agents.values()
        quiet = 0

        def far_enough() -> bool:
            nonlocal quiet
            quiet = quiet + 1 if log.stat().st_size == 0 and waits_or_is_gone(agent.pid) else 0
            return log.stat().st_size > MIB or quiet > 20

        await eventually(far_enough)

    bench.before_return = slow_journal
    assert len(await bench.run("exec seq 1 300000", output_format="lines")) == 300_000


async def test_nothing_is_done_before_the_start_is_journalled(bench: Bench) -> None:
    seen: list[bool] = []

    async def journal() -> None:
        (agent,) = bench.supervisor.agents.values()
        await eventually(lambda: waits_or_is_gone(agent.pid))
        seen.append((bench.root / "done").exists())

    bench.before_return = journal
    await bench.run(": > done")  # no process of its own for which the shell could be waiting
    assert seen == [False]
    assert (bench.root / "done").exists()


async def test_bytes_that_are_no_text_are_replaced_so_that_the_result_is_json(bench: Bench) -> None:
    result = await bench.run(r"printf 'a\377\000b\303\n'")
    assert result == "a\ufffd\0b\ufffd"
    assert json.loads(json.dumps(result).encode("utf-8")) == result


async def test_output_up_to_the_limit_is_kept_whole(bench: Bench) -> None:
    result = await bench.run(f"yes 0123456 | head -c {command.LIMIT_BYTES}")
    assert len(result) == command.LIMIT_BYTES - 1  # the last line break
    assert result == ("0123456\n" * (command.LIMIT_BYTES // 8))[:-1]


async def test_endless_output_ends_the_command_and_fails_the_step(bench: Bench) -> None:
    error = await bench.failure("yes 0123456")
    assert error["message"] == "the command's output is larger than 8 MiB: send it to a file"
    assert error["kind"] == "output"
    assert [(ended.reason, ended.survivors) for ended in bench.ended] == [("budget", 0)]


async def test_output_beyond_the_limit_fails_the_step_also_where_the_command_ends_by_itself(bench: Bench) -> None:
    error = await bench.failure(f"yes '' | head -c {command.LIMIT_BYTES + 2}")
    assert error["kind"] == "output"


async def test_endless_noise_on_stderr_is_drained_and_not_kept(bench: Bench) -> None:
    noise = f"yes noise | head -c {24 * MIB} >&2"
    assert await bench.run(f"{noise}; echo done") == "done"
    error = await bench.failure(f"{noise}; echo the end >&2; exit 1")
    assert error["message"].endswith("exit code 1: the end")
    assert len(error["stderr"]) == 4000


async def test_one_line_of_megabytes_is_taken_whole_from_the_log(bench: Bench) -> None:
    words = ["ä" * 60] * 30_000
    (bench.root / "big.json").write_text(json.dumps(words, ensure_ascii=False), encoding="utf-8")
    assert (bench.root / "big.json").stat().st_size > 3 * MIB
    assert await bench.run("cat big.json", output_format="json") == words
    assert max(map(len, bench.said("stdout"))) == 2000


async def test_a_line_that_cannot_be_had_whole_fails_the_step_and_is_never_a_cut_result(bench: Bench) -> None:
    (bench.root / "big").write_bytes(b"x" * (2 * MIB))
    assert "longer than 1 MiB" in (await bench.failure("cat big; echo warning >&2"))["message"]
    (bench.root / "big").write_bytes(b"x" * (9 * MIB))
    assert "larger than 8 MiB" in (await bench.failure("cat big"))["message"]


async def test_secrets_are_in_neither_result_nor_error_nor_what_is_told(bench: Bench) -> None:
    assert await bench.run("echo hunter2-the-secret") == "********"
    error = await bench.failure("echo hunter2-the-secret >&2; exit 1")
    assert "hunter2" not in json.dumps([error, bench.told])


# What goes in.


async def test_values_stay_data_wherever_they_stand(bench: Bench) -> None:
    result = await bench.run("printf '%s\\n' {{ word }} \"<{{ word }}>\" {{ files }}", output_format="lines")
    assert result == ['it\'s; rm -rf "$HOME"', '<it\'s; rm -rf "$HOME">', "a b", "c"]


async def test_the_environment_is_the_runs_then_the_steps_then_ours(bench: Bench) -> None:
    env = {"BOTH": "step {{ files[1] }}", "EMPTY": "{{ nothing }}"}
    found = dict(line.split("=", 1) for line in await bench.run("env", env=env, output_format="lines"))
    assert (found["FROM"], found["BOTH"], found["EMPTY"]) == ("run", "step c", "")
    assert (found["SIDECAR_PROJECT"], found["SIDECAR_RUN_ID"]) == (str(bench.root), "RUN")
    assert "SIDECAR_TASK_ID" not in found
    bench.context = replace(bench.context, task_id="step.3")
    assert await bench.run("echo $SIDECAR_TASK_ID") == "step.3"


@pytest.mark.parametrize("value", ["{{ 'a\\u0000b' }}", "{{ '\\ud800' }}"])
async def test_a_variable_that_no_process_can_be_given_fails_the_step(bench: Bench, value: str) -> None:
    assert "the variable 'BAD' holds" in (await bench.failure("env", env={"BAD": value}))["message"]
    assert bench.names == []


async def test_commands_run_in_the_root_or_in_a_directory_inside_it(bench: Bench) -> None:
    inner = bench.root / "in ner"
    inner.mkdir()
    assert await bench.run("pwd -P") == str(bench.root)
    assert await bench.run("pwd -P", working_dir="in {{ 'ner' }}") == str(inner)
    assert "leads out" in (await bench.failure("pwd", working_dir=".."))["message"]
    assert "no directory" in (await bench.failure("pwd", working_dir="gone"))["message"]


async def test_a_command_has_no_input_and_no_pipe_that_promises_any(bench: Bench) -> None:
    """Some tools read a pipe, be it empty, in place of the files that they would search otherwise."""
    assert await bench.run("cat; read x || echo end; test -c /dev/stdin && echo device") == "end\ndevice"


async def test_messages_of_the_shell_keep_the_line_numbers_of_the_command(bench: Bench) -> None:
    error = await bench.failure("# a comment first\n\nno-such-command-here\n")
    assert error["exit_code"] == 127
    assert "3: " in error["stderr"]


async def test_a_template_that_fails_starts_nothing(bench: Bench) -> None:
    with pytest.raises(TemplateError, match="null"):
        await bench.run("rm -r {{ nothing }}/build")
    assert bench.names == []


# How it ends.


async def test_an_exit_code_fails_the_step_with_the_last_line_of_stderr(bench: Bench) -> None:
    error = await bench.failure("echo so far; echo first >&2; echo 'fatal: no such ref' >&2; echo >&2; exit 3")
    assert error == {
        "message": "the command ended with exit code 3: fatal: no such ref",
        "kind": "command",
        "exit_code": 3,
        "stdout": "so far\n",
        "stderr": "first\nfatal: no such ref\n\n",
    }
    assert (await bench.failure("exit 4"))["message"] == "the command ended with exit code 4"
    assert (await bench.failure("kill -9 $$"))["message"] == "the command was ended by SIGKILL"


async def test_an_exit_code_counts_more_than_an_output_of_the_wrong_format(bench: Bench) -> None:
    assert (await bench.failure("echo no json; exit 5", output_format="json"))["exit_code"] == 5
    assert "not JSON" in (await bench.failure("echo no json", output_format="json"))["message"]


async def test_a_command_that_takes_too_long_is_ended_with_its_children(bench: Bench) -> None:
    error = await bench.failure("echo begun; sleep 600 & sleep 600", timeout="{{ '400ms' }}")
    assert error["message"] == "the command did not end within 0.4 s"
    assert error["kind"] == "timeout"
    assert error["stdout"] in ("begun\n", "")
    assert [(ended.reason, ended.survivors) for ended in bench.ended] == [("timeout", 0)]


async def test_a_grandchild_that_holds_stdout_does_not_wedge_the_step(bench: Bench) -> None:
    result = await bench.run("setsid sleep 600 & echo $!")
    assert [ended.survivors for ended in bench.ended] == [0]
    await eventually(lambda: not alive(int(result)))


@pytest.mark.parametrize("reason", [None, "sibling_failed", "redirect"])
async def test_cancelled_the_step_returns_when_nothing_of_it_is_left(bench: Bench, reason: EndReason | None) -> None:
    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.run, "trap '' TERM; echo $$; sleep 600 & echo $!; wait")
            await eventually(lambda: len(bench.said("stdout")) == 2)
            (agent,) = bench.supervisor.agents.values()
            if reason is not None:
                agent.request_end(reason)
            tasks.cancel_scope.cancel()
        assert not bench.supervisor.agents
    assert not any(alive(int(pid)) for pid in bench.said("stdout"))
    (ended,) = bench.ended
    assert (ended.reason, ended.rung, ended.survivors) == (reason or "abort", "kill", 0)


async def test_a_command_that_somebody_else_ended_has_not_succeeded(bench: Bench) -> None:
    errors: list[dict[str, Any]] = []

    async def run() -> None:
        errors.append(await bench.failure("trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done"))

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await eventually(lambda: bench.said("stdout") == ["up"])
            (agent,) = bench.supervisor.agents.values()
            agent.request_end("timeout")
    assert [(error["message"], error["kind"]) for error in errors] == [("the command was ended: timeout", "timeout")]


async def test_a_command_that_cannot_be_started_fails_the_step(bench: Bench) -> None:
    bench.context = replace(bench.context, services=replace(bench.context.services, environment={"PATH": "/nowhere"}))
    error = await bench.failure("echo", env={"PATH": "/nowhere"})
    assert error["kind"] == "start"
    assert "'sh'" in error["message"]


# On somebody's terminal.


class AtTerminal:
    """A person with a real terminal, which is lent to one command at a time."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        self.seen = b""

    async def ask(self, question: dict[str, Any], problem: str | None) -> str | None:
        raise AssertionError("a command asks nothing")

    async def lend_terminal(self, run: Callable[[int], Awaitable[int]]) -> int | None:
        return await run(self.slave)

    def screen(self) -> str:
        os.set_blocking(self.master, False)
        try:
            while data := os.read(self.master, 4096):
                self.seen += data
        except (BlockingIOError, OSError):
            pass
        return self.seen.decode()

    def close(self) -> None:
        os.close(self.master)
        os.close(self.slave)


class WithoutTerminal(AtTerminal):
    """A person whose terminal nobody can have."""

    async def lend_terminal(self, run: Callable[[int], Awaitable[int]]) -> int | None:
        return None


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


async def on_terminal(bench: Bench, person: AtTerminal | None, script: str, **keys: Any) -> Any:
    step = AgentShellCommand(type="agent_shell_command", command=script, **keys)
    context = replace(bench.context, services=replace(bench.context.services, person=person))
    with anyio.fail_after(120):
        return await command.run_agent_command(step, context)


async def test_where_there_is_a_terminal_the_command_has_it_and_the_result_is_nothing(
    bench: Bench, closing: ExitStack
) -> None:
    person = AtTerminal()
    closing.callback(person.close)
    (bench.root / "sub").mkdir()
    look = "test -t 0 && test -t 1 && test -t 2"
    script = look + ' && echo "$BOTH $SIDECAR_RUN_ID ${SIDECAR_TASK_ID-none} $(pwd -P) {{ word }}"'
    keys: dict[str, Any] = {"env": {"BOTH": "step"}, "working_dir": "sub"}
    results = [
        await on_terminal(bench, person, script, output_format=kind, **keys)
        for kind in ("text", "lines", "key_value", "json")
    ]
    assert results == ["", [], {}, None]
    shown = f"step RUN none {bench.root / 'sub'} {HOSTILE}\r\n"
    assert person.screen() == shown * 4
    # Each had an agent in whose tree it was; nobody had anything to end.
    assert (len(bench.names), bench.logs) == (4, 0)
    await eventually(lambda: len(bench.ended) == 4)
    assert {(ended.reason, ended.exit_code, ended.survivors) for ended in bench.ended} == {("exited", 0, 0)}


async def test_on_a_terminal_the_exit_code_decides(bench: Bench, closing: ExitStack) -> None:
    person = AtTerminal()
    closing.callback(person.close)
    with pytest.raises(StepFailed, match="exit code 3") as caught:
        await on_terminal(bench, person, "echo no; exit 3")
    assert caught.value.error["exit_code"] == 3
    await eventually(lambda: len(bench.ended) == 1)
    assert (bench.ended[0].reason, bench.ended[0].exit_code) == ("exited", 3)


async def test_on_a_terminal_a_signal_is_told_by_its_name(bench: Bench, closing: ExitStack) -> None:
    person = AtTerminal()
    closing.callback(person.close)
    with pytest.raises(StepFailed, match="ended by SIGKILL"):
        await on_terminal(bench, person, "kill -9 $$")


async def test_a_command_that_cannot_be_started_on_the_terminal_is_told(bench: Bench, closing: ExitStack) -> None:
    person = AtTerminal()
    closing.callback(person.close)
    (bench.root / "sub").mkdir()

    async def too_late() -> None:
        (bench.root / "sub").rmdir()

    bench.before_return = too_late
    with pytest.raises(StepFailed, match="could not be started: No such file or directory"):
        await on_terminal(bench, person, "true", working_dir="sub")
    await eventually(lambda: len(bench.ended) == 1)


async def test_on_a_terminal_a_command_has_its_time_too(bench: Bench, closing: ExitStack) -> None:
    person = AtTerminal()
    closing.callback(person.close)
    with pytest.raises(StepFailed, match=r"within 0\.3 s") as caught:
        await on_terminal(bench, person, "echo $$; exec sleep 600", timeout=300)
    assert caught.value.error["kind"] == "timeout"
    assert not any(alive(int(pid)) for pid in person.screen().split())


@pytest.mark.parametrize("person", [None, WithoutTerminal])
async def test_where_there_is_no_terminal_it_is_a_plain_command(
    bench: Bench, closing: ExitStack, person: type[AtTerminal] | None
) -> None:
    somebody = person() if person is not None else None
    if somebody is not None:
        closing.callback(somebody.close)
    assert await on_terminal(bench, somebody, "test -t 1; echo $?", output_format="json", id="ask-them") == 1
    assert bench.names == ["ask-them"]
    with pytest.raises(StepFailed, match="exit code 2: why"):
        await on_terminal(bench, somebody, "echo why >&2; exit 2")
