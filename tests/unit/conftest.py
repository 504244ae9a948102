"""What several packages of unit tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sidecar.state.script import Script


@pytest.fixture(scope="session")
def script() -> Iterator[Script]:
    """An evaluator without a process of its own."""
    with Script(worker=False) as script:
        yield script
