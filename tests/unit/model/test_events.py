"""docs/events.md and the code know the same kinds of events."""

from __future__ import annotations

import re
from pathlib import Path

from sidecar.model import events as kinds

DOCUMENT = Path(__file__).parents[3] / "docs" / "events.md"
ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


def test_the_documentation_lists_every_kind_of_event_once_and_no_other() -> None:
    in_code = [value for name, value in vars(kinds).items() if name.isupper() and isinstance(value, str)]
    assert sorted(ROW.findall(DOCUMENT.read_text())) == sorted(in_code)
