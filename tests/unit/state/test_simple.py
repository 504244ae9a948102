"""A value that is computed without the engine is the one that the engine would give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import ExpressionError
from sidecar.state.script import Expression, Script, evaluate_simple
from sidecar.state.world import World

_TEXT = st.sampled_from(["", "a", "b", "10", "9", "é", "\U0001f600", "\ud83d", "\ude00", "\ud83d\ude00", "￿"])
_PRIMITIVE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from([2**53 - 1, 2**53, -(2**53), 0.5, -0.0, 2.0, 1e300, float("inf"), float("nan")]),
    _TEXT,
)
_VALUE = st.recursive(
    _PRIMITIVE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "length", "constructor", "__proto__"]), inner, max_size=3),
    ),
    max_leaves=6,
)
_LEAF = st.one_of(
    st.sampled_from(
        ["x", "y", "z", "x.a", "x.b", "x.a.b", "y.length", "x[0]", "y[1]", "x[0].a", "x.constructor", "x.__proto__"]
    ),
    st.sampled_from(["1", "0", "2.5", "10", "'a'", '"10"', "''", "true", "false", "null", "undefined", "NaN", "Math"]),
)


def _joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    marks = st.sampled_from(["===", "!==", "==", "!=", "<", ">", "<=", ">=", "&&", "||", "??", "+"])
    return st.one_of(
        inner.map(lambda one: f"!{one}"),
        inner.map(lambda one: f"({one})"),
        st.tuples(inner, marks, inner).map(" ".join),
    )


_EXPRESSION = st.recursive(_LEAF, _joined, max_leaves=5)


def _here(expression: Expression, values: dict[str, Any]) -> Any:
    """What is computed here, with its type; LookupError where nothing is."""
    if expression.simple is None:
        return LookupError
    try:
        return _typed(evaluate_simple(expression.simple, values))
    except LookupError:
        return LookupError


def _typed(value: Any) -> tuple[str, str]:
    return type(value).__name__, repr(value)


def _in_engine(script: Script, expression: Expression, values: dict[str, Any]) -> Any:
    """What the engine gives; LookupError where some other part of a value cannot be carried there."""
    world = World(script)
    for name, value in values.items():
        world.set(name, value)
    try:
        return _typed(world.run(replace(expression, simple=None)))
    except ExpressionError as error:
        if "cannot hold it exactly" not in str(error):
            raise
        return LookupError
    finally:
        world.close()


@given(source=_EXPRESSION, values=st.fixed_dictionaries({}, optional={"x": _VALUE, "y": _VALUE, "z": _PRIMITIVE}))
def test_it_agrees_with_the_engine(script: Script, source: str, values: dict[str, Any]) -> None:
    try:
        expression = script.compile(source)
    except ExpressionError:
        return
    here = _here(expression, values)
    if here is not LookupError:
        assert _in_engine(script, expression, values) in (here, LookupError)


# Source and value of x, where Python and JavaScript differ or a comparison stands at its edge.
DIFFERENT: list[tuple[str, Any]] = [
    ("x < 1", float("nan")), ("!x", float("nan")), ("x > 1", float("inf")), ("x", "\ud83d\ude00"),
    ("x === '\U0001f600'", "\ud83d\ude00"), ("x < '\U0001f600'", "\uffff"), ("x && 1", []), ("!x", {}), ("!x", []),
    ("x < 1", None), ("x < true", False), ("x <= null", None), ("x[1]", ["a"]), ("x <= 3", 3), ("x < 3", 3),
    ("x >= 3", 3), ("x > 3", 3), ("x || 1", "a"), ("x || 0", ""), ("x && 'b'", "a"), ("x === 'a\\u0062'", "ab"),
    ("x === 1", True), ("x === 1", 1.0), ("x === null", 0), ("x == null", 0), ("x == false", 0),
    ("x.length", {"length": "own"}), ("x.length", "\U0001f600"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "value"), DIFFERENT)
def test_where_the_two_languages_differ_it_agrees_with_the_engine(script: Script, source: str, value: Any) -> None:
    expression = script.compile(source)
    assert _here(expression, {"x": value}) in (LookupError, _in_engine(script, expression, {"x": value}))


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("n", 3),
        ("n < 5", True),
        ("n >= 5", False),
        ("item.name", "é"),
        ("items.length > 0 && !done", True),
        ("done || item.name", "é"),
        ("missing === null", True),
        ("n === '3'", False),
        ("(n != 3) == done;", True),
        ("n < 2.5", False),
    ],
)
def test_most_conditions_of_workflows_need_no_engine(script: Script, source: str, value: Any) -> None:
    values = {"n": 3, "item": {"name": "é"}, "items": ["a", "b"], "done": False, "missing": None}
    assert _here(script.compile(source), values) == _typed(value)


def test_a_world_evaluates_it_without_a_process() -> None:
    with Script() as script:
        expression = script.compile("n < 5 && items.length === 2")
        script.close()
        world = World(script)
        world.set("raw.n", 4)
        world.alias("n", "raw.n")
        assert world.run(expression, {"items": [1, 2]}) is True
        assert not script.running
