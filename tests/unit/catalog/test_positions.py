"""Where in a file things stand."""

from __future__ import annotations

import pytest

from sidecar.catalog import yaml_format

TEXT = """\
name: x
steps:
  - type: a
    command: "echo hi"
    plain: one two
    block: |
      first

      second line
    folded: >-
      one
      two
    quoted: 'it''s'
"""


@pytest.fixture(params=[yaml_format.parse, yaml_format.parse_pure], ids=["libyaml", "pure"])
def document(request: pytest.FixtureRequest) -> yaml_format.Document:
    parsed: yaml_format.Document = request.param(TEXT, "f.yaml")
    return parsed


def test_an_entry_begins_at_its_key_or_list_item(document: yaml_format.Document) -> None:
    assert document.place(()) == (1, 1)
    assert document.place(("steps",)) == (2, 1)
    assert document.place(("steps", 0)) == (3, 5)
    assert document.place(("steps", 0, "command")) == (4, 5)
    assert document.place(("steps", 0, "absent", 3)) == (3, 5)


def test_a_value_begins_behind_its_key_and_quote(document: yaml_format.Document) -> None:
    step = ("steps", 0)
    assert document.value_place(("name",)) == (1, 7)
    assert document.value_place((*step, "command")) == (4, 15)
    assert document.value_place((*step, "plain")) == (5, 12)
    assert document.value_place((*step, "block")) == (7, 7)
    assert document.value_place((*step, "absent")) == (3, 5)


def test_a_place_inside_a_text_is_a_place_in_the_file(document: yaml_format.Document) -> None:
    step = ("steps", 0)
    assert document.inside((*step, "block"), 3, 8) == (9, 14)
    assert TEXT.splitlines()[8][13:] == "line"
    assert document.inside((*step, "command"), 1, 6) == (4, 20)
    assert TEXT.splitlines()[3][19:21] == "hi"
    assert document.inside((*step, "plain"), 1, 5) == (5, 16)


def test_where_only_the_scanner_knew_it_is_the_place_where_the_text_begins(document: yaml_format.Document) -> None:
    step = ("steps", 0)
    assert document.inside((*step, "quoted"), 1, 4) == document.value_place((*step, "quoted"))
    assert document.inside((*step, "folded"), 1, 5) == (11, 7)
