"""`.status.json`: what it says, and that nothing in its place harms whoever looks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sidecar.service import status_file
from sidecar.service.status_file import Status


def read(directory: Path, content: object) -> Status:
    text = content if isinstance(content, str) else json.dumps(content)
    (directory / ".status.json").write_text(text)
    return status_file.read(str(directory))


def test_everything_that_an_agent_may_tell_is_read(tmp_path: Path) -> None:
    told = {"complete": False, "progress": {"completed": 3, "total": 10}, "worked": True, "summary": "three"}
    found = read(tmp_path, {**told, "phase": "whatever"})
    assert (found.complete, found.completed, found.total, found.percent) == (False, 3, 10, None)
    assert (found.worked, found.summary, found.problem) == (True, "three", "")
    assert found.written_at == os.stat(tmp_path / ".status.json").st_mtime
    assert read(tmp_path, {"complete": True, "progress": 62.5}).percent == 62.5


def test_without_the_file_nothing_is_known_and_nothing_is_wrong(tmp_path: Path) -> None:
    assert status_file.read(str(tmp_path)) == Status()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"complete": tr', "it is not JSON"),
        ("", "it is not JSON"),
        ("[]", "it is no JSON object"),
        ('{"complete": "true"}', "`complete` has to be true or false"),
        ("{}", "`complete` has to be true or false"),
        ('{"complete": true}' + " " * 1024 * 1024, "larger than 1 MiB"),
        ("[" * 100_000, ""),
    ],
)
def test_what_cannot_be_used_is_no_completion_and_says_why(tmp_path: Path, content: str, problem: str) -> None:
    found = read(tmp_path, content)
    assert not found.complete
    assert found.problem
    assert problem in found.problem


def test_what_is_no_regular_file_makes_nobody_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".status.json")
    assert status_file.read(str(tmp_path)).problem == "it is no regular file"
    os.unlink(tmp_path / ".status.json")
    (tmp_path / ".status.json").symlink_to("/dev/zero")
    assert status_file.read(str(tmp_path)).problem == "it is no regular file"


@pytest.mark.parametrize(
    ("content", "mode"),
    [('{"mode": "iterative"}', "iterative"), ('{"mode": "other"}', None), ("[]", None), ("{", None), (None, None)],
)
def test_the_mode_is_what_claude_iterate_wrote_down(tmp_path: Path, content: str | None, mode: str | None) -> None:
    if content is not None:
        (tmp_path / ".metadata.json").write_text(content)
    assert status_file.mode(str(tmp_path)) == mode


def test_wrong_types_inside_are_left_out(tmp_path: Path) -> None:
    found = read(
        tmp_path, {"complete": False, "progress": {"completed": "3", "total": True}, "worked": 1, "summary": 2}
    )
    assert (found.completed, found.total, found.percent, found.worked, found.summary) == (None, None, None, None, "")
