"""What `flow`, `agent` and `prompt` have in common: a word of their own, or a name that is run."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Action = Callable[[list[str], str | None], int]

OK = 0


def main(arguments: list[str], project: str | None, text: str, actions: Mapping[str, Action]) -> int:
    """`list`, `run NAME …` and what else there is; `NAME …` is short for `run NAME …`. `text`: the help."""
    word = arguments[0] if arguments else "--help"
    if word in ("-h", "--help"):
        print(text, end="")
        return OK
    return actions[word](arguments[1:], project) if word in actions else actions["run"](arguments, project)
