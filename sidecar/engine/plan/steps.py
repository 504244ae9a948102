"""What each step that does something would do: in words, in its parts, with which tools, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sidecar.catalog import agents, prompts
from sidecar.engine.plan import commands, durations
from sidecar.engine.plan.durations import Lasts
from sidecar.engine.plan.known import Seen, bare
from sidecar.engine.plan.shape import shown
from sidecar.errors import InputError, SidecarError
from sidecar.model import steps as kinds
from sidecar.model.parameters import bind
from sidecar.model.steps_control import Break, Continue
from sidecar.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sidecar.engine.plan.known import Known
    from sidecar.model.updates import Update

_PROMPT_SHOWN = 110  # characters, so that the line has room for what follows
_OPERATIONS = {
    "set": "set {path} to {value}",
    "append": "append {value} to {path}",
    "increment": "increase {path} by {value}",
    "merge": "merge {value} into {path}",
}


@dataclass(slots=True)
class Account:
    """What is found out about one step, while it is looked at."""

    known: Known
    root: str
    default_agent: str
    task_agent: str | None = None  # the agent of the task that the step belongs to
    details: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    lasts: Lasts = field(default_factory=Lasts)

    def take(self, key: str, seen: Seen) -> Seen:
        """Note something under a key."""
        self.details[key] = seen.value
        self.problems += seen.problems
        return seen

    def value(self, key: str, given: Any) -> Seen:
        """Note a value of the definition."""
        return self.take(key, self.known.value(given))

    def text(self, key: str, given: str) -> str:
        """Note a text of the definition."""
        return str(self.take(key, self.known.text(given)).value)

    def agent(self, given: str | None, *, of_tasks: bool = False) -> str:
        """Note which agent it is; one that is given as null is the default too. `of_tasks`: does further tasks."""
        seen = self.known.value(given)
        name = str(seen.value) if seen.value not in (None, "") else self.default_agent
        if self.task_agent is not None and (given is None or of_tasks):  # else the step has one of its own
            name = self.task_agent
        else:
            self.problems += seen.problems
            self.tools.append(f"agent:{name}")
            if seen.known:
                self._look_up(agents.find, name)
        self.details["agent"] = name
        return name

    def prompt(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Note a prompt that is given by its name, and the text that it comes to."""
        given = self.value("parameters", parameters)
        prompt = self._look_up(prompts.find, name)
        if prompt is None:
            return
        if given.known:
            try:
                bind(prompt.parameters, given.value, f"prompt {name!r}")
            except InputError as error:
                self.problems.append(str(error))
        values = {one.name: one.default for one in prompt.parameters} | given.value
        open_names = [key for key, one in parameters.items() if not self.known.value(one).known]
        self.take("prompt", self.known.giving(values).hiding(*open_names).text(prompt.body))

    def _look_up(self, find: Callable[[str, str], Any], name: str) -> Any:
        try:
            return find(self.root, name)
        except SidecarError as error:
            self.problems.append(str(error).partition("; looked in ")[0])
            return None


def describe(step: kinds.StepBase, account: Account) -> str:
    """What a step would do, in words; everything else goes into the account."""
    does = _DESCRIBERS[type(step)](step, account)
    if isinstance(step, kinds.RunsSomewhere):
        if step.working_dir is not None:
            does += f" in {account.text('working_dir', step.working_dir)}"
        if step.env:
            found = {name: account.known.text(value) for name, value in step.env.items()}
            account.details["env"] = {name: seen.value for name, seen in found.items()}
            account.problems += [problem for seen in found.values() for problem in seen.problems]
    if isinstance(step, kinds.Working):
        does += after(step, account)
    if isinstance(step, kinds.Fallible):
        error_policy(step, account)
    return does


def error_policy(step: kinds.Fallible, account: Account) -> None:
    """What it does about an error, and how long it then takes at most."""
    if step.error_state_update is not None:
        path = account.known.hiding("error").path(step.error_state_update.path)
        account.problems += path.problems
        account.details["error_writes"] = [path.value]
    if step.on_error == "fail":
        return
    account.details["on_error"] = step.on_error
    if step.on_error != "retry":
        return
    count, delay = account.value("retry_count", step.retry_count), account.known.seconds(step.retry_delay_s)
    account.take("retry_delay_s", delay)
    lasts, most_s = account.lasts, None
    constant = count.known and delay.known and step.retry_backoff == "constant"
    if constant and lasts.most_s is not None and isinstance(count.value, int) and delay.value is not None:
        most_s = lasts.most_s * (count.value + 1) + delay.value * count.value
    account.lasts = Lasts(lasts.least_s, most_s, lasts.uncounted)


def updates(given: tuple[Update, ...], account: Account) -> list[dict[str, Any]]:
    """Writes, as far as they are known."""
    found = []
    for update in given:
        path = account.known.path(update.path)
        account.problems += path.problems
        one: dict[str, Any] = {"path": path.value, "operation": update.operation}
        if update.has_value:
            value = account.known.value(update.value)
            account.problems += value.problems
            one["value"] = value.value
        elif update.operation == "increment":
            one["value"] = 1
        found.append(one)
    return found


def after(step: kinds.Working, account: Account) -> str:
    """Its time limit, and where its result goes."""
    text, limit_s = _limit(step.timeout_s, account)
    if limit_s is not None and account.lasts.most_s is None:
        account.lasts = Lasts(account.lasts.least_s, limit_s, account.lasts.uncounted)
    if step.state_update is not None:
        path = account.known.hiding("result", "applied_count").path(step.state_update.path)
        account.problems += path.problems
        account.details["writes"] = [path.value]
        text += f" → {path.value}"
    return text


def _limit(timeout_s: float | str | None, account: Account) -> tuple[str, float | None]:
    """A time limit in words, and in seconds where it is known and there is one."""
    if timeout_s is None:
        return "", None
    seen = account.known.seconds(timeout_s)
    if seen.known and seen.value is None:  # a template that yields null: no limit
        return "", None
    account.take("timeout_s", seen)
    length = durations.shown(seen.value) if seen.known else str(seen.value)
    return f", for {length} at most", seen.value if seen.known else None


def _runs(account: Account, command: str | tuple[str, ...]) -> str:
    found = commands.command(command, account.known)
    account.details["command"] = found.text
    account.problems += found.problems
    account.tools += [f"command:{program}" for program in found.programs]
    account.lasts = Lasts(0.0, None, frozenset({"commands"}))
    return found.text


def _shell_command(step: kinds.ShellCommand, account: Account) -> str:
    return f"run `{_runs(account, step.command)}`"


def _agent_shell_command(step: kinds.AgentShellCommand, account: Account) -> str:
    does = f"run `{_runs(account, step.command)}` on the terminal"
    return f"{does} ({account.text('reason', step.reason)})" if step.reason else does


def _agent(step: kinds.AgentStep, account: Account) -> str:
    name = account.agent(step.agent)
    account.lasts = Lasts(0.0, None, frozenset({"agents"}))
    if step.prompt_name is None:
        text = account.text("prompt", str(step.prompt))
        if step.parameters:
            account.value("parameters", step.parameters)
        return f"have {name} do: {one_line(text, _PROMPT_SHOWN)}"
    account.details["prompt_name"] = step.prompt_name
    account.prompt(step.prompt_name, step.parameters)
    given = ", ".join(f"{key}={shown(value)}" for key, value in account.details["parameters"].items())
    return f"have {name} do the prompt {step.prompt_name}" + (f" with {given}" if given else "")


def _mcp_call(step: kinds.McpCall, account: Account) -> str:
    method = account.text("method", step.mcp.method)
    tool = method if step.mcp.server is None else f"{account.text('server', step.mcp.server)}/{method}"
    account.tools.append(f"mcp:{tool}")
    account.lasts = Lasts(0.0, None, frozenset({"MCP tools"}))
    return f"call the MCP tool {tool} with {shown(account.value('params', step.mcp.params).value)}"


def _state_update(step: kinds.StateUpdate, account: Account) -> str:
    found = updates(step.writes, account)
    account.details["updates"] = found
    return ", ".join(_OPERATIONS[one["operation"]].format(path=one["path"], value=shown(one["value"])) for one in found)


def _user_input(step: kinds.UserInput, account: Account) -> str:
    account.lasts = Lasts(0.0, None, frozenset({"answers"}))
    does = f"ask: {account.text('prompt', step.prompt)}"
    if step.choices is not None:
        account.details["choices"] = list(step.choices)
        does += f" ({', '.join(map(shown, step.choices))})"
    if "default" in step.model_fields_set:
        account.value("default", step.default)
    return does


def _user_message(step: kinds.UserMessage, account: Account) -> str:
    return f"say: {account.text('message', step.message)}"


def _apply_hints(step: kinds.ApplyHints, account: Account) -> str:
    account.lasts = Lasts(0.0, None, frozenset({"agents"}))
    name = account.agent(step.agent)
    file, hints = account.text("file", step.file), account.value("hints", step.hints)
    return f"have {name} apply hints to {file}: {shown(hints.value)}"


def _wait(step: kinds.Wait, account: Account) -> str:
    account.lasts = Lasts(0.0, None, frozenset({"waits"}))
    if step.until is not None:
        account.details["until"] = bare(str(step.until))
        account.problems += account.known.truth(step.until).problems
        text, limit_s = _limit(step.timeout_s, account)
        account.lasts = Lasts(0.0, limit_s, account.lasts.uncounted)
        return f"wait until {account.details['until']}{text}"
    length = account.known.seconds(step.duration_s)
    if length.known and length.value is None:
        length = Seen(step.duration_s, known=False, problems=("duration has no value (null)",))
    account.take("duration_s", length)
    if not length.known:
        return f"wait {length.value}"
    account.lasts = Lasts(length.value, length.value)
    return f"wait {durations.shown(length.value)}"


def _exit(step: kinds.Exit, account: Account) -> str:
    account.details["status"] = step.status
    does = "end the run" if step.status == "success" else "end the run as failed"
    return f"{does}: {account.text('message', step.message)}" if step.message else does


_DESCRIBERS: dict[type[kinds.StepBase], Callable[[Any, Account], str]] = {
    kinds.ShellCommand: _shell_command,
    kinds.AgentShellCommand: _agent_shell_command,
    kinds.AgentStep: _agent,
    kinds.McpCall: _mcp_call,
    kinds.StateUpdate: _state_update,
    kinds.UserInput: _user_input,
    kinds.UserMessage: _user_message,
    kinds.ApplyHints: _apply_hints,
    kinds.Wait: _wait,
    kinds.Exit: _exit,
    Break: lambda _step, _account: "leave the loop",
    Continue: lambda _step, _account: "go on with the loop's next iteration",
}
