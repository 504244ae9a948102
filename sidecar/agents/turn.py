"""One turn of an agent: a prompt goes in, its output is parsed as it comes, limits are kept, an outcome comes back."""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import anyio
import anyio.to_thread
import psutil

from sidecar import layout
from sidecar.agents.adapters import ADAPTERS
from sidecar.agents.adapters.adapter import Event, Resumed, Summary, ToolBegan, ToolEnded, Used, Waiting
from sidecar.agents.output import OutputLines
from sidecar.agents.supervisor import Launch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from sidecar.agents.adapters.adapter import McpConfiguration
    from sidecar.agents.supervisor import Agent
    from sidecar.model.agent import AgentEnded, Assignment, Limits


@dataclass(frozen=True, slots=True)
class AgentStarted:
    """The agent runs."""

    agent_id: str
    pid: int
    command: str


TurnEvent = AgentStarted | OutputLines | Event


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSetting:
    """Where a turn takes place, and for which run."""

    cwd: str
    environment: Mapping[str, str]
    run_id: str
    log_path: str
    task_id: str | None = None
    secrets: Sequence[str] = ()
    kill_after_s: float
    mcp: McpConfiguration | None = None
    files: Files | None = None  # a change in these is a sign of life; None: those in `cwd`


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """How a turn ended: the process's side of it, the agent's own report, and the limit if one was reached."""

    ended: AgentEnded
    summary: Summary
    limit: ReachedLimit | None = None

    @property
    def failure(self) -> str | None:
        """What went wrong in an agent that ended by itself; None where all is well.

        Only for an agent that was not ended: what an ended agent exits with says nothing (claude: 0 after SIGINT).
        """
        if self.summary.error:
            return self.summary.error
        code = self.ended.exit_code
        if code == 0:
            return None
        return f"it ended with exit code {code}" if code is not None and code > 0 else f"it was ended by signal {code}"


async def take_turn(
    assignment: Assignment,
    setting: TurnSetting,
    start: Callable[[Launch], Awaitable[Agent]],
    on_event: Callable[[TurnEvent], None],
) -> TurnOutcome:
    """Take a turn. AgentFailed: it could not even begin. Cancelled, it ends the agent first.

    `start` starts the process and journals that it runs, so that it is found if its owner dies.
    """
    adapter = ADAPTERS[assignment.definition.adapter]
    parser = adapter.parser(time.time)
    invocation = adapter.invocation(assignment, cwd=setting.cwd, environment=setting.environment, mcp=setting.mcp)
    launch = Launch(
        argv=invocation.argv,
        cwd=setting.cwd,
        starter_env=setting.environment,
        env=invocation.environment,
        stdin=invocation.stdin,
        log_path=setting.log_path,
        run_id=setting.run_id,
        task_id=setting.task_id,
        secrets=setting.secrets,
        kill_after_s=setting.kill_after_s,
    )
    watch = LimitWatch(assignment.definition.limits, time.monotonic)
    agent = await start(launch)
    guard = _LimitGuard(agent, assignment.definition.limits, watch, setting.files or Files((setting.cwd,)))
    try:
        on_event(AgentStarted(agent.agent_id, agent.pid, agent.command))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guard.run)
            async for output in agent.pipes.subscribe():
                watch.output(sum(map(len, output.lines)) + 1)
                on_event(output)
                for line in output.lines:
                    for event in parser.feed(line, output.stream):
                        watch.handle(event, time.time())
                        on_event(event)
                guard.check()  # a budget that is spent is not exceeded until the next look at the clock
            ended = await agent.wait()
            tasks.cancel_scope.cancel()
    except BaseException:
        await agent.end("abort")
        raise
    return TurnOutcome(ended, parser.summary(), guard.reached)


# --- limits


LimitReason = Literal["timeout", "stall", "budget"]

# What a tree has to use of one core to count as busy. Not zero: claude, codex and gemini, waiting for a model that
# never answers, were seen to use 0.3 to 1.3 % for their timers, and would never count as stalled.
BUSY_SHARE = 0.05
_CHECKS_PER_LIMIT = 8
_LEAST_CHECKS = 2  # also where a check takes long
_CHECKING_SHARE = 0.1  # of the time that may go into checks
_SHORTEST_PAUSE_S = 0.005


class _LimitGuard:
    """Ends an agent when one of its limits is reached."""

    def __init__(self, agent: Agent, limits: Limits, watch: LimitWatch, files: Files) -> None:
        self.reached: ReachedLimit | None = None
        self._agent = agent
        self._idle_timeout_s = limits.idle_timeout_s
        self._watch = watch
        self._files = files

    async def run(self) -> None:
        """Check often enough to tell busy from stalled, and not at all where nothing is limited."""
        took_s = 0.0
        if self._idle_timeout_s is not None:
            took_s = await self._check_files()
        while not self.check():
            await anyio.sleep(self._pause_s(took_s))
            if self._idle_timeout_s is not None:
                self._watch.cpu(cpu_s([row.pid for row in await self._agent.tree.living()]))
                took_s = await self._check_files()

    def check(self) -> bool:
        """End the agent if a limit is reached; whether one was."""
        if self.reached is None and (reached := self._watch.reached()) is not None:
            self.reached = reached
            self._agent.request_end(reached.reason)
        return self.reached is not None

    async def _check_files(self) -> float:
        """How long it took, which is long in a large tree. The end of the turn does not wait for it."""
        began = time.monotonic()
        self._watch.files(await anyio.to_thread.run_sync(self._files.token, abandon_on_cancel=True))
        return time.monotonic() - began

    def _pause_s(self, took_s: float) -> float:
        pauses = [float("inf")]
        if (until_s := self._watch.next_check_s()) is not None:
            pauses.append(until_s)
        if self._idle_timeout_s is not None:
            often = max(self._idle_timeout_s / _CHECKS_PER_LIMIT, took_s / _CHECKING_SHARE)
            pauses.append(min(often, self._idle_timeout_s / _LEAST_CHECKS))
        return max(_SHORTEST_PAUSE_S, min(pauses))


@dataclass(frozen=True, slots=True)
class ReachedLimit:
    """A limit that is reached: the reason to end the agent with, and a sentence for people."""

    reason: LimitReason
    message: str


class LimitWatch:
    """Feed it evidence of life and of spending, then ask which limit is reached. Pure: it measures and ends nothing.

    Any evidence counts as life: output, tool activity, a busy tree, a change in the workspace. An agent that waits
    for a permission, or for a moment that it named, is not stalled, however long that takes; its wall-clock time runs.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock  # seconds, monotonic
        self._started = self._alive_at = self._cpu_at = clock()
        self._cpu_s = 0.0
        self._files: object = None
        self._waits_for_permission = False
        self._cost_usd = 0.0
        self._tokens = 0

    def handle(self, event: Event, epoch_s: float) -> None:
        """What an adapter read out of the output; `epoch_s` is the time now, on the clock of `Waiting.until`."""
        match event:
            case Waiting(what="permission"):
                self.waits_for_permission()
            case Waiting(until=until) if until is not None:
                self.waits_for_moment(until - epoch_s)
            case Waiting() | Resumed():  # a wait without a known end: silence counts
                self.goes_on()
            case ToolBegan() | ToolEnded():
                self.tool_activity()
            case Used(tokens=tokens, cost_usd=cost_usd):
                self.spent(tokens.total, cost_usd)

    def output(self, count_bytes: int) -> None:
        """The agent printed something, to either stream."""
        if count_bytes > 0:
            self._live()

    def tool_activity(self) -> None:
        """A tool call began, went on or ended."""
        self._live()

    def cpu(self, total_s: float) -> None:
        """CPU time of the whole tree since its start, as the process table has it."""
        now = self._clock()
        used, passed = total_s - self._cpu_s, now - self._cpu_at
        # Less than before: processes have ended and took their time along. An idle tree does not do that.
        if used < 0 or (used > 0 and used >= BUSY_SHARE * passed):
            self._live()
        self._cpu_s, self._cpu_at = total_s, now

    def files(self, token: object) -> None:
        """Something that differs when a file in the workspace has changed."""
        if token != self._files:
            self._files = token
            self._live()

    def waits_for_permission(self) -> None:
        """The agent waits for a person."""
        self._waits_for_permission = True

    def waits_for_moment(self, remaining_s: float) -> None:
        """The agent waits for a moment that it named, such as the end of a rate limit."""
        self._waits_for_permission = False
        # Only then does its silence begin to mean something.
        self._alive_at = max(self._alive_at, self._clock() + max(0.0, remaining_s))

    def goes_on(self) -> None:
        """The agent no longer waits."""
        self._waits_for_permission = False
        self._alive_at = self._clock()

    def spent(self, tokens: int, cost_usd: float | None) -> None:
        """Totals so far; a cost of None is not known."""
        self._tokens = tokens
        self._cost_usd = self._cost_usd if cost_usd is None else cost_usd

    def reached(self) -> ReachedLimit | None:
        """The limit that is reached now. Money goes first: a budget is the one that cannot be given back."""
        limits, now = self._limits, self._clock()
        if limits.max_cost_usd is not None and self._cost_usd >= limits.max_cost_usd:
            return ReachedLimit("budget", f"cost ${self._cost_usd:.4f} of at most ${limits.max_cost_usd:.4f}")
        if limits.max_tokens is not None and self._tokens >= limits.max_tokens:
            return ReachedLimit("budget", f"used {self._tokens} of at most {limits.max_tokens} tokens")
        if limits.timeout_s is not None and now - self._started >= limits.timeout_s:
            return ReachedLimit("timeout", f"ran for {limits.timeout_s:g} s, its timeout")
        idle_s = limits.idle_timeout_s
        if idle_s is not None and not self._waits_for_permission and now - self._alive_at >= idle_s:
            return ReachedLimit("stall", f"no output, tool activity, CPU use or file change for {idle_s:g} s")
        return None

    def next_check_s(self) -> float | None:
        """How long from now nothing can be reached by the passing of time alone; None: without end."""
        limits, now = self._limits, self._clock()
        ends = []
        if limits.timeout_s is not None:
            ends.append(self._started + limits.timeout_s)
        if limits.idle_timeout_s is not None and not self._waits_for_permission:
            ends.append(self._alive_at + limits.idle_timeout_s)
        return max(0.0, min(ends) - now) if ends else None

    def _live(self) -> None:
        # A named moment may lie ahead: life before it must not shorten the wait.
        self._alive_at = max(self._alive_at, self._clock())


# --- signs of life that an agent does not print: CPU time of its tree, changes in the files that it works on


_OURS = os.fsencode(layout.STATE_DIRECTORY)
# Signals and what is written beside them are for the run, and no work of its agent.
_SIGNAL = re.compile(rb"\.(stop|abort)(\..*)?", re.DOTALL)
# Where git does not list what is ignored.
_NOT_WORK = frozenset({b".git", b"node_modules", b".venv", b"__pycache__", _OURS})
# It reads the index and the ignore rules, and executes nothing that the project's configuration names.
_LIST = ("git", "-c", "core.fsmonitor=false", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
_LIST_S = 60.0


def cpu_s(pids: Iterable[int]) -> float:
    """The CPU time that these processes and their waited-for children have used."""
    total = 0.0
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:  # gone since
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


@dataclass(frozen=True, slots=True)
class Files:
    """The files that an agent works on: the trees that git sees, without what it ignores, and all of its workspace."""

    trees: Sequence[str]
    workspace: str | None = None

    def token(self) -> tuple[int, int]:
        """Something that differs when one of them was made, changed or removed. It takes seconds where there are
        millions of files."""
        seen = changes = 0
        for found in self._found():
            seen += 1
            # Not the newest time of them: after a clock was set back, what is written looks old for a long time.
            changes += hash(found)
        return seen, changes

    def _found(self) -> Iterator[tuple[bytes, int, int]]:
        for tree in dict.fromkeys(tree for tree in self.trees if tree != self.workspace):
            listed = _listed(tree)
            yield from _walked(os.fsencode(tree)) if listed is None else _read_listed(os.fsencode(tree), listed)
        if self.workspace is not None:  # most are where git does not look
            yield from _walked(os.fsencode(self.workspace))


def _listed(tree: str) -> list[bytes] | None:
    """The paths that git knows of below a directory, or would if they were added; None where there is no git."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        listed = subprocess.run(  # noqa: S603 - words of ours
            _LIST,
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LIST_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return listed.stdout.split(b"\0")[:-1]


def _read_listed(tree: bytes, paths: Iterable[bytes]) -> Iterator[tuple[bytes, int, int]]:
    for path in paths:
        *around, name = path.removesuffix(b"/").split(b"/")
        if _OURS in around or name == _OURS or _SIGNAL.fullmatch(name):
            continue
        whole = os.path.join(tree, path)
        try:
            found = os.lstat(whole)
        except OSError:  # removed, and not yet for git
            yield path, -1, -1
            continue
        if path.endswith(b"/"):  # a repository of its own inside
            yield from _walked(whole)
        else:
            yield path, found.st_mtime_ns, found.st_size


def _walked(directory: bytes) -> Iterator[tuple[bytes, int, int]]:
    waiting = [directory]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        for entry in entries:
            if entry.name in _NOT_WORK or _SIGNAL.fullmatch(entry.name):
                continue
            try:
                # Only what is in a directory counts: its own time also changes by our files.
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                found = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield entry.path, found.st_mtime_ns, found.st_size
