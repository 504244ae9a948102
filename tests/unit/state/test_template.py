"""Templates: where expressions end, what they become, and where errors are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import ExpressionError, TemplateError
from sidecar.state.javascript import Placeholder, split_template
from sidecar.state.script import Expression, Script
from sidecar.state.template import as_text, compile_text
from sidecar.state.world import World


def unevaluated(source: str) -> Expression:
    """An expression that nothing evaluates."""
    return Expression(source, tuple(re.findall(r"[A-Za-z_]\w*", source)), (), "", 0)


SCRIPT = Script(worker=False)
checked = SCRIPT.compile


def world(**scope: Any) -> Callable[[Expression], Any]:
    values = World(SCRIPT)
    for name, value in scope.items():
        values.set(name, value)
    return values.run


def render(text: str, **scope: Any) -> Any:
    return compile_text(text, checked).render(world(**scope))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


# --- where an expression ends


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ {a: '}}'}.a }}", "}}"),
        ("{{ {a:{b:{c:1}}}}}", {"a": {"b": {"c": 1}}}),
        ("{{{a: 1}}}", {"a": 1}),
        ("{{ '}}' }}", "}}"),
        ('{{ "}} \\" }}" }}', '}} " }}'),
        ("{{ `}}` }}", "}}"),
        ("{{ `a${ {b: '}}'}.b }c` }}", "a}}c"),
        ("{{ `${`${'`}}'}`}` }}", "`}}"),
        ("{{ `$}} $ {` }}", "$}} $ {"),
        ("{{ '}}x'.replace(/}}/, '') }}", "x"),
        ("{{ '/}}'.replace(/[/}]+/g, '') }}", ""),
        ("{{ 'a|b'.split(/\\||}}/).length }}", 2),
        ("{{ 8 / 2 / 2 }}", 2),
        ("{{ [8][0] / 2 /* }} */ / 2 }}", 2),
        ("{{ (8) / 2 }}", 4),
        ("{{ 1 // }}\n + 1 }}", 2),
        ("{{ (() => { if (true) { return {a: 1} } })().a }}", 1),
        ("{{ typeof /}}/ }}", "object"),
        ("{{ ({in: 4}).in / 2 }}", 2),
        ("{{ [8].map(of => of / 2 /* }} */)[0] }}", 4),
        ("{{ (() => { for (const x of /}}/.exec('}}')) return x })() }}", "}}"),
    ],
)
def test_an_expression_ends_where_javascript_says_it_ends(text: str, value: object) -> None:
    assert render(text) == value
    assert render(f"<{text}|{text}>") == f"<{as_text(value)}|{as_text(value)}>"


@given(st.text(), st.text(), st.text())
def test_any_string_literal_is_passed_through_whatever_it_contains(before: str, literal: str, after: str) -> None:
    before, after = before.replace("{", "("), after.replace("{", "(")
    source = json.dumps(literal)
    found = split_template(f"{before}{{{{ {source} }}}}{after}")
    assert [part.source if isinstance(part, Placeholder) else part for part in found] == [
        part for part in (before, source, after) if part
    ]
    [hole] = [part for part in found if isinstance(part, Placeholder)]
    assert (hole.offset, hole.source_offset) == (len(before), len(before) + 3)


@given(st.text(alphabet="{}[]()'\"`/\\|$ a1\n,:"))
def test_no_text_makes_the_reader_do_anything_but_answer_or_say_where_it_failed(text: str) -> None:
    failed_at = 0
    rebuilt = text
    try:
        rebuilt = "".join(part if isinstance(part, str) else part.text for part in split_template(text))
    except TemplateError as error:
        failed_at = error.offset
    assert rebuilt == text
    assert 0 <= failed_at < max(len(text), 1)


def test_deep_nesting_is_read() -> None:
    depth = 50_000
    [hole] = split_template("{{" + "(" * depth + "1" + ")" * depth + "}}")
    assert isinstance(hole, Placeholder)
    assert len(hole.source) == 2 * depth + 1


@pytest.mark.parametrize(
    ("text", "offset", "message"),
    [
        ("ab {{ x ", 3, "has no }}"),
        ("{{ }}", 0, "no expression"),
        ("x{{ | json }}", 1, "no expression"),
        ("{{ (a }}", 3, r"`\(` is not closed"),
        ("{{ a) }}", 4, r"unmatched `\)`"),
        ("{{ a } }}", 5, "unmatched `}`; did you mean `}}`"),
        ("{{ 'a }}", 3, "does not end on its line"),
        ("{{ `a }}", 3, "no closing backtick"),
        ("{{ {a: 1 }}", 10, "unmatched `}`; did you mean `}}`"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_place(text: str, offset: int, message: str) -> None:
    with pytest.raises(TemplateError, match=message) as caught:
        split_template(text)
    assert caught.value.offset == offset


# --- filters


@pytest.mark.parametrize(
    ("text", "source", "filters"),
    [
        ("{{ a | json }}", "a", ("json",)),
        ("{{ a|json|quote }}", "a", ("json", "quote")),
        ("{{ a || json }}", "a || json", ()),
        ("{{ a | b }}", "a | b", ()),
        ("{{ a | b | raw }}", "a | b", ("raw",)),
        ("{{ f(a | json) }}", "f(a | json)", ()),
        ("{{ '| json' }}", "'| json'", ()),
        ("{{ '|' | json }}", "'|'", ("json",)),
        ("{{ /|/ | json }}", "/|/", ("json",)),
        ("{{ `${a | json}` }}", "`${a | json}`", ()),
        ("{{ a ? b : c | path_to_key }}", "a ? b : c", ("path_to_key",)),
        ("{{ a | json /* | raw */ }}", "a", ("json",)),
        ("{{ a.b | json.x }}", "a.b | json.x", ()),
    ],
)
def test_filters_are_split_off_at_the_end_only(text: str, source: str, filters: tuple[str, ...]) -> None:
    [hole] = split_template(text)
    assert isinstance(hole, Placeholder)
    assert (hole.source, hole.filters) == (source, filters)


def test_filters_do_what_they_say() -> None:
    assert render("{{ x | json }}", x="a") == '"a"'
    assert render("{{ x | json }}", x=[1, None]) == "[1, null]"
    assert render("{{ x | quote }}", x="it's") == "'it'\"'\"'s'"
    assert render("{{ x | raw }}", x=[1]) == [1]
    assert render("{{ x | path_to_key }}", x="src/a.ts") == "src/a.ts"
    assert render("{{ x | path_to_key }}", x=7) == "7"
    with pytest.raises(TemplateError, match="null or undefined cannot be a key"):
        render("{{ x | path_to_key }}", x=None)


# --- what becomes of a value


@given(JSON)
def test_an_expression_alone_yields_the_typed_value(value: object) -> None:
    assert compile_text("{{ x }}", unevaluated).render(lambda expression: value) is value
    assert compile_text("\n {{ x }}\n", unevaluated).render(lambda expression: value) is value


def test_inside_text_objects_are_json_and_null_is_nothing() -> None:
    scope: dict[str, Any] = {"n": None, "o": {"a": [1, "é"]}, "b": True, "f": 0.5}
    assert (
        render("{{ n }}|{{ undefined }}|{{ o }}|{{ b }}|{{ f }}|{{ 4/2 }}", **scope) == '||{"a": [1, "é"]}|true|0.5|2'
    )
    assert as_text(3.0) == "3"


@given(st.text())
def test_a_value_is_never_read_as_a_template(value: str) -> None:
    template = compile_text("<{{ a }}|{{ b }}>", unevaluated)
    assert (
        template.render(lambda expression: value if expression.source == "a" else "{{ a }}") == f"<{value}|{{{{ a }}}}>"
    )


# --- errors


def test_a_place_on_a_later_line_of_the_expression_is_found() -> None:
    def failing(source: str) -> Expression:
        raise ExpressionError("no", kind="syntax", line=2, column=3)

    with pytest.raises(TemplateError) as caught:
        compile_text("ab {{ one +\n  two }}", failing)
    assert caught.value.offset == "ab {{ one +\n  two }}".index("two")


def test_an_error_at_run_time_names_the_expression_and_its_place() -> None:
    template = compile_text("n: {{ x.y }}", checked)
    with pytest.raises(TemplateError, match=r"\{\{ x\.y \}\}: .*undefined|null") as caught:
        template.render(world(x=None))
    assert (caught.value.offset, caught.value.kind) == (6, "runtime")
