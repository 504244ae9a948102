"""Whatever is told without the engine is what the engine would say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import ExpressionError
from sidecar.state import javascript
from sidecar.state.script import Script, Unsure, _read_simple
from sidecar.state.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    with Script(worker=False) as script:
        yield script


def _told(program: Any, values: dict[str, Any]) -> Any:
    """What is told here, with its type; Unsure where nothing is."""
    try:
        return _typed(program.simple(lambda name: values[name]))
    except (Unsure, KeyError):
        return Unsure


def _typed(value: Any) -> tuple[str, str]:
    return type(value).__name__, repr(value)


def _asked(script: Script, program: Any, values: dict[str, Any]) -> Any:
    """What the engine says; Unsure where another part of a value, which nobody asked for, cannot be carried there."""
    world = World(script)
    for name, value in values.items():
        world.set(name, value)
    asked = type(program)(program.source, program.names, program.bound, program.code, program.number)
    try:
        return _typed(world.run(asked))
    except ExpressionError as error:
        if "cannot hold it exactly" not in str(error):
            raise
        return Unsure
    finally:
        world.close()


@given(source=_EXPRESSION, values=st.fixed_dictionaries({}, optional={"x": _VALUE, "y": _VALUE, "z": _PRIMITIVE}))
def test_it_agrees_with_the_engine(script: Script, source: str, values: dict[str, Any]) -> None:
    try:
        program = script.compile(source)
    except ExpressionError:
        return
    if program.simple is None:
        return
    told = _told(program, values)
    if told is not Unsure:
        assert _asked(script, program, values) in (told, Unsure)


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("x < 1", {"x": float("nan")}),
        ("!x", {"x": float("nan")}),
        ("x > 1", {"x": float("inf")}),
        ("x", {"x": "\ud83d\ude00"}),
        ("x === '\U0001f600'", {"x": "\ud83d\ude00"}),
        ("x < '\U0001f600'", {"x": "\uffff"}),
        ("x && 1", {"x": []}),
        ("!x", {"x": {}}),
        ("!x", {"x": []}),
        ("x < 1", {"x": None}),
        ("x < true", {"x": False}),
        ("x <= null", {"x": None}),
        ("x[1]", {"x": ["a"]}),
        ("x <= 3", {"x": 3}),
        ("x < 3", {"x": 3}),
        ("x >= 3", {"x": 3}),
        ("x > 3", {"x": 3}),
        ("x || 1", {"x": "a"}),
        ("x || 0", {"x": ""}),
        ("x && 'b'", {"x": "a"}),
        ("x === 'a\\u0062'", {"x": "ab"}),
        ("x === 1", {"x": True}),
        ("x === 1", {"x": 1.0}),
        ("x === null", {"x": 0}),
        ("x == null", {"x": 0}),
        ("x == false", {"x": 0}),
        ("x.length", {"x": {"length": "own"}}),
        ("x.length", {"x": "\U0001f600"}),
    ],
)
def test_where_the_two_languages_differ_it_agrees_with_the_engine(
    script: Script, source: str, values: dict[str, Any]
) -> None:
    program = script.compile(source)
    told = Unsure if program.simple is None else _told(program, values)
    assert told in (Unsure, _asked(script, program, values))


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("n", 3),
        ("n < 5", True),
        ("n >= 5", False),
        ("item.name", "é"),
        ("items.length > 0 && !done", True),
        ("items[1] === 'b'", True),
        ("done || item.name", "é"),
        ("missing === null", True),
        ("n === '3'", False),
        ("(n != 3) == done;", True),
        ("n < 2.5", False),
    ],
)
def test_what_workflows_mostly_ask_needs_no_engine(source: str, value: Any) -> None:
    read = _read_simple(javascript.scan(source).tokens)
    assert read is not None
    values = {"n": 3, "item": {"name": "é"}, "items": ["a", "b"], "done": False, "missing": None}
    assert _typed(read(lambda name: values[name])) == _typed(value)


@pytest.mark.parametrize(
    "source",
    ["items", "item", "gone", "item.gone", "items[2]", "n == '3'", "n < '5'", "large", "whole", "item.name.length"],
)
def test_what_could_be_otherwise_there_is_left_to_the_engine(source: str) -> None:
    read = _read_simple(javascript.scan(source).tokens)
    assert read is not None
    values: dict[str, Any] = {"n": 3, "item": {"name": "é"}, "items": ["a"], "large": 2**53, "whole": 2.0}
    with pytest.raises((Unsure, KeyError)):
        read(lambda name: values[name])


@pytest.mark.parametrize(
    "source", ["f(x)", "x => x", "x + 1", "x ? 1 : 2", "Math", "x.__proto__", "`x`", "x ?? 1", "-1"]
)
def test_anything_else_is_not_read_here(source: str) -> None:
    assert _read_simple(javascript.scan(source).tokens) is None


def test_a_world_tells_it_without_a_process() -> None:
    with Script() as script:
        program = script.compile("n < 5 && items.length === 2")
        script.close()
        world = World(script)
        world.set("raw.n", 4)
        world.alias("n", "raw.n")
        assert world.run(program, {"items": [1, 2]}) is True
        assert not script.running
