"""Two scanners, one language: libyaml's and the pure one give the same documents and the same errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.catalog import naming, yaml_format
from sidecar.catalog.yaml_format import Document
from sidecar.errors import DefinitionError

BUILTIN = sorted(Path(naming.builtin_directory("workflows")).glob("*.yaml"))
needs_libyaml = pytest.mark.skipif(not yaml_format.FAST, reason="this PyYAML was built without libyaml")


def outcome(parse: Callable[[str, str], Document], text: str) -> object:
    try:
        document = parse(text, "f.yaml")
    except DefinitionError as error:
        return error.problems
    return document.value, shape(document.root), document.problems


def shape(node: yaml.Node | None) -> object:
    """Tags, values and places. Only where something ends, or nothing begins, may the two differ."""
    if node is None:
        return None
    if isinstance(node, yaml.ScalarNode) and node.value == "":
        return node.tag
    children: list[object] = []
    if isinstance(node, yaml.MappingNode):
        children = [(shape(key), shape(value)) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [shape(item) for item in node.value]
    text = node.value if isinstance(node, yaml.ScalarNode) else None
    return node.tag, node.start_mark.line, node.start_mark.column, text, children


@needs_libyaml
@pytest.mark.parametrize("path", BUILTIN, ids=lambda path: path.stem)
def test_the_built_in_workflows_are_the_same_with_and_without_libyaml(path: Path) -> None:
    text = path.read_text()
    assert outcome(yaml_format.parse, text) == outcome(yaml_format.parse_pure, text)


@needs_libyaml
@settings(max_examples=300)
@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!#|>'\"?,%@\n  \t01_.~<é\x00\x85\u2028"), max_size=40))
def test_any_text_is_the_same_with_and_without_libyaml(text: str) -> None:
    assert outcome(yaml_format.parse, text) == outcome(yaml_format.parse_pure, text)


@pytest.mark.parametrize(
    "text",
    ["[" * 500_000, "- " * 500_000, "? " * 500_000, "{a: " * 200_000, "[" * 101 + "]" * 101],
    ids=lambda t: t[:4],
)
@pytest.mark.parametrize("parse", [yaml_format.parse, yaml_format.parse_pure])
def test_deep_nesting_is_a_problem_and_not_the_end_of_the_process(
    text: str, parse: Callable[[str, str], Document]
) -> None:
    with pytest.raises(DefinitionError, match="nested more than 100 deep"):
        parse(text, "f.yaml")


@pytest.mark.parametrize("parse", [yaml_format.parse, yaml_format.parse_pure])
def test_nesting_up_to_the_limit_is_fine(parse: Callable[[str, str], Document]) -> None:
    assert parse("[" * 100 + "]" * 100, "f.yaml").value


@pytest.mark.parametrize(
    "text", ["a: !!bool x", "a: !!int ''", "a: !!timestamp x", "a: !!float x", "a: !!binary é", "a: " + "9" * 5000]
)
@pytest.mark.parametrize("parse", [yaml_format.parse, yaml_format.parse_pure])
def test_a_value_that_does_not_fit_its_tag_is_a_problem(text: str, parse: Callable[[str, str], Document]) -> None:
    with pytest.raises(DefinitionError):
        parse(text, "f.yaml")


def test_a_second_document_and_an_unknown_alias_are_problems_with_their_places() -> None:
    for text, place in (("a: 1\n---\nb: 2\n", (2, 1)), ("a: 1\nb:  *nobody\n", (2, 5))):
        with pytest.raises(DefinitionError) as caught:
            yaml_format.parse(text, "f.yaml")
        (problem,) = caught.value.problems
        assert (problem.line, problem.column) == place


def test_merged_keys_are_taken_and_an_own_key_wins() -> None:
    document = yaml_format.parse("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n", "f.yaml")
    assert document.value["use"] == {"x": 1, "y": 3}
    assert document.place(("use", "y"))[0] == 4
