"""`shell_command` and `agent_shell_command`: run a command under supervision; its output is the result of the step."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from sidecar.agents import at_terminal
from sidecar.agents.output import FORMER, OutputLines, Subscription
from sidecar.agents.supervisor import Agent, Launch
from sidecar.engine.evaluation import positive_s
from sidecar.engine.steps.context import Context
from sidecar.engine.steps.output import ProcessOutput, formatted, nothing
from sidecar.errors import AgentFailed, StepFailed
from sidecar.model.agent import AgentEnded
from sidecar.model.steps import AgentShellCommand, ShellCommand

LIMIT_BYTES = 8 << 20
_TOO_MUCH = f"the command's output is larger than {LIMIT_BYTES >> 20} MiB: send it to a file"
_CUT_LINE_BYTES = 1 << 20  # a subscription cuts longer lines (agents/output.py)
_SHOWN_LINES = 200
_SHOWN_CHARACTERS = 2000
# The shell waits for a line before it begins, and then has no input. So the command does nothing before it is
# journalled, and prints nothing before we subscribe: a subscription gets only the end of earlier output. No input is
# /dev/null and not the empty pipe, which some tools read in place of the files that they would search.
_WAIT_FOR_LINE = "read -r _ || exit 1; exec </dev/null; "


async def run_command(step: ShellCommand, context: Context) -> Any:
    """The output of the command on stdout, in the step's format."""
    return await _Command.of(step, context).run()


async def run_agent_command(step: AgentShellCommand, context: Context) -> Any:
    """Run the command on the person's terminal where there is one, else as a `shell_command`.

    On a terminal the exit code alone decides, and the result is that of an empty output.
    """
    command = _Command.of(step, context)
    person = context.services.person
    code = await person.lend_terminal(command.run_at) if person is not None else None
    if code is None:
        return await command.run()
    if code != 0:
        raise StepFailed(_exit_text(code), kind="command", exit_code=code)
    return nothing(step.output_format)


@dataclass(frozen=True, slots=True)
class _Command:
    """A command with all its templates rendered."""

    step: ShellCommand | AgentShellCommand
    context: Context
    script: str
    directory: str
    environment: Mapping[str, str]  # added to that of the run
    timeout_s: float | None

    @classmethod
    def of(cls, step: ShellCommand | AgentShellCommand, context: Context) -> _Command:
        prepared = context.view.command(step.command)
        environment = {**context.variables(step.env), **prepared.environment}
        directory = context.directory(step.working_dir)
        timeout_s = None if step.timeout_s is None else positive_s(context.view, step.timeout_s, "timeout")
        return cls(step, context, prepared.script, directory, environment, timeout_s)

    async def run(self) -> Any:
        """Run it to its end: the value of its output. StepFailed for any end but exit code 0 in time."""
        log_path = self.context.log_path()
        agent = await self._start(["sh", "-c", _WAIT_FOR_LINE + self.script], log_path)
        output = _CommandOutput(self.context, agent)
        try:
            subscription = agent.pipes.subscribe(2 * LIMIT_BYTES)
            agent.pipes.close_stdin(b"\n")
            with anyio.move_on_after(self.timeout_s):
                await output.read(subscription)
            if not output.ended:
                agent.request_end("timeout")
                await output.read(subscription)
            ended = await agent.wait()
        except BaseException:
            await agent.end("abort")
            raise
        self._check(ended, output)
        return formatted(output.stdout(ended, log_path), self.step.output_format)

    async def run_at(self, terminal: int) -> int:
        """Run it on a terminal: its exit code. StepFailed where it does not end in time."""
        keeper = await self._start(at_terminal.KEEPER, None)
        services = self.context.services
        variables = {
            **services.environment,
            **self.environment,
            "SIDECAR_PROJECT": services.root,
            "SIDECAR_RUN_ID": services.run_id,
            "SIDECAR_TASK_ID": self.context.task_id,
        }
        environment = {name: value for name, value in variables.items() if value is not None}
        command = at_terminal.TerminalCommand(["sh", "-c", self.script], self.directory, environment, self.timeout_s)
        try:
            code = await at_terminal.run(keeper, command, terminal)
        except (OSError, ValueError) as error:  # ValueError: no `Launch` has checked the script
            why = error.strerror if isinstance(error, OSError) else error
            raise StepFailed(f"the command could not be started: {why}", kind="start") from None
        if code is None:
            raise self._timed_out()
        return code

    async def _start(self, argv: list[str], log_path: str | None) -> Agent:
        services = self.context.services
        try:
            launch = Launch(
                argv=argv,
                cwd=self.directory,
                starter_env=services.environment,
                env=self.environment,
                keep_stdin_open=True,
                log_path=log_path,
                run_id=services.run_id,
                task_id=self.context.task_id,
                secrets=services.secrets,
                kill_after_s=services.settings.kill_after_s,
            )
            return await self.context.start(launch, self.step.id or self.step.type)
        except AgentFailed as error:
            raise StepFailed(f"the command could not be started: {error}", kind="start") from None

    def _check(self, ended: AgentEnded, output: _CommandOutput) -> None:
        """The exit code counts only where the command ended by itself."""
        if output.refused:
            raise StepFailed(output.refused, kind="output", **output.tails)
        if ended.reason == "timeout" and self.timeout_s is not None:
            raise self._timed_out(**output.tails)
        if ended.reason != "exited":
            why = ended.problem if ended.reason == "internal_error" and ended.problem else ended.reason
            raise StepFailed(f"the command was ended: {why}", kind=ended.reason, **output.tails)
        if ended.exit_code != 0:
            line = output.last_error_line
            message = _exit_text(ended.exit_code) + (f": {line}" if line else "")
            raise StepFailed(message, kind="command", exit_code=ended.exit_code, **output.tails)

    def _timed_out(self, **facts: str) -> StepFailed:
        return StepFailed(f"the command did not end within {self.timeout_s:g} s", kind="timeout", **facts)


class _CommandOutput(ProcessOutput):
    """The output of a command; stdout is kept whole, up to a limit."""

    def __init__(self, context: Context, agent: Agent) -> None:
        super().__init__(context, line_characters=_SHOWN_CHARACTERS, most_lines=_SHOWN_LINES)
        self.refused = ""  # why nothing more is kept
        self.ended = False
        self._agent = agent
        self._pieces: list[str] = []  # joined lines: a list of millions of empty ones would be eight times as large
        self._size = 0
        self._has_cut_line = False

    async def read(self, subscription: Subscription) -> None:
        """Read to the end of the output. Cancelled, it can be called again and has missed nothing."""
        async for output in subscription:
            if not self.refused:
                self.add(self._agent.agent_id, output)
                if output.stream == "stdout":
                    self._keep(output)
        self.ended = True

    def stdout(self, ended: AgentEnded, log_path: str) -> str:
        """All of stdout. A line that was cut is whole in the log, which is stdout where stderr was silent."""
        if not self._has_cut_line:
            return "".join(self._pieces)
        self._pieces.clear()
        if self.tails["stderr"] or ended.problem is not None:
            raise StepFailed(
                f"a line of the command's output is longer than {_CUT_LINE_BYTES >> 20} MiB, and cannot be had from "
                f"its log ({ended.problem or 'it has stderr, too'}): add 2>/dev/null, or send it to a file",
                kind="output",
            )
        with open(log_path, "rb") as file:
            data = file.read(LIMIT_BYTES + 1)
        if len(data) > LIMIT_BYTES or os.path.lexists(log_path + FORMER):  # the log was rotated
            raise StepFailed(_TOO_MUCH, kind="output")
        return data.decode("utf-8", "replace")

    def _keep(self, output: OutputLines) -> None:
        piece = "\n".join(output.lines) + "\n"
        # Lines come as they are read, 64 KiB at a time: only a line that was long in coming makes a piece so large.
        if len(piece) >= _CUT_LINE_BYTES // 4:
            self._has_cut_line = self._has_cut_line or any(map(_is_cut, output.lines))
        self._size += len(piece.encode())
        if output.dropped:
            self._refuse(f"{output.dropped} lines of the command's output were lost: it came faster than it was read")
        elif self._size > LIMIT_BYTES + 1:  # the last line's break may be ours
            self._refuse(_TOO_MUCH)
        else:
            self._pieces.append(piece)

    def _refuse(self, why: str) -> None:
        self.refused = why
        self._pieces.clear()
        self._agent.request_end("budget")


def _is_cut(line: str) -> bool:
    # A cut line was so many bytes: decoded at least a quarter as many characters, and encoded again no fewer bytes.
    return len(line) >= _CUT_LINE_BYTES // 4 and len(line.encode()) >= _CUT_LINE_BYTES


def _exit_text(code: int | None) -> str:
    if code is None:
        return "the exit code of the command is not known"
    if code >= 0:
        return f"the command ended with exit code {code}"
    try:
        return f"the command was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"the command was ended by signal {-code}"
