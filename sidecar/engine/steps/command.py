"""`shell_command`: a command that the run's owner executes itself."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.agents import at_terminal
from sidecar.agents.launch import Launch
from sidecar.agents.log_file import FORMER
from sidecar.engine.evaluation import positive_s
from sidecar.engine.steps.output import formatted, nothing
from sidecar.errors import AgentFailed, StepFailed
from sidecar.model.events import AGENT_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.agents.agent import Agent
    from sidecar.agents.stream import Output, Subscription
    from sidecar.engine.steps.context import Context
    from sidecar.model.agent import AgentEnded
    from sidecar.model.steps import AgentShellCommand, OutputFormat, ShellCommand


async def run_command(step: ShellCommand, context: Context) -> Any:
    """What the command says on stdout, in the step's format."""
    return await Command.of(step, context).run(context)


# `agent_shell_command`: a command on the person's terminal where there is one, else like any other.


async def run_agent_command(step: AgentShellCommand, context: Context) -> Any:
    """Run the command.

    On a terminal its exit code alone decides, and the output went to the person: the result is what `output_format`
    has for nothing ("", [], {}; null for JSON). Elsewhere it is as with `shell_command`.
    """
    command = Command.of(step, context)
    person = context.services.person
    code = await person.lend_terminal(partial(command.run_on, context)) if person is not None else None
    if code is None:
        return await command.run(context)
    if code != 0:
        raise StepFailed(exit_text(code), kind="command", exit_code=code)
    return nothing(step.output_format)


# A step's shell command: prepared from its definition, run under supervision, its output made into a result.


LIMIT_BYTES = 8 << 20
_TOO_MUCH = f"the command's output is larger than {LIMIT_BYTES >> 20} MiB: send it to a file"
_CUT_LINE_BYTES = 1 << 20  # listeners get no more of a line (agents/stream.py)
_TAIL_CHARACTERS = 4000
_LAST_LINE_CHARACTERS = 500
_SAID_LINES = 200
_SAID_CHARACTERS = 2000
# The shell waits for a line before it begins, and then has no input. So nothing is done that the journal does not
# know, and nothing is said before we listen: of what comes earlier a listener gets only the end. No input is
# /dev/null and not the empty pipe, which some tools read in place of the files that they would search.
_GATE = "read -r _ || exit 1; exec </dev/null; "


@dataclass(frozen=True, slots=True)
class Command:
    """A command with all its templates filled in."""

    script: str
    directory: str
    environment: Mapping[str, str]  # what it adds to that of the run
    timeout_s: float | None
    output_format: OutputFormat
    name: str

    @classmethod
    def of(cls, step: ShellCommand | AgentShellCommand, context: Context) -> Command:
        """What a step says, as it stands now."""
        prepared = context.view.command(step.command)
        added = {name: context.view.text(value) for name, value in step.env.items()}
        return cls(
            script=prepared.script,
            directory=context.directory(step.working_dir),
            environment={**added, **prepared.environment},
            timeout_s=positive_s(context.view, step.timeout_s, "timeout"),
            output_format=step.output_format,
            name=step.id or step.type,
        )

    async def run(self, context: Context) -> Any:
        """Run it to its end; what its output means is the result. StepFailed for any end but exit code 0 in time."""
        log_path = context.log_path()
        agent = await self._started(context, ["sh", "-c", _GATE + self.script], log_path)
        heard = _Heard(context, agent)
        try:
            subscription = agent.subscribe(2 * LIMIT_BYTES)
            agent.write_stdin(b"\n")
            agent.close_stdin()
            with anyio.move_on_after(self.timeout_s):
                await heard.all_of(subscription)
            if not heard.ended:
                agent.request_end("timeout")
                await heard.all_of(subscription)
            ended = await agent.wait()
        except BaseException:
            await agent.end("abort")
            raise
        self._judge(ended, heard)
        return formatted(heard.whole(ended, log_path), self.output_format)

    async def run_on(self, context: Context, terminal: int) -> int:
        """Run it on a terminal: its exit code. StepFailed where it does not end in time."""
        keeper = await self._started(context, at_terminal.KEEPER, None)
        environment = self._whole_environment(context)
        there = at_terminal.Command(["sh", "-c", self.script], self.directory, environment, self.timeout_s)
        try:
            code = await at_terminal.run(keeper, there, terminal)
        except (OSError, ValueError) as error:  # ValueError: no `Launch` has looked at the script
            why = error.strerror if isinstance(error, OSError) else error
            raise StepFailed(f"the command could not be started: {why}", kind="start") from None
        if code is None:
            assert self.timeout_s is not None
            raise StepFailed(timeout_text(self.timeout_s), kind="timeout")
        return code

    def _whole_environment(self, context: Context) -> dict[str, str]:
        """All its variables, for what is started without a `Launch`."""
        services = context.services
        ours = {"SIDECAR_PROJECT": services.root, "SIDECAR_RUN_ID": services.run_id, "SIDECAR_TASK_ID": context.task_id}
        given = {**services.environment, **self.environment, **ours}
        return {name: value for name, value in given.items() if value is not None}

    async def _started(self, context: Context, argv: list[str], log_path: str | None) -> Agent:
        services = context.services
        try:
            launch = Launch(
                argv=argv,
                cwd=self.directory,
                starter_env=services.environment,
                env=self.environment,
                keep_stdin_open=True,
                log_path=log_path,
                run_id=services.run_id,
                task_id=context.task_id,
                secrets=services.secrets,
                kill_after_s=services.settings.kill_after_s,
            )
            return await context.start(launch, self.name)
        except AgentFailed as error:
            raise StepFailed(f"the command could not be started: {error}", kind="start") from None

    def _judge(self, ended: AgentEnded, heard: _Heard) -> None:
        """How it ended is known from what was asked; only one that nobody ended is asked for its exit code."""
        if heard.refused:
            raise StepFailed(heard.refused, kind="output", **heard.tails())
        if ended.reason == "timeout" and self.timeout_s is not None:
            raise StepFailed(timeout_text(self.timeout_s), kind="timeout", **heard.tails())
        if ended.reason != "exited":
            why = ended.problem if ended.reason == "internal_error" and ended.problem else ended.reason
            raise StepFailed(f"the command was ended: {why}", kind=ended.reason, **heard.tails())
        if ended.exit_code != 0:
            said = heard.last_line()
            message = exit_text(ended.exit_code) + (f": {said}" if said else "")
            raise StepFailed(message, kind="command", exit_code=ended.exit_code, **heard.tails())


class _Heard:
    """What a command has said so far: stdout whole, as far as it is to be kept, and the end of stderr."""

    def __init__(self, context: Context, agent: Agent) -> None:
        self._context = context
        self._agent = agent
        self._pieces: list[str] = []  # joined lines: a list of millions of empty ones would be eight times as large
        self._size = 0
        self._tails = {"stdout": "", "stderr": ""}
        self._cut = False
        self.refused = ""  # why nothing more is kept
        self.ended = False

    async def all_of(self, subscription: Subscription) -> None:
        """Listen until nothing more comes. Cancelled, it can be called again and has missed nothing."""
        async for output in subscription:
            if not self.refused:
                self._hear(output)
        self.ended = True

    def whole(self, ended: AgentEnded, log_path: str) -> str:
        """All of stdout. A line that came cut is whole in the log, which is stdout where stderr was silent."""
        if not self._cut:
            return "".join(self._pieces)
        self._pieces.clear()
        if self._tails["stderr"] or ended.problem is not None:
            raise StepFailed(
                f"a line of the command's output is longer than {_CUT_LINE_BYTES >> 20} MiB, and cannot be had from "
                f"its log ({ended.problem or 'stderr stands there too'}): add 2>/dev/null, or send it to a file",
                kind="output",
            )
        return _log(log_path)

    def tails(self) -> dict[str, str]:
        """The end of each stream, for `error` in expressions."""
        return dict(self._tails)

    def last_line(self) -> str:
        """The last thing that it said on stderr."""
        lines = self._tails["stderr"].rstrip().rsplit("\n", 1)
        return lines[-1].strip()[:_LAST_LINE_CHARACTERS]

    def _hear(self, output: Output) -> None:
        piece = "\n".join(output.lines) + "\n"
        self._tails[output.stream] = (self._tails[output.stream] + piece[-_TAIL_CHARACTERS:])[-_TAIL_CHARACTERS:]
        self._say(output)
        if output.stream != "stdout":
            return
        # Lines come as they are read, 64 KiB at a time: only a line that was long in coming makes a piece so large.
        self._cut = self._cut or (len(piece) >= _CUT_LINE_BYTES // 4 and any(map(_is_cut, output.lines)))
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

    def _say(self, output: Output) -> None:
        lines = [line[:_SAID_CHARACTERS] for line in output.lines[-_SAID_LINES:]]
        said: dict[str, Any] = {"agent_id": self._agent.agent_id, "stream": output.stream, "lines": lines}
        if len(lines) < len(output.lines):
            said["dropped"] = len(output.lines) - len(lines)
        self._context.emit(AGENT_OUTPUT, said)


def exit_text(code: int | None) -> str:
    """What to say of a command that did not succeed."""
    if code is None:
        return "nobody could tell how the command ended"
    if code >= 0:
        return f"the command ended with exit code {code}"
    try:
        return f"the command was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"the command was ended by signal {-code}"


def timeout_text(timeout_s: float) -> str:
    """What to say of a command that took too long."""
    return f"the command did not end within {timeout_s:g} s"


def _is_cut(line: str) -> bool:
    # What is cut was so many bytes: decoded at least a quarter as many characters, and encoded again no fewer bytes.
    return len(line) >= _CUT_LINE_BYTES // 4 and len(line.encode()) >= _CUT_LINE_BYTES


def _log(path: str) -> str:
    with open(path, "rb") as file:
        data = file.read(LIMIT_BYTES + 1)
    if len(data) > LIMIT_BYTES or os.path.lexists(path + FORMER):  # the rest of what was too much
        raise StepFailed(_TOO_MUCH, kind="output")
    return data.decode("utf-8", "replace")
