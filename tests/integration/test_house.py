"""The shape of the code: limits that keep it readable. docs/architecture.md says what goes where."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PACKAGE = CHECKOUT / "sidecar"
# What has been reached; each number may only be lowered. Wanted: 36,000 lines, 40 modules visited.
MOST_MODULES, MOST_LINES = 145, 39_600
SMALL, FAMILIES = 80, {"steps", "adapters", "cli"}
# Not in names: they say who speaks and not what happens, or a mood and not a thing.
BANNED = {
    *("told", "tell", "tells", "hear", "hears", "heard", "say", "says", "said", "heed", "greet", "whoever", "somebody"),
    *("nobody", "stir", "settle", "settles", "settled", "spare", "spares", "left"),
}
BANNED_MODULES = {
    *("aftermath", "vigil", "opened", "closing", "finishing", "working", "outcomes", "bookkeeping", "including"),
    *("handing", "filling", "hands", "steering", "looking", "crew", "seat", "speech", "doors", "outlet", "showing"),
    *("telling", "remains", "glance", "headings", "named", "needs", "asking", "family", "fitting", "listed"),
}
# 214 and 43 on a quiet machine; a busy one interrupts more coroutines, each of which counts again when it goes on.
MOST_CHANGES, MOST_VISITED = 250, 45
PROBE = """
import collections, json, os, sys, threading
last, changes, calls = None, 0, collections.Counter()
def profile(frame, event, arg):
    global last, changes
    module = frame.f_globals.get("__name__", "")
    if event != "call" or not module.startswith("sidecar") or frame.f_code.co_name == "<module>":
        return
    calls[module] += 1
    if module != last:
        changes, last = changes + 1, module
sys.argv = ["sidecar", "flow", "run", "loop", "--quiet"]
threading.setprofile(profile)
sys.setprofile(profile)
from sidecar.__main__ import main
try:
    main()
except SystemExit:
    pass
sys.setprofile(None)
with open(os.environ["FIGURES"], "w") as file:
    json.dump([changes, calls], file)
"""
LOOP = """
default_state: {{raw: {{n: 0}}}}
steps:
  - type: while
    condition: "{{{{ n < {times} }}}}"
    body:
      - {{type: shell_command, command: "true"}}
      - {{type: state_update, path: raw.n, operation: increment}}
"""


@cache
def sources() -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(text) for path, text in sources().items()}


def definitions(*kinds: type[ast.AST]) -> Iterator[tuple[str, str]]:
    """Where each class or function is, and its name."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                yield str(path.relative_to(CHECKOUT)), node.name  # type: ignore[attr-defined]


def words(name: str) -> set[str]:
    return {word.lower() for part in re.split(r"[_-]", name) for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", part)}


def test_there_are_few_modules_and_lines() -> None:
    modules = [path for path in sources() if path.name != "__init__.py"]
    lines = sum(text.count("\n") for text in sources().values())
    assert len(modules) <= MOST_MODULES
    assert lines <= MOST_LINES


def test_a_public_class_name_stands_for_one_thing() -> None:
    places = defaultdict(list)
    for place, name in definitions(ast.ClassDef):
        if not name.startswith("_"):
            places[name].append(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_small_module_with_one_importer_belongs_inside_it() -> None:
    importers = defaultdict(set)
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sidecar"):
                for name in (node.module, *(f"{node.module}.{one.name}" for one in node.names)):
                    importers[name].add(path)
    alone = [
        path
        for path, text in sources().items()
        if text.count("\n") < SMALL
        and len(importers[".".join(path.relative_to(CHECKOUT).with_suffix("").parts)]) == 1
        and not FAMILIES & set(path.parts)
    ]
    assert alone == []


def test_names_are_words_of_the_field() -> None:
    named = [*definitions(ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)]
    named += [(str(path), path.stem) for path in sources()]
    assert [place for place in named if words(place[1]) & BANNED] == []
    assert [str(path) for path in sources() if path.stem in BANNED_MODULES] == []


def test_options_and_event_kinds_are_words_of_the_field() -> None:
    help_text = (CHECKOUT / "tests" / "acceptance" / "snapshots" / "help.txt").read_text()
    kinds = re.findall(r"^\| `(\w+)` \|", (CHECKOUT / "docs" / "events.md").read_text(), re.MULTILINE)
    names = {*re.findall(r"--[a-z][a-z-]+", help_text), *kinds}
    assert len(kinds) > 20
    assert [name for name in sorted(names) if words(name) & BANNED] == []


def test_logger_names_are_public_and_few() -> None:
    named = {name for text in sources().values() for name in re.findall(r"getLogger\(([^)]+)\)", text)}
    ours = {name for name in named if "sidecar" in name or name == "__name__"}
    assert ours == {f'"sidecar{one}"' for one in ("", ".daemon", ".runs", ".mcp", ".store")}


def figures(directory: Path, times: int) -> tuple[int, dict[str, int]]:
    """How often such a run changes from module to module, and how often it calls each."""
    project = directory / str(times)
    (project / ".swissarmyhammer" / "workflows").mkdir(parents=True)
    (project / ".swissarmyhammer" / "workflows" / "loop.yaml").write_text(LOOP.format(times=times))
    environment = {**os.environ, "FIGURES": str(project / "figures"), "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    changes, calls = json.loads((project / "figures").read_text())
    return changes, calls


def test_an_iteration_walks_through_few_modules(tmp_path: Path) -> None:
    """A `while` around a command and an update: what ten more iterations add."""
    few_changes, few_calls = figures(tmp_path, 3)
    many_changes, many_calls = figures(tmp_path, 13)
    visited = [module for module, calls in many_calls.items() if calls - few_calls.get(module, 0) >= 10]
    assert len(visited) <= MOST_VISITED, sorted(visited)
    assert (many_changes - few_changes) / 10 <= MOST_CHANGES


def test_the_architecture_page_has_every_module() -> None:
    page = (CHECKOUT / "docs" / "architecture.md").read_text()
    tree = page.partition("## The tree")[2].partition("\n## ")[0]
    for path in sources():
        if path.name != "__init__.py":
            assert re.search(rf"\b{path.stem}\b", tree), path
    known = {path.stem for path in (*sources(), *(CHECKOUT / "scripts").glob("*.py"))}
    assert set(re.findall(r"(\w+)\.py\b", page)) <= known


@pytest.mark.parametrize("name", ["README.md", "docs/architecture.md"])
def test_the_pages_about_the_code_name_packages_that_exist(name: str) -> None:
    found = set(re.findall(r"`(\w+)/\w+\.py`", (CHECKOUT / name).read_text()))
    found -= {path.name for top in (PACKAGE, CHECKOUT) for path in top.iterdir()} | FAMILIES
    assert found == set()
