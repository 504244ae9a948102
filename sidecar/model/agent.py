"""Agents: what a definition says of one, and what the journal and receipts keep of its process and its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Strict, ValidationInfo, field_validator

from sidecar.errors import InputError
from sidecar.model import duration
from sidecar.model.language import Cost, StrictModel, VariableName, Word, check_no_nul
from sidecar.model.parameters import (
    Parameter,
    Parameters,
    bind,
    render_template,
    sole_template_name,
    template_names,
    unknown,
)

AdapterName = Literal["claude", "codex", "gemini", "command"]
PromptVia = Literal["stdin", "argument"]
PROMPT = Parameter(name="prompt", description="What the agent is to do.", required=True)


_Duration = Annotated[float, BeforeValidator(duration.seconds), Field(gt=0)]


class Limits(StrictModel):
    """Where an agent is ended for its own good. None: no such limit."""

    timeout_s: _Duration | None = Field(default=None, alias="timeout", description="How long a turn may take.")
    idle_timeout_s: _Duration | None = Field(
        default=None,
        alias="idle_timeout",
        description="How long it may show no sign of life: no output, no tool, no CPU time, no changed file.",
    )
    max_cost_usd: Cost | None = Field(default=None, description="What a turn may cost, where the agent reports it.")
    max_tokens: Annotated[int, Strict()] | None = Field(
        default=None, gt=0, description="How many tokens a turn may use, where the agent reports them."
    )


class AgentDefinition(StrictModel):
    """One agent. The order of the fields matters: a check may look at the fields above its own."""

    description: str = Field(default="", description="What it is for; lists show it.")
    adapter: AdapterName = Field(description="Which program it is, and so how it is started and what it reports.")
    parameters: Parameters | None = Field(
        default=None, description="What the caller gives. Without this key: `prompt`, where the template has it."
    )
    prompt: str = Field(
        default="{{ prompt }}", validate_default=True, description="What the agent is asked; a template of parameters."
    )
    command: tuple[str, ...] | str | None = Field(
        default=None,
        validate_default=True,
        description="The program with its arguments, as a list; needed for the adapter `command`. "
        "`{{ name }}`: the caller gives the list in a parameter of type array.",
    )
    prompt_via: PromptVia | None = Field(default=None, description="How the program gets its prompt.")
    args: tuple[Word, ...] = Field(default=(), description="More arguments for the program.")
    env: dict[VariableName, Word] = Field(default={}, description="Environment variables for the program.")
    model: Word | None = Field(default=None, description="Which model; for claude, codex and gemini.")
    limits: Limits = Field(default=Limits(), description="When it is ended.")

    @field_validator("prompt")
    @classmethod
    def _names_are_declared(cls, value: str, info: ValidationInfo) -> str:
        if "parameters" in info.data:  # absent: the parameters are wrong themselves, and reported
            declared = [parameter.name for parameter in _declared(info.data["parameters"], value)]
            for name in template_names(value):
                if name not in declared:
                    raise ValueError(unknown(name, declared, "parameter"))
        return value

    @field_validator("command", mode="plain")
    @classmethod
    def _command_is_an_argv(cls, value: object, info: ValidationInfo) -> tuple[str, ...] | str | None:
        if value is None:
            if info.data.get("adapter") == "command":
                raise ValueError("`command` is missing: the adapter `command` needs an argv, such as [sh, -c, make]")
            return None
        if isinstance(value, str):
            _check_command_parameter(value, info.data.get("parameters"))
            return value
        return _argv(value)

    @field_validator("model")
    @classmethod
    def _model_has_a_meaning(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("adapter") == "command":
            raise ValueError("the adapter `command` has no model; put it into `command` or `args`")
        return value

    @property
    def declared(self) -> tuple[Parameter, ...]:
        """The parameters that a caller may give."""
        return _declared(self.parameters, self.prompt)

    def assign(self, name: str, given: Mapping[str, object]) -> Assignment:
        """The agent with what its caller asks of it; InputError has everything that is wrong with that."""
        values = bind(self.declared, given, f"agent {name!r}")
        command = self.command
        if isinstance(command, str):
            parameter = sole_template_name(command) or ""
            try:
                command = _argv(values[parameter])
            except ValueError as error:
                raise InputError(f"agent {name!r}: parameter {parameter!r}: {error}") from None
        return Assignment(name, self, render_template(self.prompt, values), command)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One use of an agent: the prompt that it gets, and the argv where the definition or the caller gave one."""

    name: str
    definition: AgentDefinition
    prompt: str
    command: tuple[str, ...] | None


def _declared(parameters: tuple[Parameter, ...] | None, prompt: str) -> tuple[Parameter, ...]:
    if parameters is not None:
        return parameters
    return (PROMPT,) if "prompt" in template_names(prompt) else ()


def _check_command_parameter(text: str, parameters: tuple[Parameter, ...] | None) -> None:
    name = sole_template_name(text)
    if name is None:
        raise ValueError("`command` has to be a list, such as [sh, -c, make]; it is run without a shell")
    if name not in [parameter.name for parameter in parameters or () if parameter.type == "array"]:
        raise ValueError(f"{{{{ {name} }}}} has to be a declared parameter of type array")


def _argv(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("an argv is a list of at least one word, such as [sh, -c, make]")
    for number, word in enumerate(value, 1):
        if not isinstance(word, str):
            raise ValueError(f"word {number} is not text; put it in quotes")
        check_no_nul(word)
    return tuple(value)


EndReason = Literal[
    "abort", "timeout", "stall", "budget", "stage_gate", "redirect", "sibling_failed", "shutdown", "internal_error"
]
# An agent that was not asked to end has exited.
Reason = EndReason | Literal["exited"]
Rung = Literal["exited", "stdin", "term", "kill"]
RUNGS: tuple[Rung, ...] = ("exited", "stdin", "term", "kill")


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """What the journal keeps, so that a later sidecar finds the agent if its owner dies."""

    agent_id: str
    run_id: str | None
    pid: int
    started: float  # as the process table has it; together with pid and boot_id it names one process for ever
    boot_id: str
    marker: str
    tag: int
    group: str | None = None  # its cgroup, where it has one


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """One process of the tree and the rung of the ladder that it took; a row of a receipt's `processes`."""

    run_id: str | None
    pid: int
    started_at: str
    program: str  # its name, never its arguments: they may hold a prompt
    rung: Rung
    ms_to_death: float


@dataclass(frozen=True, slots=True)
class AgentEnded:
    """The one terminal event of an agent."""

    agent_id: str
    run_id: str | None
    task_id: str | None
    pid: int | None
    reason: Reason
    exit_code: int | None  # negative: the signal that ended it; None: it is not known
    rung: Rung
    duration_s: float
    tail: str
    processes: tuple[EndedProcess, ...]
    survivors: int  # what the last reading of the process table found
    problem: str | None = None  # what went wrong beside it, such as a log that could not be written
