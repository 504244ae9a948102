"""YAML as definitions may use it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.catalog import yaml_format
from sidecar.errors import DefinitionError


def problems(text: str) -> tuple[str, ...]:
    try:
        return yaml_format.parse(text, "f.yaml").problems
    except DefinitionError as error:
        return error.problems


def test_every_value_knows_its_line() -> None:
    document = yaml_format.parse("a: 1\nlimits:\n  timeout: 5\nlist:\n  - x\n  - y: 2\n", "f.yaml")
    assert document.value == {"a": 1, "limits": {"timeout": 5}, "list": ["x", {"y": 2}]}
    assert document.place(())[0] == 1
    assert document.place(("limits", "timeout"))[0] == 3
    assert document.place(("list", 1, "y"))[0] == 6
    assert document.place(("limits", "absent", "deeper"))[0] == 2
    assert document.problem(("list", 0), "wrong") == "f.yaml:5: wrong"


def test_every_duplicate_key_is_an_error_with_both_lines() -> None:
    assert problems("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n") == (
        "f.yaml:4: 'c' is there twice, first on line 3",
        "f.yaml:5: 'a' is there twice, first on line 1",
    )
    assert problems("{a: 1, a: 2}") == ("f.yaml:1: 'a' is there twice, first on line 1",)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: [1\n", 3),
        ("a: 1\n\tb: 2\n", 2),
        ("a: !!python/object/apply:os.system ['true']\n", 1),
        ("x: 1\na: !!python/name:os.system\n", 2),
        ("a: *nobody\n", 1),
        ("a: 1\n---\nb: 2\n", 2),
        ("? [a]\n: 1\n", 1),
        ("a: 1\nb: \x07\n", 2),
        ("a: " + "[" * 5000, 1),
        ("a: &x [*x]\n", 1),
        ("a: !!int x\n", 1),
        ("a:\n\t- b\n", 2),
    ],
)
def test_what_is_not_safe_yaml_is_an_error_with_its_line(text: str, line: int) -> None:
    (problem,) = problems(text)
    assert problem.startswith(f"f.yaml:{line}: ")
    assert "\n" not in problem


def test_aliases_may_not_multiply() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (problem,) = problems("\n".join(lines))
    assert "aliases" in problem


def test_an_alias_that_is_used_with_measure_is_fine() -> None:
    assert yaml_format.parse("a: &a [1, 2]\nb: *a\n", "f").value == {"a": [1, 2], "b": [1, 2]}


def test_dates_and_base_sixty_numbers_are_text() -> None:
    text = "a: 2026-11-16\nb: 1:30\nc: 0755\nd: 12\ne: 1.5\nf: 1e3\ng: 0x1F\nh: -3\n"
    expected = {"a": "2026-11-16", "b": "1:30", "c": "0755", "d": 12, "e": 1.5, "f": 1000.0, "g": 31, "h": -3}
    assert yaml_format.parse(text, "f").value == expected


def test_an_empty_file_is_nothing_and_a_byte_order_mark_is_no_key() -> None:
    assert yaml_format.parse("", "f").value is None
    assert yaml_format.parse("\ufeffa: 1", "f").value == {"a": 1}


def test_a_file_above_a_mebibyte_is_refused_and_one_at_it_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"a: 1 #".ljust(1024 * 1024, b"x"))
    assert yaml_format.load(str(path)).value == {"a": 1}
    path.write_bytes(b"a: 1 #".ljust(1024 * 1024 + 1, b"x"))
    with pytest.raises(DefinitionError, match="larger than 1024 KiB"):
        yaml_format.load(str(path))


def test_a_fifo_does_not_block_and_what_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "directory.yaml").mkdir()
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")
    for name, message in (
        ("fifo", "regular file"),
        ("directory", ":1: "),
        ("latin", ":2: not UTF-8"),
        ("no", "cannot"),
    ):
        with pytest.raises(DefinitionError, match=message):
            yaml_format.load(str(tmp_path / f"{name}.yaml"))


@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!#|>'\"?,%@`\n \t0x1_.é\x00\ud800"), max_size=60))
def test_whatever_the_text_it_is_a_document_or_a_definition_error(text: str) -> None:
    try:
        yaml_format.parse(text, "f.yaml")
    except DefinitionError as error:
        assert error.problems  # noqa: PT017 - either outcome is right


@pytest.mark.skipif(not yaml_format.FAST, reason="this PyYAML was built without libyaml")
@pytest.mark.parametrize("line", ["- 1\n", "- a?\n", "- - 1\n"])
def test_too_many_values_are_refused_without_the_pure_scanner(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take ten seconds for a mebibyte."""
    monkeypatch.setattr(yaml_format, "PureLoader", None)
    with pytest.raises(DefinitionError, match=f"more than {yaml_format.MAX_VALUES} values"):
        yaml_format.parse("steps:\n" + line * (yaml_format.MAX_VALUES + 1), "many.yaml")


@pytest.mark.skipif(not yaml_format.FAST, reason="this PyYAML was built without libyaml")
@pytest.mark.parametrize("wrong", ["- a: b: c\n", "- *nowhere\n", "a: 1\n"])
def test_an_error_late_in_a_large_file_has_its_line_without_the_pure_scanner(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take ten seconds for a mebibyte."""
    good = "- 1234567\n" * 99_000
    with pytest.raises(DefinitionError) as expected:
        yaml_format.parse_pure("- 1234567\n" + wrong, "late.yaml")
    monkeypatch.setattr(yaml_format, "PureLoader", None)
    with pytest.raises(DefinitionError) as found:
        yaml_format.parse(good + wrong, "late.yaml")
    ((first,), (second,)) = expected.value.problems, found.value.problems
    assert second.line - first.line == 98_999
