"""Acceptance and chaos tests know the product from outside only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
OUTSIDE = ("acceptance", "chaos", "kit")


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "importorskip")):
            yield from (str(word.value) for word in node.args if isinstance(word, ast.Constant))


@pytest.mark.parametrize("directory", OUTSIDE)
def test_tests_from_outside_import_nothing_of_the_product(directory: str) -> None:
    files = sorted((TESTS / directory).rglob("*.py"))
    assert len(files) > 5
    found = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in files
        for name in imported(path)
        if name.partition(".")[0] == "sidecar"
    ]
    assert found == []
