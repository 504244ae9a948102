"""The graph of computed fields: order, cycles, and who depends on whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.state.reactive import DependencyError, Graph

FIELDS = {
    "summary": ["computed.valid", "raw.tests"],
    "valid": ["computed.parsed"],
    "parsed": ["raw.output"],
    "deep": ["raw.config.retries", "computed.summary.total", 'raw.results["src/a.ts"]'],
}


def test_a_field_comes_after_what_it_reads() -> None:
    assert Graph(FIELDS).order == ("parsed", "valid", "summary", "deep")


def test_dependencies_of_a_computed_field() -> None:
    graph = Graph(FIELDS)
    for name in ("summary", "computed.summary"):
        found = graph.dependencies(name)
        assert found.direct == ("computed.valid", "raw.tests")
        assert set(found.transitive) == {"computed.valid", "computed.parsed", "raw.output", "raw.tests"}
        assert found.dependents == ("computed.deep",)


def test_dependents_of_what_is_written() -> None:
    graph = Graph(FIELDS)
    found = graph.dependencies("raw.output")
    assert (found.direct, found.transitive) == ((), ())
    assert found.dependents == ("computed.parsed", "computed.valid", "computed.summary", "computed.deep")
    assert graph.dependencies("raw.nobody_reads").dependents == ()


@pytest.mark.parametrize(
    ("fields", "circle"),
    [
        ({"a": ["computed.a"]}, "a → a"),
        ({"a": ["computed.b"], "b": ["raw.x", "computed.a.inner"]}, "a → b → a"),
        ({"x": ["computed.a"], "a": ["computed.b"], "b": ["computed.c"], "c": ["computed.a"]}, "a → b → c → a"),
    ],
)
def test_a_cycle_is_refused_and_named(fields: dict[str, list[str]], circle: str) -> None:
    with pytest.raises(DependencyError, match=f"depend on each other: {circle}$"):
        Graph(fields)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("computed.nobody", "there is no computed field 'nobody'; there are: field"),
        ("file_list", "say where 'file_list' is"),
        ("raw", "say where 'raw' is"),
        ("inputs.x", "say where 'inputs.x' is"),
        ("raw.a[", "computed field 'field'"),
    ],
)
def test_a_source_that_leads_nowhere_is_refused(source: str, said: str) -> None:
    with pytest.raises(DependencyError) as caught:
        Graph({"field": [source]})
    assert said in str(caught.value)
    assert caught.value.field == "field"


def test_a_chain_of_thousands_is_ordered() -> None:
    fields = {f"f{number}": [f"computed.f{number - 1}" if number else "raw.x"] for number in reversed(range(5000))}
    graph = Graph(fields)
    assert graph.order == tuple(f"f{number}" for number in range(5000))
    assert len(graph.dependencies("raw.x").dependents) == 5000


@given(edges=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40))
def test_there_is_an_order_exactly_where_there_is_no_cycle(edges: list[tuple[int, int]]) -> None:
    fields = {f"f{number}": ["raw.x"] + [f"computed.f{b}" for a, b in edges if a == number] for number in range(13)}
    reach = {number: {b for a, b in edges if a == number} for number in range(13)}
    for _ in range(13):
        for found in reach.values():
            for one in list(found):
                found.update(reach[one])
    if any(number in found for number, found in reach.items()):
        with pytest.raises(DependencyError):
            Graph(fields)
        return
    graph = Graph(fields)
    for a, b in edges:
        assert graph.position[f"f{b}"] < graph.position[f"f{a}"]
    for number in range(13):
        expected = {f"computed.f{other}" for other, found in reach.items() if number in found}
        assert set(graph.dependencies(f"f{number}").dependents) == expected
