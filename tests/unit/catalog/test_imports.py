"""Imports: relative, inside the directory, never in a circle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.catalog.workflows import Definition, load, restore
from sidecar.errors import DefinitionError

COMPONENT = "name: part\nsteps:\n  - {id: inner, type: exit}\n"


class Directory:
    """A directory of workflows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def load(self, name: str = "main.yaml") -> Definition:
        return load(str(self.path), str(self.path / name))

    def problems(self) -> list[str]:
        with pytest.raises(DefinitionError) as caught:
            self.load()
        return [problem.replace(f"{self.path}/", "") for problem in caught.value.problems]


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    (tmp_path / "workflows").mkdir()
    return Directory(tmp_path / "workflows")


def test_an_import_is_relative_to_the_file_that_has_it(directory: Directory) -> None:
    directory.write("shared/part.yaml", "name: part\nimports: [more/leaf.yaml, ../top.yaml]\nsteps: []\n")
    directory.write("shared/more/leaf.yaml", "name: leaf\nsteps: []\n")
    directory.write("top.yaml", "name: top\nsteps: []\n")
    directory.write("main.yaml", "workflow:\n  imports: [shared/part.yaml]\n  steps: []\n")
    loaded = directory.load()
    assert list(loaded.components) == ["part"]
    assert list(loaded.components["part"].components) == ["leaf", "top"]


def test_nothing_outside_of_the_directory_is_imported(directory: Directory, tmp_path: Path) -> None:
    (tmp_path / "outside.yaml").write_text(COMPONENT)
    (directory.path / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    directory.write("main.yaml", "imports:\n  - ../outside.yaml\n  - link.yaml\n  - x/../../outside.yaml\nsteps: []\n")
    assert directory.problems() == [
        f"main.yaml:2: '../outside.yaml' leads out of {directory.path}",
        f"main.yaml:3: 'link.yaml' leads out of {directory.path}",
        f"main.yaml:4: 'x/../../outside.yaml' leads out of {directory.path}",
    ]


def test_a_circle_is_refused_and_told(directory: Directory) -> None:
    directory.write("main.yaml", "name: m\nimports: [a.yaml]\nsteps: []\n")
    directory.write("a.yaml", "name: a\nimports: [b.yaml]\nsteps: []\n")
    directory.write("b.yaml", "name: b\nimports: [a.yaml]\nsteps: []\n")
    assert directory.problems() == ["b.yaml:2: imports go in a circle: a.yaml → b.yaml → a.yaml"]
    directory.write("a.yaml", "name: a\nimports: [a.yaml]\nsteps: []\n")
    assert directory.problems() == ["a.yaml:2: imports go in a circle: a.yaml → a.yaml"]


def test_a_long_chain_is_refused_before_it_is_too_long_for_anybody(directory: Directory) -> None:
    directory.write("main.yaml", "imports: [f0.yaml]\nsteps: []\n")
    for number in range(30):
        directory.write(f"f{number}.yaml", f"name: f{number}\nimports: [f{number + 1}.yaml]\nsteps: []\n")
    (problem,) = directory.problems()
    assert "imports nest more than 20 deep" in problem


def test_two_ways_to_one_file_are_no_circle(directory: Directory) -> None:
    directory.write("main.yaml", "imports: [a.yaml, b.yaml]\nsteps: []\n")
    for name in ("a", "b"):
        directory.write(f"{name}.yaml", f"name: {name}\nimports: [leaf.yaml]\nsteps: []\n")
    directory.write("leaf.yaml", "name: leaf\nsteps: []\n")
    loaded = directory.load()
    assert loaded.components["a"].components["leaf"] is loaded.components["b"].components["leaf"]


def test_the_problems_of_all_files_are_told_at_once(directory: Directory) -> None:
    directory.write("main.yaml", "stepz: []\nimports:\n  - gone.yaml\n  - bad.yaml\n  - 5\n")
    directory.write("bad.yaml", "name: bad\nsteps: [{type: nope}]\n")
    assert directory.problems() == [
        "main.yaml:1: `steps` is missing: there is nothing to do, and no `sub_agent_tasks` for others",
        "main.yaml:1: unknown key 'stepz'; did you mean 'steps'?",
        "main.yaml:3: no such file: gone.yaml",
        "main.yaml:5: number 3 of this list has to be text; put it in quotes",
        next(problem for problem in directory.problems() if problem.startswith("bad.yaml:2: unknown step type 'nope'")),
    ]


def test_the_case_of_a_name_counts_also_where_the_disk_ignores_it(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.write("Part.yaml", COMPONENT)
    directory.write("main.yaml", "imports: [part.yaml]\nsteps: []\n")
    monkeypatch.setattr("os.path.exists", lambda _: True)
    assert directory.problems() == ["main.yaml:1: no such file: part.yaml"]


def test_a_name_that_two_imports_have_and_one_that_is_missing_are_told(directory: Directory) -> None:
    tasks = "sub_agent_tasks: {t: {steps: []}}\n"
    directory.write("a.yaml", COMPONENT + tasks)
    directory.write("b.yaml", COMPONENT + tasks)
    directory.write("c.yaml", "steps: [{type: exit}]\n")
    directory.write("main.yaml", "imports:\n  - a.yaml\n  - b.yaml\n  - c.yaml\nsteps: []\n")
    assert directory.problems() == [
        "main.yaml:3: component 'part' comes from 'a.yaml' already",
        "main.yaml:3: task 't' comes from 'a.yaml' already",
        "main.yaml:4: 'c.yaml' has no `name`, by which it could be included",
    ]


def test_imported_tasks_can_be_used_and_an_own_one_wins(directory: Directory) -> None:
    directory.write(
        "tasks.yaml", "sub_agent_tasks:\n  a: {description: theirs, steps: []}\n  b: {description: theirs, steps: []}\n"
    )
    directory.write("main.yaml", "imports: [tasks.yaml]\nsub_agent_tasks: {a: {description: own, steps: []}}\n")
    assert {name: task.description for name, task in directory.load().tasks.items()} == {"a": "own", "b": "theirs"}


def test_a_definition_comes_back_from_its_record_when_its_files_are_gone(directory: Directory) -> None:
    directory.write("shared/part.yaml", COMPONENT)
    directory.write("main.yaml", "imports: [shared/part.yaml]\nsteps:\n  - type: exit\n    message: '{{ x }}'\n")
    loaded = directory.load()
    record = json.loads(json.dumps(loaded.record()))
    for path in directory.path.rglob("*.yaml"):
        path.unlink()
    restored = restore(record)
    assert restored.workflow == loaded.workflow
    assert (restored.name, restored.source, restored.loaded_from) == (loaded.name, loaded.source, loaded.loaded_from)
    assert restored.components["part"].workflow == loaded.components["part"].workflow
    assert list(restored.sites()) == list(loaded.sites())
    assert restored.document.place(("steps", 0, "message")) == (4, 5)
    assert restored.record() == record


def test_a_directory_that_is_itself_a_link_is_no_way_out(directory: Directory, tmp_path: Path) -> None:
    directory.write("part.yaml", COMPONENT)
    directory.write("main.yaml", "imports: [part.yaml]\nsteps: []\n")
    (tmp_path / "link").symlink_to(directory.path)
    linked = tmp_path / "link"
    assert load(str(linked), str(linked / "main.yaml")).components
