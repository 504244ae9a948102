"""Every containment that this machine has, and a supervisor with the best of them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar.agents import cgroup
from sidecar.agents.containment import Containment, choose
from sidecar.agents.supervisor import Supervisor


@pytest.fixture(params=["cgroup", "reaper", "sweep"])
def containment(request: pytest.FixtureRequest) -> Containment:
    if sys.platform != "linux" and request.param != "sweep":
        pytest.skip("only Linux has it")
    if request.param == "cgroup" and (reason := cgroup.why_not()):
        pytest.skip(reason)
    return choose(request.param)


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    async with Supervisor(str(tmp_path), on_ended=None) as opened:
        yield opened
