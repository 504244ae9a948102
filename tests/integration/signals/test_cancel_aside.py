"""Taking back a signal that a dead owner had moved aside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.signals.inotify import Inotify
from tests.kit import SIDECAR


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
def test_an_abort_that_a_dead_owner_left_aside_is_cancelled_without_being_seen_again(tmp_path: Path) -> None:
    state = tmp_path / ".swissarmyhammer"
    state.mkdir()
    (state / ".abort.taken").write_text("why\n\nSignal-Id: one\n")
    with closing(Inotify()) as source:
        source.names.update([b".abort"])
        source.arm(str(state))
        told = subprocess.check_output([SIDECAR, "abort", "--cancel", "--json"], cwd=tmp_path)
        assert json.loads(told)["signal_id"] == "one"
        assert source.drain() == set()
    assert os.listdir(state) == []
