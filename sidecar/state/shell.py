"""Shell commands with values in them: a value travels in an environment variable, so the shell never reads it as code.

A value is never pasted into the text. It travels in the environment, and the text gets a reference to it that fits the
quotes around its placeholder. Where even that could become code the text is refused. A list is one word per item where
it stands as a word of its own, and one text joined by blanks inside quotes. Null is refused: `rm -r {{ dir }}/build`
must not run without a directory. A command that is a list has no shell: each element is one argument.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from sidecar.errors import ShellError, TemplateError
from sidecar.state.javascript import Placeholder, split_template
from sidecar.state.template import Compiled, Compiler, Run, Slot, as_text, compile_text, filtered
from sidecar.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# Linux takes 128 KiB a variable and 2 MiB for environment and arguments together, macOS 1 MiB: 30,000 characters
# are at most 120,000 bytes, and enough is left for the environment that is there and for the command's own arguments.
_CHUNK_CHARACTERS = 30_000
_TOTAL_BYTES = 400_000
_SCRIPT_BYTES = 131_000
_TOO_LONG = f"the command is longer than {_SCRIPT_BYTES // 1000} kB; put it into a file of its own"
UNKNOWN = object()  # a value that only the run has
WAY_OUT = "Write `command` as a list, or pass the value in `env:`; `| raw` turns this off"


@dataclass(frozen=True, slots=True)
class PreparedCommand:
    """A script for `sh -c` or `bash -c`, and what has to be added to its environment (UTF-8, surrogateescape)."""

    script: str
    environment: dict[str, str]
    body: str
    values: dict[str, str]
    is_list: bool = False

    def standalone(self) -> str:
        """The same as one text, for another shell: the values stand in front, quoted."""
        lines = "".join(f"{name}={shlex.quote(value)}\n" for name, value in self.values.items())
        return lines + ("env " if self.is_list else "") + self.body


@dataclass(frozen=True, slots=True)
class ShellText(Compiled):
    """A compiled command; it is analysed once, unless `| raw` makes another text of it at every run."""

    analysis: ShellReader | None

    def prepare(self, run: Run) -> PreparedCommand:
        """The command with the values that its expressions have now."""
        return self.fill([slot.evaluate(run) for slot in self.slots])

    def fill(self, values: Sequence[Any]) -> PreparedCommand:
        """The command with one value per `{{ }}`, in order."""
        found = _placeholders(self.parts)
        filters = [one.filters[:-1] if _mode(one) else one.filters for one in found]
        given = [filtered(*each) for each in zip(values, filters, [one.offset for one in found], strict=True)]
        # What `| raw` pastes may open a quote, so the places are looked for in the text that will really run.
        pasted = _pasted(found, given)
        analysis = self.analysis or _analyse(self.parts, pasted)
        if analysis.refused is not None:
            refused = found[analysis.refused[0]]
            raise TemplateError(f"{refused.shown}: {analysis.refused[1]}. {WAY_OUT}", refused.offset)
        bound = _Bound(_filled(self.parts, (pasted.get(number, "") for number in range(len(found)))))
        references = (
            pasted[number] if number in pasted else _reference(one, number, analysis, given[number], bound)
            for number, one in enumerate(found)
        )
        return bound.prepared(_filled(self.parts, references))

    def typed(self, values: Sequence[Any]) -> str:
        """The command as a person would type it, to look at; instead of an UNKNOWN value it has its `{{ }}`."""
        texts = []
        for number, (slot, value) in enumerate(zip(self.slots, values, strict=True)):
            one = slot.placeholder
            if value is UNKNOWN:
                texts.append(one.text)
            else:
                given = filtered(value, one.filters, one.offset)
                is_text = _mode(one) or (self.analysis and self.analysis.quotes.get(number))
                words = [as_text(given)] if is_text else [shlex.quote(as_text(item)) for item in _items(given)]
                texts.append(" ".join(words))
        return _filled(self.parts, texts)

    def programs(self, values: Sequence[Any]) -> list[str]:
        """The programs that it starts, as far as they can be told with these values, of which some may be UNKNOWN."""
        analysis = self.analysis or _analyse(self.parts, _pasted(_placeholders(self.parts), values))
        names = dict.fromkeys(line.partition("\0")[0] for line in analysis.lines)
        return [name for name in names if name not in _BUILTINS and not re.match(rf"\d|\Z|{ASSIGNMENT}", name)]


@dataclass(frozen=True, slots=True)
class ArgumentList(ShellText):
    """A program and its arguments. The shell only starts it: it finds each argument between quotes."""

    program: tuple[str | Slot, ...]

    def fill(self, values: Sequence[Any]) -> PreparedCommand:
        texts = []
        for slot, value in zip(self.slots, values, strict=True):
            one = slot.placeholder
            given = filtered(value, one.filters, one.offset)
            if isinstance(given, list):
                raise _unfit(one, ": each element of a command is one argument, and a list is none; join its items")
            texts.append(_item(one, given))
        if _filled(self.program, texts).startswith("-"):
            raise ShellError("the name of a program cannot begin with -")
        bound = _Bound(_filled(self.parts, [""] * len(texts)))
        references = (f'"{bound.reference(*each)}"' for each in zip(_placeholders(self.parts), texts, strict=True))
        return bound.prepared(_filled(self.parts, references), is_list=True)


def compile_command(command: str | tuple[str, ...], compiler: Compiler) -> ShellText | ArgumentList:
    """A command with its expressions compiled; `check` finds what else is wrong with it."""
    elements = [compile_text(text, compiler).parts for text in ([command] if isinstance(command, str) else command)]
    if not isinstance(command, str):
        return ArgumentList(_quoted(elements), None, elements[0])
    has_raw = any(_mode(one) == "raw" for one in _placeholders(elements[0]))
    return ShellText(elements[0], None if has_raw else _analyse(elements[0], {}))


def read(command: str | Sequence[str]) -> tuple[ShellReader, list[tuple[int, Placeholder]]]:
    """A command as it is written, and the place of each value in it: in which of its texts, and where."""
    texts = [command] if isinstance(command, str) else command
    elements = [split_template(text) for text in texts]
    places = [(element, one) for element, parts in enumerate(elements) for one in _placeholders(parts)]
    # As long as it is not known what `| raw` pastes, it is some word.
    modes = ("raw",) if isinstance(command, str) else ("raw", "quote")
    pasted = {number: "raw-text" for number, (_, one) in enumerate(places) if _mode(one) in modes}
    return _analyse(elements[0] if isinstance(command, str) else _quoted(elements), pasted), places


def _quoted(elements: Iterable[Sequence[str | Slot | Placeholder]]) -> tuple[Any, ...]:
    """The elements of a list as the words of one text."""
    words = ([shlex.quote(part) if isinstance(part, str) else part for part in one or ("",)] for one in elements)
    return tuple(part for word in words for part in (" ", *word))[1:]


def _placeholders(parts: Iterable[str | Slot | Placeholder]) -> list[Placeholder]:
    return [part.placeholder if isinstance(part, Slot) else part for part in parts if not isinstance(part, str)]


def _filled(parts: Sequence[str | Slot], texts: Iterable[str]) -> str:
    following = iter(texts)
    return "".join(part if isinstance(part, str) else next(following) for part in parts)


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _mode(placeholder: Placeholder) -> str:
    last = placeholder.filters[-1:]
    return last[0] if last in (("raw",), ("quote",)) else ""


def _pasted(found: Sequence[Placeholder], values: Sequence[Any]) -> dict[int, str]:
    """What each `| raw` pastes whose value is known."""
    return {
        number: _passable(one, " ".join(as_text(item) for item in _items(value)))
        for number, (one, value) in enumerate(zip(found, values, strict=True))
        if _mode(one) == "raw" and value is not UNKNOWN
    }


def _reference(placeholder: Placeholder, number: int, analysis: ShellReader, value: Any, bound: _Bound) -> str:
    """What stands in the text for a value: no character of it comes from the value."""
    quotes = analysis.quotes[number]
    if quotes == _COMMENT:
        return ""
    texts = [_item(placeholder, item) for item in _items(value)]
    if _mode(placeholder) == "quote":
        # Bare, this shell takes the quotes off again; between quotes they stay, for the program that reads the string.
        joined = " ".join(texts)
        texts = [joined if quotes == _BARE else shlex.quote(joined)]
    elif isinstance(value, list) and quotes == _BARE and number not in analysis.lists:
        raise _unfit(placeholder, ": a list cannot stand here; join its items, or write it as a word of its own")
    if quotes == _BARE:
        return " ".join(f'"{bound.reference(placeholder, text)}"' for text in texts)
    reference = bound.reference(placeholder, " ".join(texts))
    return f"'\"{reference}\"'" if quotes == _SINGLE else reference


def _item(placeholder: Placeholder, value: Any) -> str:
    if value is None:
        raise _unfit(placeholder, f" has no value (null); write {{{{ {placeholder.source} ?? '' }}}} for nothing")
    return _passable(placeholder, as_text(value))


def _passable(placeholder: Placeholder, text: str) -> str:
    """The text, unless the operating system has no way to hand it to a process."""
    if "\0" in text:
        raise _unfit(placeholder, " contains a NUL character, which cannot be passed to a command")
    # U+DC80 to U+DCFF are bytes of file names that are no UTF-8: those are passed on as they were.
    if any("\ud800" <= character <= "\udfff" and not "\udc80" <= character <= "\udcff" for character in text):
        raise _unfit(placeholder, " contains half a surrogate pair, which cannot be passed to a command")
    return text


def _unfit(placeholder: Placeholder, why: str) -> TemplateError:
    return TemplateError(placeholder.shown + why, placeholder.offset, kind="value")


class _Bound:
    """The values of one command, each with the variable that carries it."""

    def __init__(self, text: str) -> None:
        self._prefix = "sidecar_value"
        while self._prefix in text:
            self._prefix += "_"
        self._values: dict[str, str] = {}
        self._bytes = 0

    def reference(self, placeholder: Placeholder, text: str) -> str:
        """The expansion of a new variable with this value."""
        self._bytes += len(text.encode("utf-8", "surrogateescape"))
        if self._bytes > _TOTAL_BYTES:
            raise _unfit(placeholder, f": the values exceed {_TOTAL_BYTES // 1000} kB; pass big ones in a file")
        name = f"{self._prefix}_{len(self._values) + 1}"
        self._values[name] = text
        return f"${{{name}}}"

    def prepared(self, body: str, *, is_list: bool = False) -> PreparedCommand:
        """Its first line takes the values out of the environment, so that what it starts does not inherit them."""
        environment: dict[str, str] = {}
        lead = ""
        for name, text in self._values.items():
            chunks = {
                f"{name}_{start // _CHUNK_CHARACTERS}": text[start : start + _CHUNK_CHARACTERS]
                for start in range(0, max(len(text), 1), _CHUNK_CHARACTERS)
            }
            environment.update(chunks)
            lead += f"{name}=" + "".join(f"${{{chunk}}}" for chunk in chunks) + "; "
        if environment:
            lead += f"unset {' '.join(environment)}; "
        script = lead + ("exec " if is_list else "") + body
        if len(script.encode("utf-8", "surrogateescape")) > _SCRIPT_BYTES:
            raise ShellError(_TOO_LONG)
        return PreparedCommand(script, environment, body, self._values, is_list)


# The scanner. What a variable expands to is data to the shell, but for a few places, and a value cannot be followed
# through all that a script does with it. So a text that has a value is refused where *any* expansion, the value itself
# or a variable of the author, stands where code does: the command's name, the script of `sh -c`, a subscript. It is
# refused too where it uses what reads text as code (`eval`, `.`, a heredoc), what dash and bash read differently (`sh`
# may be either), or what would take a grammar to read (`case`, functions, unusual options of a program that starts
# another). Not followed is what a command writes into a file that its author then executes.

_DEPTH, _VALUES = 40, 7_500  # at most
_TOO_DEEP = "the command is nested too deeply to be read"
# A text to analyse has one character for each value. In a word whose quotes are taken off, two more stand for the
# author's own expansions: in double quotes they are one word, unquoted any number of words.
_FIRST_MARK = 0xF0000
_ONE, _MANY = "\U0010fff0", "\U0010fff1"
_ANY = "\U000f0000-\U0010ffff"
VALUE = "[\U000f0000-\U000fffff]"
_EXPANSION = re.compile(f"[{_ANY}]")
_BARE, _SINGLE, _DOUBLE, _COMMENT = "", "'", '"', "#"  # where a value stands

_TOKEN = re.compile(r"""(?x) (?P<blank>(?:[ \t]|\\\n)+) | (?P<comment>\#[^\n]*) | (?P<end>[;&|\n)])
      | (?P<group>\((?!\()) | (?<!\})[0-9]*(?P<redirect><<<|[<>]&|<>|>>|>\||[<>])(?:[ \t]|\\\n)*""")
_DOLLAR = rf"""(?xa)  # no value, no quote and no bracket inside ${{…}}
        \$(?P<number>[?\#]) | \$(?P<parameter>[A-Za-z_]\w* | [0-9@*$!-] | \{{\#?(?:[A-Za-z_]\w*|[0-9]+|[@*\#?$!-])\}}
          | \{{(?:[A-Za-z_]\w*|[0-9]+|[@*]) (?: :?[-+=?] | %%? | \#\#?) (?:[^{{}}'"`\\()${_ANY}]|\$(?!\[))*\}})
      | \$(?P<substitution>\((?!\()) | (?P<quote>")"""
# What a word consists of: without quotes, and in double quotes.
_BARE_PIECE = re.compile(rf"""{_DOLLAR} | '(?P<single>[^']*)' | \\(?P<escaped>[^{_ANY}])
      | (?P<bracket>(?<![^ \t\n;&|<>(])(?:\[\[?|\{{)(?=[ \t\n;&|<>()]|\Z)) | (?P<pattern>[*?\[]|\{{(?!\}}))
      | (?P<plain>[^'"\\`$*?\[{{ \t\n;&|<>()]+ | \{{ | \$(?![\[({{'"{_ANY}]))""")
_QUOTED_PIECE = re.compile(rf"""{_DOLLAR} | \\(?P<escaped>[\\$`"\n])
      | (?P<plain>[^"\\`$]+ | \\(?![\\$`"\n{_ANY}]) | \$(?![\[({{{_ANY}]))""")
# The shell evaluates what it finds in these variables, or reads it as commands.
_EVALUATED = r"(?<!\w)(PS[0-4]|ENV|BASH_ENV|BASH_FUNC\w*|PROMPT_COMMAND|S?RANDOM|OPTIND|HISTCMD|SECONDS|BASHPID)(?!\w)"

# The words of a command are looked at as one line, with a NUL behind each. Programs that start a command: what stands
# between their name and the command's. With any other option they are refused.
ASSIGNMENT = r"[A-Za-z_][A-Za-z0-9_]*\+?="
_VARIABLES = rf"(?:{ASSIGNMENT}[^\0{_MANY}]*\0)*"
_XARGS = rf"(?:(?:-[0rtx]+|-[nPL]\0?[0-9]+|-d\0?[^\0{_ANY}]+|--null|--no-run-if-empty)\0)*"
_SSH = r"-[46AaCfKkNnqTtvXxYy]"
# A script of the author, or a file with an extension: what comes through a pipe has none, such as /dev/stdin.
_SHELL = (
    r"(?:(?:-[eflux]+|-[eflux]*o\0[a-z]+)\0)*"
    rf"(?:-[eflux]*c\0(?P<script>[^-+\0][^\0]*)|(?![-+])[^\0{_ANY}]+\.[A-Za-z]+)\0"
)
_LAUNCHERS = {
    "command": r"(?:-p\0)?",
    "env": rf"(?:(?:-i?|-u\0\w+)\0)*{_VARIABLES}",
    "exec": "",
    "nice": r"(?:-n?\0?-?[0-9]+\0)?",
    "nohup": "",
    "stdbuf": r"(?:-[ioe](?:L|[0-9]+)\0)*",
    "sudo": rf"(?:(?:-[nEHkb]+|-[ug]\0?[\w.-]+)\0)*{_VARIABLES}",
    "time": r"(?:-p\0)?",
    "timeout": r"(?:(?:-v|-[ks]\0?[\w.]+|--(?:fore|pres)[a-z-]+|--[ks][a-z-]+=[\w.]+)\0)*[0-9.]+[smhd]?\0",
    "xargs": rf"{_XARGS}(?:-[0rtx]*I\0?(?P<replaced>[^\0{_ANY}]+)\0{_XARGS})?",
    "ssh": rf"(?s)(?:(?:{_SSH}+|{_SSH}*[DFiJLlopRW]\0?[^\0]+)\0)*(?:--\0|[^-{_ANY}])[^\0]+\0(?P<script>[^-\0].*)\0",
    **dict.fromkeys(("sh", "bash", "dash", "ash"), _SHELL),
}
_NESTED = r"\0(?:[^\0]*/)?(?:(?:|a|ba|da|rba|k|mk|lk|ok|pdk|po|z|fi|ya|o|c|tc|pw)sh|ksh93)\0"
# They read a text as code, start a command in a way of their own, make variables that are evaluated, need a grammar, or
# are known to one shell only.
_REFUSED = frozenset(
    """eval . source alias let bind builtin complete compgen compopt fc enable hash jobs mapfile readarray declare
    typeset case esac function coproc select [[ su runuser sg newgrp login doas gosu su-exec pkexec chroot unshare
    nsenter setarch setpriv prlimit taskset chrt ionice flock script watch parallel at batch crontab tmux screen entr
    hyperfine busybox toybox fakeroot strace ltrace systemd-run unbuffer capsh setsid trap rbash ksh ksh93 mksh lksh
    oksh pdksh posh zsh fish yash osh csh tcsh pwsh""".split()  # noqa: SIM905
)
_BUILTINS = frozenset(
    """. : [ [[ alias break case cd command continue echo eval exec exit export false for function getopts hash kill let
    local printf pwd read readonly return select set shift source test time trap true type umask unset wait""".split()  # noqa: SIM905
)
_RESERVED = frozenset(["if", "then", "else", "elif", "fi", "do", "done", "while", "until", "!", "{", "}"])
# What else is refused. A name, a subscript and the operand of -v are evaluated; an expansion may be an operator such
# as -v or -exec, so that the author's own word has to follow it.
_NAME = "bash may evaluate the value as a name or a subscript; with printf, write printf '%s' {{ … }}"
_UNSAFE = {
    r"for\0(?![^\0]*\0in\0)": "a text with a value must not have for without in",
    rf"printf\0(?:-v|-?[{_ANY}])": _NAME,
    rf"(?:export|readonly|local|read|unset|getopts|wait)\0(?:.*\0)?(?:[^\0=]*[\[{_ANY}]|-\w*[aAin])": _NAME,
    r"(?:test|\[)\0(?:.*\0)?-[vR]\0(?![A-Za-z_]\w*\0)": _NAME,
    rf"(?:test|\[|find|ssh)\0.*{_MANY}": "an expansion has to stand in double quotes here",
    rf"(?:test|\[)\0.*[{_ANY}][^\0]*\0(?!(?:[!=]?=|-[a-z]+|\])\0|\Z)": "an operator has to follow an expansion",
    rf"find\0.*[{_ANY}][^\0]*\0[^\0]*[{_ANY}]": "a value must not be beside another expansion",
}


class _UnsafeError(Exception):
    def __init__(self, why: str, shown: str = "") -> None:
        super().__init__(why)
        self.numbers = value_numbers(shown)


def value_numbers(text: str) -> list[int]:
    return [ord(mark) - _FIRST_MARK for mark in re.findall(VALUE, text)]


def _analyse(parts: Sequence[str | Slot | Placeholder], pasted: dict[int, str]) -> ShellReader:
    """Reads a text, with what `| raw` pastes."""
    numbers, text = count(), ""
    for part in parts:
        pasted_text = part if isinstance(part, str) else pasted.get(number := next(numbers))
        text += chr(_FIRST_MARK + number) if pasted_text is None else _EXPANSION.sub("\ufffd", pasted_text)
        if len(text) > _SCRIPT_BYTES or (pasted_text is None and number == _VALUES):  # each becomes a longer reference
            raise ShellError(_TOO_LONG)
    reader = ShellReader(text)
    values = value_numbers(reader.text)
    try:
        reader.read()
    except _UnsafeError as refusal:
        reader.refused = ((refusal.numbers or values)[0], str(refusal)) if values else None
    return reader


@dataclass(slots=True)
class ShellReader:
    """Reads one text: its quotes, and its simple commands one after the other. It knows each value by its number."""

    text: str
    at: int = 0
    depth: int = 0
    quotes: dict[int, str] = field(default_factory=dict)
    lists: set[int] = field(default_factory=set)  # where a list may become several words
    lines: list[str] = field(default_factory=list)  # each command, or what stands before the one it starts
    refused: tuple[int, str] | None = None  # at which value, and why

    def read(self) -> None:
        self.commands()
        if split := re.search(r"(?<![\s;&|])\\\n", self.text):
            raise self._unread(split.start())
        if named := re.search(_EVALUATED, re.sub(r"['\"\\]", "", self.text), re.ASCII):
            raise _UnsafeError(f"the shell evaluates what is in {named[1]}")

    def _unread(self, at: int) -> _UnsafeError:
        shown = self.text[at : at + 10]
        excerpt = one_line(_EXPANSION.sub("{{ … }}", shown)) or "an open bracket"
        return _UnsafeError(f"`{excerpt}` cannot stand in a text with a value", shown)

    def commands(self, *, is_nested: bool = False) -> None:
        self.depth += 1
        if self.depth > _DEPTH:
            raise _UnsafeError(_TOO_DEEP)
        words: list[str] = []
        is_closed = False
        while self.at < len(self.text) and not is_closed:
            start, token = self.at, _TOKEN.match(self.text, self.at)
            if token is None:
                words.append(self._word())
                continue
            self.at = token.end()
            if operator := token["redirect"]:
                word = self._word(is_argument=False)
                if operator.endswith("&") and _EXPANSION.search(word):
                    raise self._unread(start)
            elif token["group"]:
                if not _RESERVED.issuperset(words):
                    raise self._unread(start)
                self.commands(is_nested=True)
            elif token["end"]:
                self._simple(words)
                words, is_closed = [], token[0] == ")"
            else:
                self._mark(token[0], _COMMENT)
        if is_closed != is_nested:
            raise self._unread(self.at - is_closed)
        self._simple(words)
        self.depth -= 1

    def _word(self, *, is_argument: bool = True) -> str:
        """The next word without its quotes."""
        start, word, quotes = self.at, "", _BARE
        while self.at < len(self.text) and (quotes == _DOUBLE or self.text[self.at] not in " \t\n;&|<>)"):
            piece = (_BARE_PIECE if quotes == _BARE else _QUOTED_PIECE).match(self.text, self.at)
            if piece is None:
                raise self._unread(self.at)
            self.at = piece.end()
            kind, text = str(piece.lastgroup), str(piece[str(piece.lastgroup)])
            if kind == "quote":
                quotes = _DOUBLE if quotes == _BARE else _BARE
            elif kind in ("parameter", "substitution", "pattern"):
                word += _MANY if quotes == _BARE or "@" in text else _ONE
            elif kind != "escaped" or text != "\n":
                word += text
                self._mark(text, _SINGLE if kind == "single" else quotes)
            if kind == "substitution":
                self.commands(is_nested=True)
        if quotes == _DOUBLE or self.at == start:
            raise self._unread(start)
        if is_argument and re.fullmatch(VALUE, self.text[start : self.at]):
            self.lists.update(value_numbers(word))
        return word

    def _mark(self, text: str, quotes: str) -> None:
        self.quotes.update(dict.fromkeys(value_numbers(text), quotes))

    def _simple(self, words: list[str]) -> None:
        """Checks a simple command: its variables, then itself and each command that it starts."""
        start = 0
        while start < len(words) and (words[start] in _RESERVED or re.match(ASSIGNMENT, words[start])):
            start += 1
        self.lines += [f"{word}\0" for word in words[:start] if word not in _RESERVED]
        self._command(words[start:])

    def _command(self, words: list[str]) -> None:
        for _ in range(_DEPTH):
            if not words:
                return
            name, line = words[0].rpartition("/")[2], "\0".join([*words, ""])
            start = len(words[0]) - len(name)
            if re.match(rf"-|{ASSIGNMENT}|[^\0]*[{_ANY}]", line):
                raise _UnsafeError("the name of a command has to be written out, without an expansion", line)
            if refused := ({name} & (_REFUSED | _RESERVED)) or ({"eval"} & set(words)):
                raise _UnsafeError(f"a text with a value must not have {refused.pop()}", line)
            for unsafe, why in _UNSAFE.items():
                if re.match(unsafe, line[start:], re.DOTALL | re.ASCII):
                    raise _UnsafeError(why, line)
            if name in ("test", "[", "find", "ssh"):
                self.lists.difference_update(value_numbers(line))
            if name in _LAUNCHERS and not re.match(r"command\0-[vV]\0", line):
                words = self._started(name, line)
            else:
                words = []
                self._program(name, line)
        raise _UnsafeError(_TOO_DEEP)

    def _started(self, name: str, line: str) -> list[str]:
        """The command that a program starts, unless it is a script: that is read."""
        started = re.compile(_LAUNCHERS[name]).match(line, line.index("\0") + 1)
        if started is None:
            raise _UnsafeError(f"{name} with these arguments could run a value", line)
        words, found = line[started.end() :].split("\0")[:-1], started.groupdict()
        self.lines.append(line[: started.start("script") if found.get("script") else started.end()])
        if "script" in found:
            self._script(name, found["script"] or "")
            return []  # the other words are arguments of the script, or of the file
        if words and name == "xargs":  # what it reads stands in these words, or behind them
            return [each.replace(found["replaced"], _MANY) for each in words] if found["replaced"] else [*words, _MANY]
        return words

    def _script(self, name: str, script: str) -> None:
        """Reads a script that a command is given: the values may be in its environment and its arguments."""
        if _EXPANSION.search(script):
            example = "" if name == "ssh" else f"""; write {name} -c '… "$1"' {name} {{{{ … }}}}"""
            raise _UnsafeError(f"{name} would read an expansion as its script{example}", script)
        outer = self.text, self.at
        self.text, self.at = script.replace("\0", " "), 0
        self.read()
        self.text, self.at = outer

    def _program(self, name: str, line: str) -> None:
        if name == "find":
            for started in re.split(r"\0-(?:exec|ok)(?:dir)?\0", line)[1:]:
                self._command(started.replace("{}", _MANY).strip("\0").split("\0"))
        self.lines.append(line)
        if name not in _BUILTINS and (shell := re.search(_NESTED, line)):
            self._command(line[shell.start() + 1 : -1].split("\0"))  # whatever starts it: `docker exec box sh -c …`
