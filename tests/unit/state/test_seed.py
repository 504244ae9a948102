"""Every transform of the language's first description, in the state that its own schema makes, gives what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.catalog import yaml_format
from sidecar.state.reactive import Computation, Reactive, Write
from sidecar.state.script import Script
from sidecar.state.values import same

SEED = Path(__file__).parents[1] / "model" / "seed_004"

FILES = ["src/a.ts", "src/b.ts", "node_modules/x/i.js", "src/c.d.ts", "lib/j.min.js", "src/c.js", "src/d.ts"]
BATCHES = [
    {"id": "batch_0", "files": ["src/a.ts", "src/b.ts", "src/c.js"], "status": "pending"},
    {"id": "batch_1", "files": ["src/d.ts"], "status": "pending"},
]
# The text shows `first_error: undefined`; in JSON a key that is undefined is not there.
CLEAN: dict[str, Any] = {"failed_count": 0, "error_types": []}

# What is written to raw, in one transaction after the other, and the computed fields after each.
STORIES: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "basic_structure": [
        (
            {"file_list": FILES, "batch_status": {}},
            {
                "filtered_files": ["src/a.ts", "src/b.ts", "src/c.js", "src/d.ts"],
                "file_batches": BATCHES,
                "ready_batches": BATCHES,
            },
        ),
        ({"batch_status": {"batch_0": "complete", "batch_1": "pending"}}, {"ready_batches": BATCHES[1:]}),
    ],
    "state_features": [
        (
            {"git_output": "src/a.ts\n\nsrc/b.js\nREADME.md\n", "test_results": {"failed": 0, "files": ["src/a.ts"]}},
            {
                "parsed_files": ["src/a.ts", "src/b.js", "README.md"],
                "valid_files": ["src/a.ts", "src/b.js"],
                "analysis_summary": {"total_files": 2, "failed_tests": 0, "ready_to_deploy": True},
                # `file_batches` is declared nowhere: `?.` makes that undefined, and such a key is left out.
                "complex_calculation": [
                    {"path": "src/a.ts", "has_test": True},
                    {"path": "src/b.js", "has_test": False},
                ],
            },
        ),
        (
            {"test_results": {"failed": 2}},
            {"analysis_summary": {"total_files": 2, "failed_tests": 2, "ready_to_deploy": False}},
        ),
    ],
    "shared_component": [
        (
            {
                "typescript_results": {"a.ts": {"errors": 2}, "b.ts": {"errors": 0}, "c.ts": {"errors": 0}},
                "lint_results": {"a.ts": {"errors": 0}, "b.ts": {"errors": 3}, "c.ts": {"errors": 0}},
            },
            {"files_with_errors": ["a.ts", "b.ts"], "total_issues": 5},
        ),
    ],
    "computed_errors": [
        ({"json_output": '{"a": 1}'}, {"parsed_data": {"a": 1}}),
        ({"json_output": "not JSON"}, {"parsed_data": {}}),
    ],
    "transform_errors": [
        (
            {"command_output": "[1, 2]", "value1": 6, "value2": 3},
            {"parsed_output": [1, 2], "safe_calculation": 2},
        ),
        (
            {"command_output": "oops", "value1": 0, "value2": 0},
            {"parsed_output": {"error": "Parse failed", "raw": "oops"}, "safe_calculation": 0},
        ),
    ],
    "error_tracking": [
        # What an agent that reads the state is said to see.
        (
            {
                "steps_completed": ["init", "detect_files"],
                "steps_failed": [],
                "retry_counts": {},
                "workflow_errors": [],
            },
            {"can_retry": False, "error_summary": CLEAN},
        ),
        (
            {
                "steps_failed": ["lint", "test"],
                "retry_counts": {"lint": 3, "test": 2},
                "workflow_errors": [{"type": "exit"}, {"type": "time"}, {"type": "exit"}],
            },
            {
                "can_retry": True,
                "error_summary": {"failed_count": 2, "error_types": ["exit", "time"], "first_error": {"type": "exit"}},
            },
        ),
        ({"retry_counts": {"lint": 3, "test": 3}}, {"can_retry": False}),
    ],
}


def computed_of(name: str) -> dict[str, Computation]:
    value = yaml_format.load(str(SEED / f"{name}.yaml")).value
    value = value.get("workflow", value)
    fields = value.get("state_schema", value).get("computed", {}) if isinstance(value, dict) else {}
    return {
        key: Computation(
            tuple(one["from"]) if isinstance(one["from"], list) else one["from"],
            one["transform"],
            on_error=one.get("on_error", "propagate"),
            fallback=one.get("fallback"),
            validate=one.get("validate"),
        )
        for key, one in fields.items()
    }


def test_no_transform_is_left_out() -> None:
    written = {path.stem: path.read_text().count("transform:") for path in SEED.glob("*.yaml")}
    assert {name: count for name, count in written.items() if count} == {
        name: len({field for _, expected in story for field in expected}) for name, story in STORIES.items()
    }


@pytest.mark.parametrize("name", STORIES)
def test_a_transform_gives_what_the_text_says(script: Script, name: str) -> None:
    fields = computed_of(name)
    reactive = Reactive(script, fields)
    current: dict[str, Any] = {}
    for writes, expected in STORIES[name]:
        reactive.update([Write(("raw", key), value) for key, value in writes.items()])
        current |= expected
        found = reactive.computed
        assert set(found) == set(current) == set(fields)
        for field, value in current.items():
            assert same(found[field], value), (field, found[field])
