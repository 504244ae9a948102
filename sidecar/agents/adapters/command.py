"""command: any program; the prompt goes in, what it prints is the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.agents.adapters.adapter import Adapter
from sidecar.agents.adapters.parsers import PlainText

if TYPE_CHECKING:
    from sidecar.agents.adapters.adapter import Call


def _arguments(call: Call) -> list[str]:
    words = list(call.assignment.definition.args)
    return words if call.prompt_via == "stdin" else [*words, call.assignment.prompt]


COMMAND = Adapter(
    name="command", prompt_via="stdin", arguments=_arguments, parser=lambda _clock: PlainText(), prints_json=False
)
