"""Which words of a simple command the shell, or the program that it starts, reads as code a second time.

What a parameter expands to is never read as code by the shell itself; these are the exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# A character, the number of a hole, a negative number for a variable, or None for another expansion.
Cell = str | int | None

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=", re.ASCII)
_PREFIXES = frozenset({"exec", "command", "builtin", "nohup", "env", "setsid", "time", "coproc"})
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "fish", "su", "runuser", "script", "flock"})
# Programs that start the command behind their options, and hand it their own standard input.
_LAUNCHERS = frozenset(
    [
        "sudo",
        "doas",
        "timeout",
        "nice",
        "ionice",
        "chrt",
        "taskset",
        "stdbuf",
        "chroot",
        "unshare",
        "nsenter",
        "setpriv",
    ]
)
_INTERPRETERS = re.compile(r"(?:python|perl|ruby|node|php|lua|deno|bun)[0-9.]*")
_MAY_READ_CODE = re.compile(
    rf"(?<![\w.-])(?:{'|'.join(sorted(_SHELLS))}|eval|source|{_INTERPRETERS.pattern})(?![\w./-])"
)
_INTERPRETER_OPTIONS = re.compile(r"-[A-Za-z]*[ceEpr]|--eval|--print|eval")
_AWKS = frozenset({"awk", "gawk", "mawk", "nawk"})
_JOINING = frozenset({"eval", "watch"})
# Builtins that evaluate a word: as a command later on (trap), as arithmetic, or as `name[arithmetic]`.
_EVALUATING = frozenset(
    ["trap", "alias", "let", "unset", "read", "getopts", "mapfile", "readarray", "compgen", "complete", "bind"]
)
_DECLARING = frozenset({"declare", "typeset", "local", "export", "readonly"})
_EXPANDED_VARIABLES = frozenset({"PS0", "PS1", "PS2", "PS4", "PROMPT_COMMAND", "BASH_ENV", "ENV"})
_ARITHMETIC_TESTS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


@dataclass(slots=True)
class Word:
    """One word with its quotes taken off; `nested` are the holes inside its command substitutions."""

    cells: list[Cell] = field(default_factory=list)
    nested: list[int] = field(default_factory=list)
    plain: bool = True  # nothing in it was quoted, so it can be a reserved word
    quoted: bool = False  # it is a word even if all that is in it turns out to be empty

    @property
    def text(self) -> str:
        return "".join(cell if isinstance(cell, str) else "\0" for cell in self.cells)

    @property
    def holes(self) -> list[int]:
        return [cell for cell in self.cells if isinstance(cell, int)]

    @property
    def may_vanish(self) -> bool:
        """An unquoted expansion that is empty is no word at all: the next word takes its place."""
        return not self.quoted and bool(self.cells) and all(is_expansion(cell) for cell in self.cells)

    @property
    def literal(self) -> str:
        """The text if every expansion in it is empty: `${nothing}eval` is eval."""
        return "".join(cell for cell in self.cells if isinstance(cell, str))

    @property
    def name(self) -> str:
        """The program that it would start."""
        return self.literal.rpartition("/")[2]


def is_expansion(cell: Cell) -> bool:
    """Whether only the running shell knows what is there."""
    return cell is None or (isinstance(cell, int) and cell < 0)


# (hole or variable, why a value must not stand there)
Finding = tuple[int, str]
# Whether a hole with `| quote` is one bare word of the code that these cells are.
IsQuotedWord = Callable[[list[Cell], int], bool]


def judge(words: list[Word], is_quoted_word: IsQuotedWord) -> Iterator[Finding]:
    """Every hole among the words of one simple command that would be read as code."""
    if words and words[0].text == "[[":
        yield from _test(words)
        # To a shell that does not know [[, what follows an operator in it is a command of its own.
        for index in range(1, len(words)):
            yield from _builtin(words[index:])
            yield from _program(words[index:], is_quoted_word)
        return
    at = 0
    while at < len(words) and _ASSIGNMENT.match(words[at].text):
        yield from _assignment(words[at])
        at += 1
    yield from _command_name(words, at)
    if at < len(words):
        yield from _builtin(words[at:])
    for index in range(at, len(words)):
        yield from _program(words[index:], is_quoted_word)


def _command_name(words: list[Word], at: int) -> Iterator[Finding]:
    while at < len(words) and (words[at].name in _PREFIXES or _ASSIGNMENT.match(words[at].text)):
        at += 1
    why = "the value would choose the command; write the command's name here, or | raw if the value is code"
    while at < len(words) and words[at].may_vanish:
        yield from ((hole, why) for hole in _all(words[at]))
        why = "the value would be the command if the expansion before it is empty; put that into double quotes"
        at += 1
    # With a directory in front it can only be a program's file, no builtin and no reserved word.
    if at < len(words) and "/" not in words[at].text:
        yield from ((hole, why) for hole in _all(words[at]))


def _assignment(word: Word) -> Iterator[Finding]:
    name, _, _ = word.text.partition("=")
    if "\0" in name:
        yield from ((hole, "the value would be arithmetic inside [ ]") for hole in _all(word))
    elif name.rstrip("+") in _EXPANDED_VARIABLES:
        yield from ((hole, f"the shell runs what is in {name}") for hole in _all(word))


def reads_code(words: list[Word]) -> bool:
    """Whether the command takes its standard input for code: `… | sh`, `… | timeout 5 sh`, `… | bash -c 'cat | sh'`,
    `… | xargs -I% sh -c 'echo %'`."""
    at = 0
    while at < len(words) and (words[at].name in _PREFIXES or _ASSIGNMENT.match(words[at].text)):
        at += 1
    name, rest = words[at].name if at < len(words) else "", [word.literal for word in words[at + 1 :]]
    if name == "xargs":
        return any(text.startswith(("-I", "-i")) for text in rest) and any(word.name in _SHELLS for word in words)
    if name in _LAUNCHERS:
        return any(reads_code(words[index:]) for index in range(at + 1, len(words)))
    if name not in _SHELLS and not _INTERPRETERS.fullmatch(name):
        return False
    if any(_MAY_READ_CODE.search(text) for text in rest):  # `bash -c sh`: what it starts has the same standard input
        return True
    return "-s" in rest or all(text.startswith(("-", "+")) and not text.endswith(("c", "e")) for text in rest)


def _builtin(words: list[Word]) -> Iterator[Finding]:
    while len(words) > 1 and words[0].name in ("command", "builtin"):
        words = words[1:]
    name = words[0].literal
    if name in _EVALUATING:
        yield from ((hole, f"{name} evaluates the value") for word in words[1:] for hole in _all(word))
    elif name in _DECLARING:
        evaluates = any(re.fullmatch(r"-[A-Za-z]*[aAin][A-Za-z]*", word.literal) for word in words[1:])
        for word in words[1:]:
            assigned = _ASSIGNMENT.match(word.text)
            if evaluates or assigned is None or "\0" in assigned.group():
                yield from ((hole, f"{name} may evaluate the value; write name=value here") for hole in _all(word))
            else:
                yield from _assignment(word)
    elif name in ("printf", "test", "[", "wait"):
        yield from _variable_names(name, words)


def _variable_names(name: str, words: list[Word]) -> Iterator[Finding]:
    for option, word in pairwise(words):
        if option.literal in ("-v", "-R", "-p"):
            yield from (
                (hole, f"{name} {option.text} evaluates the value as the name of a variable") for hole in _all(word)
            )


def _test(words: list[Word]) -> Iterator[Finding]:
    for index, word in enumerate(words):
        if word.literal in _ARITHMETIC_TESTS:
            sides = _all(words[index - 1]) + (_all(words[index + 1]) if index + 1 < len(words) else [])
            yield from ((hole, f"[[ {word.text} evaluates the value as arithmetic; write [ … ]") for hole in sides)
    yield from _variable_names("[[", words)


def _program(words: list[Word], is_quoted_word: IsQuotedWord) -> Iterator[Finding]:
    """Programs that read an argument as code, anywhere in the command: `timeout 5 sh -c …`, `find … -exec sh -c …`."""
    name = words[0].name
    if name in _SHELLS or name in (".", "source"):
        # `source <(…)` and `bash <(…)` run what the substitution prints.
        why = f"{name} would read as code what is made from the value"
        yield from ((hole, why) for word in words[1:2] for hole in word.nested)
    if name in _SHELLS:
        code = _code_after(words, re.compile(r"-[A-Za-z]*c[A-Za-z]*|--command"))
        why = f"""{name} -c reads the value as code; pass it as an argument: {name} -c '… "$1"' {name} {{{{ … }}}}"""
        yield from _shell_code(code, why, is_quoted_word)
    elif name in _JOINING:
        yield from _shell_code(words[1:], f"{name} reads the value as code", is_quoted_word)
    elif name == "ssh":
        host = next((at for at, word in enumerate(words[1:], 1) if not word.text.startswith("-")), len(words))
        why = "the shell at the other end reads the value as code; write | quote, outside of other quotes"
        yield from _shell_code(words[host + 1 :], why, is_quoted_word)
    elif _INTERPRETERS.fullmatch(name):
        code = _code_after(words, _INTERPRETER_OPTIONS)
        why = f"{name} reads the value as code; pass it as an argument behind the code"
        yield from ((hole, why) for word in code for hole in _all(word))
    elif name in _AWKS:
        yield from _awk(words)
    elif name in ("sed", "gsed"):
        yield from _sed(words)
    elif name == "env":
        code = _code_after(words, re.compile(r"-[A-Za-z0]*S"))
        yield from ((hole, "env -S makes a command of the value") for word in code for hole in _all(word))


def _awk(words: list[Word]) -> Iterator[Finding]:
    at = 1
    while at < len(words) and words[at].text.startswith("-"):
        at += 2 if words[at].text in ("-v", "-F", "-f") else 1
    if at < len(words):
        why = "awk reads the value as code; write -v name={{ … }} in front of the program"
        yield from ((hole, why) for hole in _all(words[at]))


def _sed(words: list[Word]) -> Iterator[Finding]:
    """`e` runs a command and `w` writes a file, and a value in `s/a/{{ … }}/` can end the one and begin the other."""
    why = "sed reads the value as code; write awk -v name={{ … }} '…' instead, or | raw if it is code"
    given = re.compile(r"-[A-Za-z]*e|--expression")
    explicit = [at for at, word in enumerate(words) if at and given.match(word.literal)]
    first = next((at for at, word in enumerate(words) if at and not word.literal.startswith("-")), len(words))
    for at in {place for start in explicit for place in (start, start + 1)} or {first}:
        yield from ((hole, why) for word in words[at : at + 1] for hole in _all(word))


def _shell_code(words: list[Word], why: str, is_quoted_word: IsQuotedWord) -> Iterator[Finding]:
    cells: list[Cell] = [cell for word in words for cell in (*word.cells, " ")]
    for word in words:
        yield from ((hole, why) for hole in word.holes if not is_quoted_word(cells, hole))
        yield from ((hole, why) for hole in word.nested)


def _code_after(words: list[Word], option: re.Pattern[str]) -> list[Word]:
    """The word behind `-c`, with all that can be taken for it: further options, and what may not be a word at all."""
    at = next((at for at, word in enumerate(words) if at and option.fullmatch(word.literal)), len(words)) + 1
    end = at
    while end < len(words) and (words[end].may_vanish or words[end].literal.startswith(("-", "+"))):
        end += 1
    return words[at : end + 1]


def _all(word: Word) -> list[int]:
    return word.holes + word.nested
