"""The options that completion offers are those that the commands have."""

from __future__ import annotations

import re
import subprocess

import pytest

from sidecar.cli import completing
from sidecar.cli.commands import COMMANDS
from tests.kit import SIDECAR


def test_no_command_is_forgotten() -> None:
    assert {command.partition(" ")[0] for command in completing.OPTIONS} == set(COMMANDS)


@pytest.mark.parametrize("command", sorted(completing.OPTIONS))
def test_the_options_that_are_offered_are_those_that_there_are(command: str) -> None:
    found = subprocess.run([SIDECAR, *command.split(), "--help"], capture_output=True, text=True, check=True)
    listed = set(re.findall(r"(?<![\w`-])--[a-z][a-z-]*", found.stdout))
    told_elsewhere = {"--var", "--project"} if command != "daemon" else set()
    assert set(completing.OPTIONS[command].split()) | {"--help"} == (listed | {"--help"}) - told_elsewhere
