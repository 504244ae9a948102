"""What an agent definition is, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sidecar.errors import InputError
from sidecar.model.agent import AgentDefinition, Limits


def define(**values: Any) -> AgentDefinition:
    return AgentDefinition.model_validate(values)


def problems(**values: Any) -> dict[str, str]:
    """What is wrong, by where."""
    with pytest.raises(ValidationError) as caught:
        define(**values)
    return {".".join(map(str, detail["loc"])): detail["msg"] for detail in caught.value.errors()}


def test_the_prompt_comes_from_the_caller_or_the_template_with_its_declared_parameters() -> None:
    agent = define(adapter="claude")
    assert agent.assign("claude", {"prompt": "fix the build"}).prompt == "fix the build"
    with pytest.raises(InputError, match="parameter 'prompt' is required"):
        agent.assign("claude", {})
    agent = define(adapter="codex", prompt="Review the last commit.")
    assert (agent.declared, agent.assign("review", {}).prompt) == ((), "Review the last commit.")
    parameters = [{"name": "file"}, {"name": "depth", "type": "integer", "default": 2}]
    agent = define(adapter="claude", prompt="Review {{ file }} ({{ depth }})", parameters=parameters)
    assert agent.assign("review", {"file": "a.py"}).prompt == "Review a.py (2)"


@pytest.mark.parametrize(
    ("values", "where", "message"),
    [
        ({"prompt": "{{ fil }}", "parameters": [{"name": "file"}]}, "prompt", "'fil'; did you mean 'file'?"),
        ({"parameters": [{"name": "file"}]}, "prompt", "unknown parameter 'prompt'"),
        ({"prompt": "", "parameters": [{"name": "a"}, {"name": "a"}]}, "parameters", "declared twice"),
        ({"adapter": "command"}, "command", "`command` is missing"),
        ({"adapter": "command", "command": ["x"], "model": "m"}, "model", "no model"),
        ({"adapter": "command", "command": "make all"}, "command", "has to be a list"),
        ({"adapter": "command", "command": []}, "command", "at least one word"),
        ({"adapter": "command", "command": {"a": 1}}, "command", "a list of at least one word"),
        ({"adapter": "command", "command": ["sh", 1]}, "command", "word 2 is not text"),
        ({"adapter": "command", "command": ["a\0b"]}, "command", "NUL"),
        ({"adapter": "command", "command": "{{ argv }}"}, "command", "a declared parameter of type array"),
    ],
)
def test_what_cannot_work_is_refused_at_its_place(values: dict[str, Any], where: str, message: str) -> None:
    assert message in problems(**{"adapter": "claude", **values})[where]


def test_the_caller_gives_the_argv_where_the_command_is_a_parameter() -> None:
    agent = define(adapter="command", prompt="", command="{{ argv }}", parameters=[{"name": "argv", "type": "array"}])
    assert agent.assign("run", {"argv": ["ls", "-l"]}).command == ("ls", "-l")
    for wrong in ([], [1], ["a\0"]):
        with pytest.raises(InputError, match="agent 'run': parameter 'argv'"):
            agent.assign("run", {"argv": wrong})


def test_what_looks_like_a_template_in_arguments_stays_as_it_is() -> None:
    agent = define(adapter="command", command=["docker", "ps", "--format", "{{.Names}}"], args=["{{ x }}"], prompt="")
    assert agent.assign("names", {}).command == ("docker", "ps", "--format", "{{.Names}}")


def test_limits_are_off_unless_set_and_durations_become_seconds() -> None:
    assert define(adapter="claude").limits == Limits()
    assert set(Limits().model_dump().values()) == {None}
    limits = define(
        adapter="claude", limits={"timeout": "5m", "idle_timeout": 30000, "max_cost_usd": 2, "max_tokens": 10}
    ).limits
    assert (limits.timeout_s, limits.idle_timeout_s, limits.max_cost_usd, limits.max_tokens) == (300.0, 30.0, 2.0, 10)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("timeout", "soon"),
        ("timeout", 0),
        ("idle_timeout", "0s"),
        ("idle_timeout", True),
        ("max_cost_usd", 0),
        ("max_cost_usd", "5"),
        ("max_cost_usd", float("nan")),
        ("max_cost_usd", float("inf")),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", -1),
    ],
)
def test_a_limit_that_limits_nothing_is_refused(key: str, value: object) -> None:
    assert list(problems(adapter="claude", limits={key: value})) == [f"limits.{key}"]


def test_numbers_and_odd_names_in_arguments_and_variables_are_refused() -> None:
    found = problems(adapter="claude", args=["--n", 3], env={"A": 1, "B=": "x", "": "y", "C": "a\0"})
    assert set(found) == {"args.1", "env.A", "env.B=.[key]", "env..[key]", "env.C"}
