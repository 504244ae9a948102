"""Prompts by name: front matter, a template, and what is said when either is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.catalog import naming, prompts
from sidecar.errors import DefinitionError, NotFound

WHOLE = """\
---
title: Review
description: Reads a file critically.
parameters:
  - {name: file, description: Which file., required: true}
  - {name: depth, type: integer, default: 2, choices: [1, 2]}
---
Review {{ file }} to depth {{depth}}.

---
The dashes above are the author's own.
"""


class Prompts:
    """A project and a home with prompts in them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.project = root / ".swissarmyhammer" / "prompts"
        self.home = Path(os.environ["HOME"]) / ".swissarmyhammer" / "prompts"
        for directory in (self.project, self.home):
            directory.mkdir(parents=True, exist_ok=True)

    def of(self, text: str) -> prompts.Prompt:
        (self.project / "it.md").write_text(text)
        return prompts.find(str(self.root), "it")

    def problems(self, text: str) -> list[str]:
        with pytest.raises(DefinitionError) as caught:
            self.of(text)
        return [problem.removeprefix(f"{self.project}/it.md:") for problem in caught.value.problems]


@pytest.fixture
def place(tmp_path: Path) -> Prompts:
    return Prompts(tmp_path)


def test_a_prompt_is_front_matter_and_a_template(place: Prompts) -> None:
    prompt = place.of(WHOLE)
    assert (prompt.name, prompt.source, prompt.title) == ("it", "project", "Review")
    assert prompt.loaded_from == str(place.project / "it.md")
    assert prompt.description == "Reads a file critically."
    assert [(p.name, p.type, p.is_required, p.default) for p in prompt.parameters] == [
        ("file", "string", True, None),
        ("depth", "integer", False, 2),
    ]
    assert prompt.body.startswith("Review {{ file }}")
    assert prompt.body.endswith("---\nThe dashes above are the author's own.\n")


def test_a_file_without_front_matter_asks_for_the_names_that_it_mentions(place: Prompts) -> None:
    prompt = place.of("Explain {{ topic }} to {{ reader }}, and {{ topic }} again.\n")
    assert [(p.name, p.is_required) for p in prompt.parameters] == [("topic", True), ("reader", True)]


def test_not_found_tells_the_nearest_and_where_it_looked(place: Prompts) -> None:
    (place.project / "review.md").write_text("x")
    with pytest.raises(NotFound, match=r"no such prompt: reveiw; available: review, .*; looked in ") as caught:
        prompts.find(str(place.root), "reveiw")
    assert str(place.home) in str(caught.value)
    assert naming.builtin_directory("prompts") in str(caught.value)


def test_every_problem_has_its_line_in_the_file(place: Prompts) -> None:
    text = "---\ntitel: x\nparameters:\n  - {name: a-b}\n  - {name: c, type: integer, default: x}\n---\nbody\n"
    first, second, third = place.problems(text)
    assert (first, second[:2]) == ("2: unknown key 'titel'; did you mean 'title'?", "4:")
    assert third == "5: `default` is not of type integer"
    text = "---\nparameters: [{name: topic}]\n---\nfirst\nabout {{ topics }}\n"
    assert place.problems(text) == ["5: unknown parameter 'topics'; did you mean 'topic'?"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("---\ntitle: x\n", "1: the front matter has no second line of dashes"),
        ("---\n- a\n---\nx", "1: the front matter is a mapping"),
        ("---\ntitle: [\n---\nx", "3: "),
        ("---\na: 1\na: 2\n---\nx", "3: 'a' is there twice"),
        ("---\nparameters: [{name: a}, {name: a}]\n---\nx", "2: `parameters`: parameter 'a' is declared twice"),
    ],
)
def test_front_matter_that_is_none_is_told(place: Prompts, text: str, problem: str) -> None:
    assert place.problems(text)[0].startswith(problem)


@given(st.text(alphabet=st.sampled_from("-\n:{} ab[]\r\t&*"), max_size=40))
def test_whatever_the_text_it_is_a_prompt_or_a_definition_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    place = Prompts(tmp_path_factory.getbasetemp() / "any")
    try:
        assert place.of(text).name == "it"
    except DefinitionError as error:
        assert error.problems  # noqa: PT017 - either outcome is right
