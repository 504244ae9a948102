"""What `validate` finds in a command: a value that the shell would read as code, and one that another program may.

The first is an error, and refused at every run too. The second is a warning: what a program makes of its arguments and
its environment is its own affair, but the value may be an option, or stand in the script of a well-known interpreter.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from sidecar.state.shell import ASSIGNMENT, VALUE, WAY_OUT, ShellReader, read, value_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# A command is one line, with a NUL behind each word. Options behind which code stands, or in which it stands.
_INTERPRETER = r"((?:python|pypy|perl|ruby|node|deno|bun|php|lua|luajit|osascript|Rscript|tclsh)[0-9.]*)\0"
_FILTER = r"([gmn]?awk|g?sed|[jy]q)\0"
_FILTER_OPTIONS = rf"{_FILTER}(?:-[vF]\0[^\0]*\0|--(?:arg|argjson|slurpfile|rawfile)\0[^\0]*\0[^\0]*\0|-[^\0]*\0)*+"
_CODE = {
    r"((?:python|pypy)[0-9.]*|psql|mysql|mariadb)\0": "-[A-Za-z]*c|-e|--command|--execute",
    _INTERPRETER: "-[A-Za-z0]*[eEpr]|--eval|--print|eval",
    _FILTER: "-e|-f|--expression",
    r"(g?make|sqlite3)\0": "",
    r"(git)\0": "-c|--config-env|--exec|--upload-pack|--receive-pack",
    r"(ssh|scp|sftp|rsync)\0": "-[oFS]|-[A-Za-z]*e|--rsh|--rsync-path",
    r"(g?tar)\0": "-[IF]|--(?:use-compress|to-com|checkpoint-ac|info-s|rsh)[a-z-]*",
}
_CODE_VARIABLE = re.compile(r"""(?xa) (?:\A|\0)
    (GIT_(?:SSH\w*|EXTERNAL_DIFF|CONFIG\w*|EXEC_PATH|DIR)|(?:LD_|DYLD_|PERL5)\w+|PYTHON(?:STARTUP|PATH|HOME)|PATH
      |RUBY(?:OPT|LIB)|NODE_(?:OPTIONS|PATH)|RSYNC_RSH|LESSOPEN|MAKEFLAGS
      |\w*(?:EDITOR|VISUAL|PAGER|BROWSER|SHELL|_ASKPASS|_COMMAND|_TOOL_OPTIONS))\+?=([^\0]*)""")
_NO_OPTIONS = re.compile(
    rf"(?:echo|printf|test|\[|sleep|exit|return|shift|:|for|export|readonly|local|set|expr|raw-text|{ASSIGNMENT}.*)\0"
)


Severity = Literal["error", "warning"]


class Mistake(NamedTuple):
    """An error or a doubt at an offset of a text."""

    offset: int
    message: str
    severity: Severity = "error"


def check(command: str | Sequence[str]) -> list[list[Mistake]]:
    """The findings in each text of a command. In a list all are warnings: no shell reads it, but its program may."""
    reader, places = read(command)
    found: dict[int, str] = {}
    severity: Severity = "error" if reader.refused is not None and isinstance(command, str) else "warning"
    if reader.refused is None:
        for text, message in (one for line in reader.lines for one in _warnings(line, reader)):
            for number in value_numbers(text):
                found.setdefault(number, message)
    else:
        found[reader.refused[0]] = f"{reader.refused[1]}. {WAY_OUT}" if severity == "error" else reader.refused[1]
    texts = range(1 if isinstance(command, str) else len(command))
    return [
        [Mistake(places[at][1].offset, found[at], severity) for at in sorted(found) if places[at][0] == text]
        for text in texts
    ]


def _warnings(line: str, reader: ShellReader) -> Iterator[tuple[str, str]]:
    """What another program may read as code, with the text that has the values."""
    for variable in _CODE_VARIABLE.finditer(line):
        yield variable[2], f"other programs run what is in {variable[1]}"
    for program, options in _CODE.items():
        code = rf"(?:.*\0)?(?:{options})[=\0]?[^\0]*?({VALUE})"
        named = re.search(rf"(?:\A|[\0/]){program}", line)
        if named and (found := re.compile(code, re.DOTALL).match(line, named.end())):
            yield found[1], f"{named[1]} reads the value as code; pass it as an argument or in a variable"
    if found := re.search(rf"(?:\A|[\0/]){_FILTER_OPTIONS}[^\0]*?({VALUE})", line):
        yield found[2], f"{found[1]} reads the value as code; pass it as an argument or in a variable"
    name = line.partition("\0")[0].rpartition("/")[2]
    if re.fullmatch(_INTERPRETER + r"(?:-\0)?", line):
        yield reader.text, f"{name} reads its input as code"
    is_filter = re.match(_FILTER_OPTIONS, line)
    words = [] if _NO_OPTIONS.match(line) else line[is_filter.end() if is_filter else 0 :].split("\0")[:-1]
    for before, word in pairwise(words):
        if word in ("--", "--end-of-options"):
            return
        if re.match(VALUE, word) and (before is words[0] or not re.fullmatch("-[^=]+", before)):
            yield word[0], f"{name} can take the value for an option; put -- before it"
