"""Which task of a run a call is about."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.service import driving


@pytest.mark.parametrize(
    ("task_id", "context", "found"),
    [
        ("a.1", None, "a.1"),
        (None, {"task_id": "a.2"}, "a.2"),
        ("a.1", {"task_id": "a.2"}, "a.1"),
        (None, {"task_id": 3}, None),
        (None, {}, None),
        (None, None, None),
    ],
)
def test_the_task_id_counts_wherever_the_caller_puts_it(
    task_id: str | None, context: dict[str, Any] | None, found: str | None
) -> None:
    assert driving._task(task_id, context) == found
