"""A value put into somebody's JSON file changes nothing else in it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.service import json_text

ENTRY = {"command": "sidecar", "args": ["serve"]}
PATH = ("mcpServers", "sidecar")
KEYS = st.text(st.characters(codec="utf-8"), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
DOCUMENTS = st.fixed_dictionaries(
    {}, optional={"mcpServers": st.dictionaries(KEYS, VALUES, max_size=3), "a": VALUES, 'with "quotes"': VALUES}
)


def put(text: str, value: Any = ENTRY, path: tuple[str, ...] = PATH, *, comments: bool = True) -> str:
    return json_text.put(text, path, value, comments=comments)


@given(DOCUMENTS, st.sampled_from([None, 0, 2, 4, "\t"]), st.booleans())
def test_every_document_means_the_same_as_before_and_has_the_entry(
    document: dict[str, Any], indent: int | str | None, windows: bool
) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    text = text.replace("\n", "\r\n") if windows else text
    found = put(text, comments=False)
    wanted = {**document, "mcpServers": {**document.get("mcpServers", {}), "sidecar": ENTRY}}
    if isinstance(existing := document.get("mcpServers", {}).get("sidecar"), dict):
        wanted["mcpServers"]["sidecar"] = {**existing, **ENTRY}
    assert json.loads(found) == wanted
    assert json_text.read(found, comments=False) == wanted
    assert put(found, comments=False) == found
    assert windows == ("\r\n" in found) or "\n" not in text
    assert not windows or not re.search(r"(?<!\r)\n", found)


@given(VALUES, st.sampled_from([None, 2]))
def test_it_reads_what_the_standard_library_reads(value: Any, indent: int | None) -> None:
    assert json_text.read(json.dumps(value, indent=indent), comments=False) == value


def test_comments_order_and_layout_stay() -> None:
    text = """\
// my servers
{
    "theme": "dark",   // at night
    "mcpServers": {
        /* the first one */
        "git": {"command": "uvx", "args": ["git"]} // needs uv
        // nothing more yet
    },
    "n": 1.0
}
"""
    assert (
        put(text)
        == """\
// my servers
{
    "theme": "dark",   // at night
    "mcpServers": {
        /* the first one */
        "git": {"command": "uvx", "args": ["git"]}, // needs uv
        // nothing more yet
        "sidecar": {
            "command": "sidecar",
            "args": [
                "serve"
            ]
        }
    },
    "n": 1.0
}
"""
    )


def test_an_entry_keeps_what_a_person_added_to_it() -> None:
    text = '{\n  "mcpServers": {\n    "sidecar": {"command": "old", "timeout": 5, "args": []}\n  }\n}\n'
    assert json.loads(put(text))["mcpServers"]["sidecar"] == {"command": "sidecar", "timeout": 5, "args": ["serve"]}


def test_a_comma_behind_the_last_member_is_used() -> None:
    found = put('{\n  "mcpServers": {\n    "git": {},\n  },\n}\n')
    assert json_text.read(found, comments=True) == {"mcpServers": {"git": {}, "sidecar": ENTRY}}


def test_what_looks_like_a_comment_or_a_bracket_inside_a_text_is_text() -> None:
    text = '{\n  "a": "// } /* , ",\n  "mcpServers": {}\n}'
    assert json_text.read(put(text), comments=True) == {"a": "// } /* , ", "mcpServers": {"sidecar": ENTRY}}


def test_a_byte_order_mark_stays() -> None:
    assert (
        put('\ufeff{"a": 1}') == '\ufeff{"a": 1, "mcpServers": {"sidecar": {"command": "sidecar", "args": ["serve"]}}}'
    )


@pytest.mark.parametrize("text", ["", " \n", "\ufeff"])
def test_an_empty_file_becomes_an_object(text: str) -> None:
    assert json.loads(put(text)) == {"mcpServers": {"sidecar": ENTRY}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{\n"a": 1\n"b": 2}', "line 3: a comma or } is expected"),
        ('{"a": }', "line 1: a value is expected"),
        ('{"a": 1', "line 1: a comma or } is expected"),
        ('{"a"', "a colon is expected"),
        ("{a: 1}", "a name in double quotes"),
        ('{"a": "x\n"}', "line 1: this text is not right"),
        ('{"a": [1, 2}', "a comma or ]"),
        ('{"a": [', "it ends too early"),
        ("{}\n{}", "line 2: there is something behind"),
        ('{"mcpServers": []}', "line 1: mcpServers is not an object"),
        ("[]", "the whole is not an object"),
        ('{"a": /* x', "a value is expected"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_text_is_refused_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        put(text)


@pytest.mark.parametrize("text", ["{} // x", '{"a": 1,}', "{/* x */}", '{"a": [1,]}'])
def test_where_a_client_takes_no_comments_they_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"comments are not allowed|a comma before"):
        put(text, comments=False)
    assert json_text.read(put(text), comments=True)["mcpServers"] == {"sidecar": ENTRY}
