"""The table of commands is what the commands take, and what completion offers."""

from __future__ import annotations

import re
import subprocess

import pytest

from sidecar.cli import completion
from sidecar.cli.options import COMMANDS
from tests.kit import SIDECAR

PLACES = [
    *(name for name, command in COMMANDS.items() if not command.actions),
    *(f"{name} {action}" for name, command in COMMANDS.items() for action in command.actions),
]


@pytest.mark.parametrize("words", PLACES)
def test_completion_offers_the_options_that_help_shows(words: str) -> None:
    found = subprocess.run([SIDECAR, *words.split(), "--help"], capture_output=True, text=True, check=True).stdout
    shown = set(re.findall(r"(?<![\w`-])--[a-z][a-z-]*", found)) | {"--help"}
    if words in ("stop", "abort"):
        shown -= {"--workspace NAME"}
    assert set(completion.candidates([*words.split(), "--"])) == shown
