"""Ids from positions."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sidecar.model.steps import branches
from sidecar.model.workflow import Workflow, numbered


def ids(steps: Any) -> list[str]:
    return [each for step in steps or () for each in (step.id, *(i for b in branches(step).values() for i in ids(b)))]


def all_ids(workflow: Workflow) -> list[str]:
    found = ids(workflow.steps) + ids(workflow.error_handling.on_failure)
    for task in (workflow.sub_agent_tasks or {}).values():
        found += ids(task.steps) + ids(task.error_handling.cleanup_on_error)
    return found


def test_a_step_without_an_id_is_known_by_its_position() -> None:
    workflow = numbered(
        Workflow.model_validate(
            {
                "steps": [
                    {"type": "exit"},
                    {"type": "while", "condition": True, "body": [{"type": "break"}, {"type": "exit", "id": "own"}]},
                    {
                        "type": "conditional",
                        "id": "choose",
                        "condition": True,
                        "then": [{"type": "exit"}],
                        "else": [{"type": "foreach", "items": [], "steps": [{"type": "continue"}]}],
                    },
                ],
                "sub_agent_tasks": {
                    "t": {"steps": [{"type": "exit"}], "error_handling": {"cleanup_on_error": [{"type": "exit"}]}}
                },
                "error_handling": {"on_failure": [{"type": "exit"}]},
            }
        )
    )
    assert all_ids(workflow) == [
        "0.exit",
        "1.while",
        "1.while.body.0.break",
        "own",
        "choose",
        "choose.then.0.exit",
        "choose.else.0.foreach",
        "choose.else.0.foreach.steps.0.continue",
        "on_failure.0.exit",
        "tasks/t.0.exit",
        "tasks/t.cleanup_on_error.0.exit",
    ]


NAMES = st.sampled_from(["a", "0", "body", "then", "tasks", "t", "on_failure", "while", "cleanup_on_error"])


def steps(depth: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    plain = st.just({"type": "exit"})
    if depth == 0:
        return st.lists(plain, max_size=2)
    inner = steps(depth - 1)
    loop = inner.map(lambda body: {"type": "while", "condition": True, "body": body})
    choice = st.tuples(inner, inner).map(
        lambda two: {"type": "conditional", "condition": True, "then": two[0], "else": two[1]}
    )
    return st.lists(st.one_of(plain, loop, choice), max_size=3)


@given(steps(2), st.dictionaries(NAMES, steps(1), max_size=2), steps(1), st.lists(NAMES, unique=True))
def test_no_two_steps_ever_have_the_same_id(
    main: list[dict[str, Any]],
    tasks: dict[str, list[dict[str, Any]]],
    on_failure: list[dict[str, Any]],
    given_ids: list[str],
) -> None:
    left = list(given_ids)

    def name(some: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same steps, some of them with an id that people could give."""
        named = []
        for step in some:
            inner = {key: name(value) for key, value in step.items() if isinstance(value, list)}
            named.append(step | inner | ({"id": left.pop()} if left else {}))
        return named

    workflow = Workflow.model_validate(
        {
            "steps": name(main),
            "sub_agent_tasks": {key: {"steps": name(value)} for key, value in tasks.items()},
            "error_handling": {"on_failure": name(on_failure)},
        }
    )
    found = all_ids(numbered(workflow))
    assert all(found)
    assert len(found) == len(set(found))
