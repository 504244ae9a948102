"""A change of somebody else's file is made of what stands there, or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sidecar.cli.file_change import FileChange
from sidecar.errors import ConfigError


def test_what_somebody_else_wrote_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_text("old")
    change = FileChange.of(str(path), lambda text: text + " and new")
    path.write_text("theirs")
    with pytest.raises(ConfigError, match="somebody else"):
        change.write()
    assert {found.name: found.read_text() for found in tmp_path.iterdir()} == {"settings": "theirs"}


def test_two_changes_within_a_second_leave_two_backups(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_text("1")
    backups = [FileChange.of(str(path), lambda text: text + "+").write() for _ in range(2)]
    assert path.read_text() == "1++"
    assert [Path(backup).read_text() for backup in backups if backup] == ["1", "1+"]


def test_a_new_file_and_its_directories_are_as_any_that_the_person_makes(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "settings"
    before = os.umask(0o027)
    try:
        assert FileChange.of(str(path), lambda _: "new").write() is None
    finally:
        os.umask(before)
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
