"""Whatever a file holds, `validate` answers with findings and never fails itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sidecar.analysis import validate
from sidecar.model.steps import STEP_CLASSES
from sidecar.model.workflow import Workflow
from sidecar.state.script import Script

# Words that mean something to the language, so that what is made of them gets far.
KEYS = [
    *Workflow.model_fields,
    *("raw", "computed", "state", "from", "transform", "validate", "on_error", "fallback", "id", "path", "value"),
    *("body", "then", "else", "condition", "items", "updates", "command", "workflow", "default", "choices", "mcp"),
]
TEXTS = [
    "{{ x }}",
    "{{ 1 + }}",
    "{{ x",
    "raw.x",
    "computed.x",
    "raw.{{ x }}",
    "input",
    "return",
    "{",
    "string",
    "5s",
    "",
]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([*TEXTS, *STEP_CLASSES])
    | st.text(alphabet="{}`'\"$|a.[]\\/ \n\t\x00\ud800é", max_size=12)
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    steps = st.fixed_dictionaries({"type": st.sampled_from(list(STEP_CLASSES))}, optional=dict.fromkeys(KEYS, inner))
    return st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4) | steps


VALUES = st.recursive(LEAVES, containers, max_leaves=15)


@example(value="only a text")
@example(value={"imports": ["\ud800"]})
@settings(max_examples=200)
@given(
    value=VALUES
    | st.dictionaries(st.sampled_from(list(Workflow.model_fields)), VALUES, max_size=4)
    | st.fixed_dictionaries({"steps": st.lists(VALUES, min_size=1, max_size=3)})
)
def test_any_definition_has_findings_or_none_and_every_finding_has_a_line(
    script: Script, value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("any") / "w.yaml"
    file.write_text(json.dumps(value))  # JSON is YAML
    root = str(file.parent)
    for finding in validate.check_all(root, [str(file)], script):
        assert str(finding).startswith(f"{file}:1: ")
        assert "\n" not in str(finding)
