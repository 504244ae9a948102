"""A glance at a file says what the whole reader says, or nothing; and it needs none of the models for that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from sidecar.catalog import listing, naming
from sidecar.model.parameters import _PYTHON_TYPES, Declaration
from sidecar.model.steps import STEP_CLASSES
from sidecar.model.workflow import Workflow

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
    "",
    "[]\n",
    "just text\n",
    "steps: [\n",
    "stepz: []\n",
    "description: nothing to do\n",
    "steps: {}\n",
    "steps: [{type: nonsense}]\n",
    "steps: [{id: typeless}]\n",
    "steps: [{type: conditional, condition: x, then: [{type: nonsense}]}]\n",
    "steps: []\nsteps: []\n",
    "steps: [{type: break, type: break}]\n",
    "description: 5\n" + STEPS,
    "description:\n" + STEPS,
    "version: 1.0\n" + STEPS,
    "name: no name\n" + STEPS,
    "workflow: {steps: []}\ndescription: beside it\n",
    "inputs: [a]\n" + STEPS,
    "inputs: {1: {}}\n" + STEPS,
    "inputs: {a-b: {}}\n" + STEPS,
    "inputs: {a: text}\n" + STEPS,
    "inputs: {a: {type: text}}\n" + STEPS,
    "inputs: {a: {typ: string}}\n" + STEPS,
    "inputs: {a: {required: 1}}\n" + STEPS,
    "inputs: {a: {description: }}\n" + STEPS,
    "inputs: {a: {type: integer, default: 1.5}}\n" + STEPS,
    "inputs: {a: {type: integer, default: true}}\n" + STEPS,
    "inputs: {a: {type: number, default: .nan}}\n" + STEPS,
    "inputs: {a: {type: object, default: {1: 2}}}\n" + STEPS,
    "inputs: {a: {choices: []}}\n" + STEPS,
    "inputs: {a: {choices: [1]}}\n" + STEPS,
    "inputs: {a: {default: z, choices: [x, y]}}\n" + STEPS,
    'description: "\\ud800"\n' + STEPS,
    "description: &d x\ninputs: {a: &a {type: string}, b: *a}\n" + STEPS,
    "base: &b {type: string}\n" + STEPS,
    "inputs: {a: {<<: {type: string}}}\n" + STEPS,
    "a: b\n---\nc: d\n",
    "description: \ttabbed\n" + STEPS,
    "- " * 250_000,
    "[" * 250_000,
    "\n".join(" " * depth + "a:" for depth in range(1000)),
]


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "one.yaml"
    path.write_text(text)
    return str(path)


def test_it_knows_the_same_words_as_the_models() -> None:
    assert set(Workflow.model_fields) == listing.KEYS
    assert set(STEP_CLASSES) == listing.STEP_TYPES
    assert set(Declaration.model_fields) == listing.DECLARATION
    assert listing.TYPES == _PYTHON_TYPES
    assert set(get_args(Declaration.model_fields["type"].annotation)) == set(listing.TYPES)


@pytest.mark.parametrize("path", BUILTIN, ids=lambda path: path.stem)
def test_a_glance_is_enough_for_what_is_built_in(path: Path) -> None:
    said = listing.quick_heading(str(path))
    assert said is not None
    assert said == listing._read_whole(str(path))


@pytest.mark.parametrize("text", USUAL)
def test_it_says_what_the_whole_reader_says(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    said = listing.quick_heading(path)
    assert said is not None
    assert said == listing._read_whole(path)


@pytest.mark.parametrize("text", UNUSUAL, ids=lambda text: text[:40])
def test_whatever_is_wrong_or_unusual_is_left_to_the_whole_reader(tmp_path: Path, text: str) -> None:
    assert listing.quick_heading(written(tmp_path, text)) is None


def test_what_is_no_file_is_left_to_the_whole_reader(tmp_path: Path) -> None:
    assert listing.quick_heading(str(tmp_path)) is None
    assert listing.quick_heading(str(tmp_path / "missing")) is None


def test_a_list_of_usual_files_is_made_without_the_models(tmp_path: Path) -> None:
    written(tmp_path, USUAL[0])
    look = (
        "import sys; from sidecar.catalog import listing; rows, problems = listing.rows(sys.argv[1]);"
        "assert rows and not problems; sys.exit('pydantic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", look, str(tmp_path)], env={"XDG_CACHE_HOME": str(tmp_path / "cache")}, check=False
    )
    assert done.returncode == 0
