"""Signs of life that an agent does not print."""

from __future__ import annotations

import os
from pathlib import Path

from sidecar.agents.evidence import Files


def test_a_file_that_is_changed_is_seen_also_where_the_clock_was_set_back_since_others_were(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    os.utime(tmp_path / "a", (2_000_000_000, 2_000_000_000))
    os.utime(tmp_path / "b", (1_000_000_000, 1_000_000_000))
    files = Files((str(tmp_path),))
    before = files.token()
    assert files.token() == before
    os.utime(tmp_path / "b", (1_000_000_001, 1_000_000_001))
    assert files.token() != before
