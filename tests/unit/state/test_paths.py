"""Paths: how they are written, and writes that touch nothing but what they name."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import TemplateError
from sidecar.state import paths
from sidecar.state.paths import Patch, PathError
from sidecar.state.script import Expression


def unevaluated(source: str) -> Expression:
    """An expression that nothing evaluates."""
    return Expression(source, (source,), (), "", 0)


def resolve(text: str, **values: Any) -> paths.Path:
    return paths.compile_path(text, unevaluated).resolve(lambda expression: values[expression.source])


KEYS = st.text(min_size=0, max_size=6) | st.sampled_from(
    ["a.b", "a[0]", '"', "'", "x]", "0", "{{ x }}", "\\", "src/a.ts"]
)
PATHS = st.tuples(st.sampled_from(["raw", "state"]), KEYS).flatmap(
    lambda head: st.lists(KEYS | st.integers(0, 3), max_size=3).map(lambda tail: (*head, *tail))
)


# --- how paths are written


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("raw.a", ("raw", "a")),
        ('raw.results["src/a.ts"].x[0]', ("raw", "results", "src/a.ts", "x", 0)),
        ("raw['it\\'s']", ("raw", "it's")),
        ('raw["a\\n\\u00e9\\\\"]', ("raw", "a\né\\")),
        ("state.my-field.0", ("state", "my-field", "0")),
        ("valid_files[1]", ("valid_files", 1)),
        ('raw["{{ x }}"]'.replace("{{ x }}", ""), ("raw", "")),
    ],
)
def test_a_path_reads_like_javascript(text: str, path: paths.Path) -> None:
    assert paths.parse(text) == path


@given(PATHS)
def test_a_path_that_is_shown_can_be_read_again(path: paths.Path) -> None:
    assert paths.parse(paths.show(path)) == path


@pytest.mark.parametrize(
    "text",
    ["", ".", "raw.", "raw..a", ".raw", "raw[", "raw[x]", "raw[-1]", 'raw["a', 'raw["a"', "raw.a b", "raw.[0]", "raw]"],
)
def test_what_is_no_path_is_an_error_that_shows_it(text: str) -> None:
    with pytest.raises(PathError, match=re.escape(repr(text))):
        paths.parse(text)


# --- segments from expressions


@given(st.text())
def test_a_segment_from_an_expression_is_one_key_whatever_it_contains(key: str) -> None:
    for text in (
        "raw.r.{{ x | path_to_key }}.hints",
        "raw.r.{{ x }}.hints",
        "raw.r[{{ x }}].hints",
        'raw.r["{{ x }}"].hints',
    ):
        assert resolve(text, x=key) == ("raw", "r", key, "hints")
    assert resolve("raw.batch_{{ x }}_{{ y }}", x=key, y=7) == ("raw", f"batch_{key}_7")


def test_a_number_is_an_index_in_brackets_and_a_key_after_a_dot() -> None:
    assert resolve("raw.r[{{ x }}]", x=2) == ("raw", "r", 2)
    assert resolve("raw.r.{{ x }}", x=2) == ("raw", "r", "2")


@pytest.mark.parametrize("value", [None, {}, []])
def test_what_has_no_name_cannot_be_a_segment(value: object) -> None:
    with pytest.raises(TemplateError, match="cannot be a key") as caught:
        resolve("raw.r.{{ x }}", x=value)
    assert caught.value.offset == len("raw.r.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("count", "raw.count"),
        ("computed.total", "computed, not written"),
        ("inputs.x", "raw. or state."),
        ("raw", "raw.<name>"),
        ("raw[0]", "raw.<name>"),
        ("{{ x }}", "has to begin with raw. or state."),
        ("{{ x }}.y", "has to begin with raw. or state."),
    ],
)
def test_only_raw_and_state_can_be_written_and_the_error_names_the_right_form(text: str, message: str) -> None:
    with pytest.raises(PathError, match=re.escape(message)):
        paths.compile_path(text, unevaluated)


# --- writes


def write(state: dict[str, Any], path: str, operation: str = "set", value: Any = None) -> paths.StateChange:
    return paths.apply(state, paths.parse(path), operation, value)


@pytest.mark.parametrize(
    ("raw", "path", "operation", "value", "after"),
    [
        ({}, "raw.a.b[0].c", "set", 1, {"a": {"b": [{"c": 1}]}}),
        ({"a": None}, "raw.a.b", "set", 1, {"a": {"b": 1}}),
        ({"a": None}, "raw.a", "append", 1, {"a": [1]}),
        ({"a": None}, "raw.a", "increment", None, {"a": 1}),
        ({"a": None}, "raw.a", "merge", {"x": 1}, {"a": {"x": 1}}),
        ({"l": [1]}, "raw.l", "append", [2, 3], {"l": [1, [2, 3]]}),
        ({"n": 2}, "raw.n", "increment", None, {"n": 3}),
        ({"n": 2}, "raw.n", "increment", -0.5, {"n": 1.5}),
        ({"o": {"a": {"x": 1}, "b": 1}}, "raw.o", "merge", {"a": {"y": 2}}, {"o": {"a": {"y": 2}, "b": 1}}),
        ({"o": {}}, "raw.o[0]", "set", 1, {"o": {"0": 1}}),
    ],
)
def test_a_write_makes_what_is_missing_and_does_its_operation(
    raw: Any, path: str, operation: str, value: Any, after: Any
) -> None:
    assert write({"raw": raw}, path, operation, value).state == {"raw": after}


def test_the_patch_of_an_append_is_its_item_and_those_of_a_merge_are_its_keys() -> None:
    assert write({"raw": {"l": [1]}}, "raw.l", "append", 2).patches == (Patch("raw", "l", (1,), 2),)
    change = write({"raw": {"o": {"a": 1}}}, "raw.o", "merge", {"a": 2, "c": 3})
    assert change.patches == (Patch("raw", "o", ("a",), 2), Patch("raw", "o", ("c",), 3))


def test_a_list_takes_the_index_behind_its_last_item_and_no_further() -> None:
    state = {"raw": {"l": ["a"]}}
    assert write(state, "raw.l[1]", value="b").state == {"raw": {"l": ["a", "b"]}}
    assert write(state, "raw.l.0", value="b").patches == (Patch("raw", "l", (0,), "b"),)
    with pytest.raises(PathError, match=re.escape("raw.l has 1 items: there is no place for [2]")):
        write(state, "raw.l[2]", value="b")


@pytest.mark.parametrize(
    ("path", "operation", "value", "message"),
    [
        ("raw.items.x", "set", 1, "raw.items is a list, not an object: it has no 'x'"),
        ("raw.n.x", "set", 1, "raw.n is a number, not an object"),
        ("raw.s.x.y", "set", 1, "raw.s is a text, not an object"),
        ("raw.o", "append", 1, "raw.o is an object, not a list"),
        ("raw.s", "increment", 1, "raw.s is a text, not a number"),
        ("raw.b", "increment", 1, "raw.b is true or false, not a number"),
        ("raw.n", "increment", "1", "the amount to add to raw.n is a text, not a number"),
        ("raw.items", "merge", {}, "raw.items is a list, not an object"),
        ("raw.o", "merge", [1], "only an object can be merged into raw.o, and the value is a list"),
        ("raw.o", "push", 1, "'push' is not an operation; available: set, append, increment, merge"),
        ("computed.o", "set", 1, "computed.o is computed"),
    ],
)
def test_an_error_tells_the_path_and_what_stood_in_the_way(path: str, operation: str, value: Any, message: str) -> None:
    state = {"raw": {"items": [], "n": 1, "s": "", "o": {}, "b": True}}
    with pytest.raises(PathError, match=re.escape(message)):
        write(state, path, operation, value)
    assert state == {"raw": {"items": [], "n": 1, "s": "", "o": {}, "b": True}}


def test_reading_finds_values_and_gives_the_default_where_nothing_is() -> None:
    state = {"raw": {"o": {"a.b": [10, None]}}}
    assert paths.get(state, ("raw", "o", "a.b", 0)) == 10
    assert paths.get(state, ("raw", "o", "a.b", 1), "d") is None
    assert paths.get(state, ("raw", "o", "x", 0), "d") == "d"
    assert paths.get(state, ("raw", "o", "a.b", "x"), "d") == "d"
    assert paths.get(state, ("raw", "o", "a.b", 9), "d") == "d"


def test_what_a_write_does_not_name_is_shared_not_copied() -> None:
    state: dict[str, Any] = {"raw": {"big": {"x": [1]}, "o": {"p": {}, "q": {"r": 1}}}, "state": {}}
    after = write(state, "raw.o.q.r", value=2).state
    assert after["raw"]["big"] is state["raw"]["big"]
    assert after["raw"]["o"]["p"] is state["raw"]["o"]["p"]
    assert after["state"] is state["state"]
    assert state["raw"]["o"]["q"] == {"r": 1}


STATES = st.fixed_dictionaries(
    {},
    optional={
        section: st.dictionaries(
            KEYS,
            st.recursive(
                st.none() | st.integers(),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
            ),
            max_size=3,
        )
        for section in ("raw", "state")
    },
)


@given(
    STATES, PATHS, st.sampled_from(paths.OPERATIONS), st.integers() | st.dictionaries(KEYS, st.integers(), max_size=2)
)
def test_a_write_leaves_its_input_alone_and_its_patches_say_all_of_it(
    state: dict[str, Any], path: paths.Path, operation: str, value: Any
) -> None:
    before = copy.deepcopy(state)
    try:
        change = paths.apply(state, path, operation, value)
    except PathError:
        assert state == before
        return
    assert state == before
    if operation == "set":
        assert paths.get(change.state, path) == value
    for patch in change.patches:
        patched(before, patch)
    assert before == change.state


def patched(state: dict[str, Any], patch: Patch) -> None:
    """What a second copy of the state does with a patch: one assignment into a container that is there."""
    *way, last = (patch.name, *patch.inner)
    container: Any = state.setdefault(patch.section, {})
    for segment in way:
        container = container[segment]
    if isinstance(container, list) and last == len(container):
        container.append(patch.value)
    else:
        container[last] = patch.value
