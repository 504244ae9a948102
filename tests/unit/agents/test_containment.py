"""Which containment is chosen, and what is said about it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sidecar.agents import cgroup
from sidecar.agents.containment import choose, report
from sidecar.errors import ConfigError

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a choice")


@linux
def test_the_best_that_works_is_chosen() -> None:
    expected = "cgroup" if cgroup.why_not() is None else "reaper"
    assert choose("auto").name == expected
    told = report("auto")
    assert (told.name, told.forced) == (expected, False)
    assert [name for name, _ in told.why_not_better] == ([] if expected == "cgroup" else ["cgroup"])


def test_each_one_can_be_forced_and_the_report_says_why_it_is_not_a_better_one() -> None:
    told = report("sweep")
    assert choose("sweep").name == told.name == "sweep"
    assert told.forced
    assert [name for name, _ in told.why_not_better] == ["cgroup", "reaper"]
    assert all(reason for _, reason in told.why_not_better)
    assert "environment" in told.cannot_catch


@linux
def test_a_forced_one_that_cannot_be_had_is_an_error_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "own", lambda: None)
    with pytest.raises(ConfigError, match="no cgroup v2 is mounted"):
        choose("cgroup")
    assert choose("auto").name == "reaper"
    assert report("auto").why_not_better == (("cgroup", "no cgroup v2 is mounted here"),)


def test_the_probe_leaves_no_group_behind() -> None:
    if reason := cgroup.why_not():
        pytest.skip(reason)
    base = cgroup.own()
    assert base is not None
    assert f"{cgroup.PREFIX}probe-{os.getpid()}" not in os.listdir(base)  # others may probe at this moment


def test_empty_groups_that_were_left_behind_are_swept_and_young_or_living_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, age_s in (("sidecar-old", 3600), ("sidecar-young", 0), ("sidecar-living", 3600), ("other", 3600)):
        group = tmp_path / name
        group.mkdir()
        os.utime(group, (time.time() - age_s,) * 2)
    monkeypatch.setattr(cgroup, "is_populated", lambda path: path.endswith("living"))
    cgroup.sweep(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "sidecar-living", "sidecar-young"]


def test_a_group_lists_its_members_is_killed_in_one_write_and_removed_when_empty() -> None:
    if reason := cgroup.why_not():
        pytest.skip(reason)
    base = cgroup.own()
    assert base is not None
    group = cgroup.create(base, f"test-{os.getpid()}")
    try:
        script = 'echo 0 > "$1/cgroup.procs"; echo in; exec sleep 1000'
        with subprocess.Popen(["sh", "-c", script, "sh", group], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"in\n"
            assert cgroup.pids(group) == [process.pid]
            assert cgroup.is_populated(group)
            assert not cgroup.remove(group)
            assert cgroup.kill(group)
            process.wait(20)
        assert not cgroup.is_populated(group)
    finally:
        assert cgroup.remove(group)
    assert not cgroup.kill(group)
    assert cgroup.pids(group) == []


@linux
def test_a_cgroup_that_is_not_ours_to_divide_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "own", lambda: "/proc/self")
    assert "not delegated" in str(cgroup.why_not())
