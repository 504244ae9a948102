"""Lists of workflows have what the reader of whole definitions has, or its problems, and do without the models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.catalog import listing, naming
from sidecar.errors import DefinitionError, SidecarError

BUILTIN = sorted(Path(naming.builtin_directory("workflows")).glob("*.yaml"))
STEPS = "steps: [{type: break}]\n"
USUAL = [
    STEPS,
    "steps: []\n",
    "workflow:\n  description: Wrapped.\n  steps: []\n",
    "name: a:b\nversion: '1.0'\ndescription: >\n  Folded\n  text.\n" + STEPS,
    "description: \u00e9\u00e8 \U0001f600\n" + STEPS,
    "inputs: {}\n" + STEPS,
    "inputs:\n  a: {}\n  b: {type: integer, required: true}\n  c: {default: x, choices: [x, y]}\n" + STEPS,
    "inputs:\n  a: {type: number, default: 1}\n  b: {type: number, default: 1.5, required: false}\n" + STEPS,
    "inputs:\n  a: {type: object, default: {x: [1, null, {y: true}]}}\n  b: {type: array, default: []}\n" + STEPS,
    "sub_agent_tasks: {t: {steps: [{type: break}]}}\n",
    "steps:\n- {type: while, condition: '{{ true }}', body: [{type: foreach, items: '{{ [] }}', steps: []}]}\n",
]
UNUSUAL = [
    "description: |\n  a\ttab\n" + STEPS,
    "\ufeffdescription: a\n" + STEPS,
    "description: !!str 5\n" + STEPS,
]
# Valid headings of invalid definitions: `sidecar validate` and the run report them.
NOT_CHECKED = [
    "steps: []\nlimitz: {}\n",
    "steps: [{type: conditional, condition: x, then: [{type: nonsense}]}]\n",
    "inputs: {a: {type: text}}\n" + STEPS,
    "inputs: {a: {typ: string}}\n" + STEPS,
    "inputs: {a-b: {}}\n" + STEPS,
    "inputs: {a: {type: integer, default: 1.5}}\n" + STEPS,
    "inputs: {a: {default: z, choices: [x, y]}}\n" + STEPS,
    "base: &b {type: string}\n" + STEPS,
]
BROKEN = [
    "",
    "stepz: []\n",
    "[]\n",
    "just text\n",
    "steps: [\n",
    "description: nothing to do\n",
    "steps: {}\n",
    "steps: [{type: nonsense}]\n",
    "steps: [{id: typeless}]\n",
    "steps: []\nsteps: []\n",
    "steps: [{type: break, type: break}]\n",
    "description: 5\n" + STEPS,
    "description:\n" + STEPS,
    "version: 1.0\n" + STEPS,
    "name: no name\n" + STEPS,
    "workflow: {steps: []}\ndescription: beside it\n",
    "inputs: [a]\n" + STEPS,
    "inputs: {1: {}}\n" + STEPS,
    "inputs: {a: text}\n" + STEPS,
    "inputs: {a: {required: 1}}\n" + STEPS,
    "inputs: {a: {description: }}\n" + STEPS,
    "inputs: {a: {type: number, default: .nan}}\n" + STEPS,
    "inputs: {a: {type: object, default: {1: 2}}}\n" + STEPS,
    'description: "\\ud800"\n' + STEPS,
    "a: b\n---\nc: d\n",
    "- " * 250_000,
    "[" * 250_000,
    "\n".join(" " * depth + "a:" for depth in range(1000)),
]


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / ".swissarmyhammer" / "workflows" / "one.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("path", BUILTIN, ids=lambda path: path.stem)
def test_the_built_in_ones_need_no_models(path: Path) -> None:
    assert listing._checked_heading(str(path)) == listing.whole_heading(str(path))


@pytest.mark.parametrize("text", USUAL)
def test_a_heading_is_what_the_whole_reader_has(tmp_path: Path, text: str) -> None:
    path = str(written(tmp_path, text))
    assert listing._checked_heading(path) == listing.whole_heading(path)


@pytest.mark.parametrize("text", UNUSUAL, ids=lambda text: text[:40])
def test_what_is_unusual_is_read_as_a_whole(tmp_path: Path, text: str) -> None:
    path = str(written(tmp_path, text))
    assert listing._checked_heading(path) is None
    ((row,), problems) = listing.workflows(str(tmp_path), "project")
    assert row == {"name": "one", "source": "project", "path": path} | listing.whole_heading(path)
    assert problems == []


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: text[:40])
def test_a_broken_file_is_reported_with_its_first_problem(tmp_path: Path, text: str) -> None:
    path = str(written(tmp_path, text))
    with pytest.raises(DefinitionError) as caught:
        listing.whole_heading(path)
    rows, (problem,) = listing.workflows(str(tmp_path), "project")
    assert rows == []
    assert problem.startswith(caught.value.problems[0])


@pytest.mark.parametrize("text", NOT_CHECKED)
def test_only_the_heading_and_the_types_of_the_first_steps_are_checked(tmp_path: Path, text: str) -> None:
    written(tmp_path, text)
    ((row,), problems) = listing.workflows(str(tmp_path), "project")
    assert (row["name"], problems) == ("one", [])


def test_of_many_problems_the_first_is_listed_with_their_number(tmp_path: Path) -> None:
    path = written(tmp_path, "steps: [{type: nonsense}, {type: nonsense}]\nversion: 1\n")
    _, (problem,) = listing.workflows(str(tmp_path), "project")
    assert problem.startswith(f"{path}:1: ")
    assert problem.endswith("(and 2 more: sidecar validate one)")


def test_a_broken_file_hides_no_other(tmp_path: Path) -> None:
    written(tmp_path, "steps: [\n").with_name("good.yaml").write_text("description: Good.\nsteps: []\n")
    rows, problems = listing.workflows(str(tmp_path))
    assert "good" in [row["name"] for row in rows]
    assert len(problems) == 1


def test_what_stands_in_place_of_a_file_is_a_problem(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    path.unlink()
    path.symlink_to("nowhere")
    _, (problem,) = listing.workflows(str(tmp_path), "project")
    assert problem.startswith(f"{path}:1: ")
    path.unlink()
    path.mkdir()
    assert listing.workflows(str(tmp_path), "project") == ([], [f"{path}:1: cannot be read: Is a directory"])


def test_a_list_can_be_of_one_source_by_either_of_its_names(tmp_path: Path) -> None:
    written(tmp_path, STEPS)
    own = tmp_path / "home" / ".aromcp" / "workflows"
    own.mkdir(parents=True)
    (own / "everywhere.yaml").write_text(STEPS)

    def names(source: str | None = None) -> list[str]:
        return [row["name"] for row in listing.workflows(str(tmp_path), source)[0]]

    assert names("project") == names("local") == ["one"]
    assert names("global") == names("user") == ["everywhere"]
    assert "iterate" in names("builtin")
    assert set(names()) == {"one", "everywhere", *names("builtin")}
    with pytest.raises(SidecarError, match="unknown source 'mars'"):
        names("mars")


def test_a_list_of_usual_files_is_made_without_the_models(tmp_path: Path) -> None:
    written(tmp_path, USUAL[0])
    look = (
        "import sys; from sidecar.catalog import listing; rows, problems = listing.workflows(sys.argv[1]);"
        "assert rows and not problems; sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", look, str(tmp_path)], check=False).returncode == 0
