"""Shell commands with values in them, where the shell never reads a value as code.

A value is never pasted into the text. It travels in the environment, and the text gets a reference to it that fits the
quotes around its placeholder. Where even that could become code the text is refused. A list is one word per item where
it stands as a word of its own, and one text joined by blanks inside quotes. Null is refused: `rm -r {{ dir }}/build`
must not run without a directory. A command that is a list has no shell: each element is one argument.
"""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

from sidecar.errors import ShellError, TemplateError
from sidecar.state.javascript import Placeholder, split_template
from sidecar.state.template import Compiler, Run, Slot, as_text, compile_text, filtered, names_in
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
_WAY_OUT = "Write `command` as a list, or pass the value in `env:`; `| raw` turns this off"


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
class CommandFinding:
    """What is wrong with a command, or doubtful, at an offset of its text."""

    offset: int
    message: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class ShellText:
    """A compiled command; it is analysed once, unless `| raw` makes another text of it at every run."""

    parts: tuple[str | Slot, ...]
    placeholders: tuple[str, ...]  # as they are written
    analysis: _Analysis | None

    @property
    def slots(self) -> list[Slot]:
        return [part for part in self.parts if isinstance(part, Slot)]

    @property
    def names(self) -> frozenset[str]:
        return names_in(self.slots)

    def prepare(self, run: Run) -> PreparedCommand:
        """The command with the values that its expressions have now."""
        return self.fill([slot.evaluate(run) for slot in self.slots])

    def fill(self, values: Sequence[Any]) -> PreparedCommand:
        """The command with one value per `{{ }}`, in order."""
        found = _placeholders(self.parts)
        filters = [one.filters[:-1] if _mode(one) else one.filters for one in found]
        given = [filtered(*each) for each in zip(values, filters, [one.offset for one in found], strict=True)]
        # What `| raw` pastes may open a quote, so the places are looked for in the text that will really run.
        pasted = {number: _raw(found[number], given[number]) for number in _raws(found)}
        analysis = self.analysis or _analyse(self.parts, pasted)
        if analysis.refused is not None:
            refused = found[analysis.refused_at]
            raise TemplateError(f"{refused.shown}: {analysis.refused}. {_WAY_OUT}", refused.offset)
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
                texts.append(self.placeholders[number])
            else:
                given = filtered(value, one.filters, one.offset)
                is_text = _mode(one) or (self.analysis and self.analysis.quotes.get(number))
                words = [as_text(given)] if is_text else [shlex.quote(as_text(item)) for item in _items(given)]
                texts.append(" ".join(words))
        return _filled(self.parts, texts)

    def programs(self, values: Sequence[Any]) -> list[str]:
        """The programs that it starts, as far as they can be told with these values, of which some may be UNKNOWN."""
        slots = _placeholders(self.parts)
        pasted = {
            number: _raw(slots[number], values[number]) for number in _raws(slots) if values[number] is not UNKNOWN
        }
        found = _Analysis()
        with suppress(_UnsafeError, ShellError):  # then it is what was read before that
            _Scanner(_marked(self.parts, pasted), found, is_fed=False).commands()
        return [name for name in dict.fromkeys(found.programs) if name not in _BUILTINS and not name[0].isdigit()]


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
    """A command with its expressions compiled; `check` and `check_list` find what else is wrong with it."""
    texts = (command,) if isinstance(command, str) else command
    placeholders = tuple(text[one.offset : one.end] for text in texts for one in _placeholders(split_template(text)))
    elements = [compile_text(text, compiler).parts for text in texts]
    if not isinstance(command, str):
        quoted = ([shlex.quote(part) if isinstance(part, str) else part for part in one or ("",)] for one in elements)
        parts = [part for element in quoted for part in (" ", *element)][1:]
        return ArgumentList(tuple(parts), placeholders, None, elements[0])
    analysis = None if _raws(_placeholders(elements[0])) else _analyse(elements[0], {})
    return ShellText(elements[0], placeholders, analysis)


def check(command: str) -> list[CommandFinding]:
    """Where the shell would read a value as code, which is an error, and where another program may, which is none."""
    parts = split_template(command)
    found = _placeholders(parts)
    # As long as it is not known what `| raw` pastes, it is some word.
    analysis = _analyse(parts, dict.fromkeys(_raws(found), "raw-text"))
    if analysis.refused is not None:
        return [CommandFinding(found[analysis.refused_at].offset, f"{analysis.refused}. {_WAY_OUT}", is_error=True)]
    return [CommandFinding(found[at].offset, why, is_error=False) for at, why in sorted(analysis.warnings.items())]


def check_list(command: Sequence[str]) -> list[list[CommandFinding]]:
    """What is doubtful in each element: no shell reads a list, but its program may be one."""
    findings: list[list[CommandFinding]] = [[] for _ in command]
    elements = [[*split_template(element), "\0"] for element in command]
    places = [(element, one) for element, parts in enumerate(elements) for one in _placeholders(parts)]
    pasted = {number: "x" for number, (_, one) in enumerate(places) if _mode(one)}
    words = _marked([part for parts in elements for part in parts], pasted).split("\0")[:-1]
    analysis = _Analysis()
    try:
        _Scanner("", analysis, is_fed=False).check_command(words)
    except _UnsafeError as refusal:
        if refusal.number is not None:
            analysis.warnings[refusal.number] = str(refusal)
    for number, message in sorted(analysis.warnings.items()):
        findings[places[number][0]].append(CommandFinding(places[number][1].offset, message, is_error=False))
    return findings


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


def _raws(found: Sequence[Placeholder]) -> list[int]:
    return [number for number, one in enumerate(found) if _mode(one) == "raw"]


def _raw(placeholder: Placeholder, value: Any) -> str:
    return _passable(placeholder, " ".join(as_text(item) for item in _items(value)))


def _reference(placeholder: Placeholder, number: int, analysis: _Analysis, value: Any, bound: _Bound) -> str:
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
        raise _unfit(placeholder, " holds a NUL character, which no command can be given")
    # U+DC80 to U+DCFF are bytes of file names that are no UTF-8: those are passed on as they were.
    if any("\ud800" <= character <= "\udfff" and not "\udc80" <= character <= "\udcff" for character in text):
        raise _unfit(placeholder, " holds half a surrogate pair, which no command can be given")
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

_DEPTH, _VALUES = 40, 10_000  # at most
# A text to analyse has one character for each value. In a word whose quotes are taken off, two more stand for the
# author's own expansions: in double quotes they are one word, unquoted any number of words.
_FIRST_MARK = 0xF0000
_ONE, _MANY = "\U0010fff0", "\U0010fff1"
_ANY = "\U000f0000-\U0010ffff"
_MARK = re.compile("[\U000f0000-\U000fffff]")
_EXPANSION = re.compile(f"[{_ANY}]")
_BARE, _SINGLE, _DOUBLE, _COMMENT = "", "'", '"', "#"  # where a value stands

_TOKEN = re.compile(r"""(?x) (?P<blank>(?:[ \t]|\\\n)+) | (?P<comment>\#[^\n]*) | (?P<end>[;&|\n)])
      | (?P<group>\((?!\()) | [0-9]*(?P<redirect><<<|<<|[<>]\(|[<>]&|<>|>>|>\||[<>])(?:[ \t]|\\\n)*""")
_BRACKET = re.compile(r"(?:\[\[?|\{)(?=[ \t\n;&|<>()]|\Z)")  # as a word, where it is no pattern of file names
_DOLLAR = rf"""(?xa)  # no value, no quote and no bracket inside ${{…}}
        \$(?P<parameter>[A-Za-z_]\w* | [0-9@*\#?$!-] | \{{\#?(?:[A-Za-z_]\w*|[0-9]+|[@*\#?$!-])\}}
          | \{{(?:[A-Za-z_]\w*|[0-9]+|[@*]) (?: :?[-+=?] | %%? | \#\#?) (?:[^{{}}'"`\\()${_ANY}]|\$(?!\[))*\}})
      | \$(?P<substitution>\((?!\()) | (?P<quote>")"""
# What a word consists of: without quotes, and in double quotes.
_BARE_PIECE = re.compile(rf"""{_DOLLAR} | '(?P<single>[^']*)' | \\(?P<escaped>[^{_ANY}])
      | (?P<pattern>[*?\[]|\{{(?!\}})) | (?P<plain>[^'"\\`$*?\[{{ \t\n;&|<>()]+ | \{{ | \$(?![\[({{'"{_ANY}]))""")
_QUOTED_PIECE = re.compile(rf"""{_DOLLAR} | \\(?P<escaped>[\\$`"\n])
      | (?P<plain>[^"\\`$]+ | \\(?![\\$`"\n{_ANY}]) | \$(?![\[({{{_ANY}]))""")
# The shell evaluates what it finds in these variables, or reads it as commands.
_EVALUATED = r"(?<!\w)(PS[0-4]|ENV|BASH_ENV|BASH_FUNC\w*|PROMPT_COMMAND|S?RANDOM|OPTIND|HISTCMD|SECONDS|BASHPID)(?!\w)"
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_RESERVED = frozenset(["if", "then", "else", "elif", "fi", "do", "done", "while", "until", "!", "{", "}"])
_SHELLS = frozenset(["sh", "bash", "dash", "ash"])
# Commands that come through a pipe, also by a name that is relative to /dev or /proc.
_INPUT_FILE = r"(?:^|/)(?:(?:dev|proc)/|(?:stdin|[0-9]+)$)"
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
# Programs that start the command behind their options: the options without an argument, those that have it in the next
# word, and how many operands come first. With any other option they are refused, as shells and ssh are.
_OPTIONS = {
    "command": ("-p", "", 0),
    "env": ("-|-[i0v]+", "-u", 0),
    "exec": ("-[cl]+", "-a", 0),
    "nice": ("-n?-?[0-9]+", "-n", 0),
    "nohup": ("", "", 0),
    "stdbuf": ("-[ioe](?:L|[0-9]+)", "-[ioe]", 0),
    "sudo": ("-[nEHkb]+", "-[ug]", 0),
    "time": ("-[pv]", "", 0),
    "timeout": ("-v|--foreground|--preserve-status|-[ks][0-9A-Z]+|--[ks][a-z-]+=.+", "-[ks]", 1),
    "xargs": ("-[0rtx]+|-[nPLs][0-9]+|-[0rtx]*I.+|-d.+|--null|--no-run-if-empty", "-[0rtx]*[nPLsId]", 0),
    "ssh": ("-[46AaCfKkNnqTtvXxYy]+|-[Filop].+", "-[46AaCfKkNnqTtvXxYy]*[BbcDEeFIiJLlmOopQRSWw]", 0),
    **dict.fromkeys(_SHELLS, ("-[efluvx]*c|-[efluvx]+", "-[efluvx]*o", 0)),
}
# What else is refused, in the words of a command with a NUL between them. A name, a subscript and the operand of -v are
# evaluated; an expansion may be an operator such as -v or -exec, so that the author's own word has to follow it.
_NAME = "bash may evaluate the value as a name or a subscript; with printf, write printf '%s' {{ … }}"
_UNSAFE = {
    r"for\0[^\0]*(?!\0in(?:\0|\Z))(?:\0|\Z)": "a text with a value must not have for without in",
    rf"printf\0(?:-v|-?[{_ANY}])": _NAME,
    rf"(?:export|readonly|local|read|unset|getopts|wait)\0(?:.*\0)?(?:[^\0=]*[\[{_ANY}]|-\w*[aAin])": _NAME,
    r"(?:test|\[)\0(?:.*\0)?-[vR]\0(?![A-Za-z_]\w*(?:\0|\Z))": _NAME,
    rf"(?:test|\[|find|ssh)\0.*{_MANY}": "an expansion has to stand in double quotes here",
    rf"(?:test|\[|find)\0.*[{_ANY}][^\0{_ANY}]*\0[^\0{_ANY}]*[{_ANY}]": "a value must not be beside another expansion",
}
# What validate warns of: options behind which code stands, or in which it stands.
_NO_OPTIONS = re.compile(r"echo|printf|test|\[|sleep|exit|return|shift|:|for|export|readonly|local|set|expr|raw-text")
_INTERPRETER = re.compile(r"(?:python|pypy|perl|ruby|node|deno|bun|php|lua|luajit|osascript|Rscript|tclsh)[0-9.]*")
_FILTER = re.compile(r"[gmn]?awk|g?sed|[jy]q")
_FILTER_OPTIONS = {"-v": 2, "-F": 2, "-f": 2, "-e": 2, "--arg": 3, "--argjson": 3, "--slurpfile": 3, "--rawfile": 3}
_CODE_OPTIONS = (
    (re.compile(r"(?:python|pypy)[0-9.]*|psql|mysql|mariadb"), re.compile(r"-[A-Za-z]*c|-e|--command|--execute")),
    (_INTERPRETER, re.compile(r"-[A-Za-z0]*[eEpr]|--eval|--print|eval")),
    (_FILTER, re.compile(r"-e|--expression")),
    (re.compile(r"g?make|sqlite3"), re.compile("")),
    (re.compile(r"git"), re.compile(r"-c|--config-env|--exec|--upload-pack|--receive-pack")),
    (re.compile(r"ssh|scp|sftp|rsync"), re.compile(r"-[oFS]|-[A-Za-z]*e|--rsh|--rsync-path")),
    (re.compile(r"g?tar"), re.compile(r"-[IF]|--(?:use-compress|to-com|checkpoint-ac|info-s|rsh)[a-z-]*")),
)
_CODE_VARIABLE = re.compile(r"""(?xa)
    (?:GIT_(?:SSH\w*|EXTERNAL_DIFF|CONFIG\w*|EXEC_PATH|DIR)|(?:LD_|DYLD_|PERL5)\w+|PYTHON(?:STARTUP|PATH|HOME)|PATH
      |RUBY(?:OPT|LIB)|NODE_(?:OPTIONS|PATH)|RSYNC_RSH|LESSOPEN|MAKEFLAGS
      |\w*(?:EDITOR|VISUAL|PAGER|BROWSER|SHELL|_ASKPASS|_COMMAND|_TOOL_OPTIONS))\+?=""")


@dataclass(slots=True)
class _Analysis:
    """What is known of a text, by the number of each value; why it is refused, and at which value."""

    quotes: dict[int, str] = field(default_factory=dict)
    lists: set[int] = field(default_factory=set)  # where a list may become several words
    refused: str | None = None
    refused_at: int = 0
    warnings: dict[int, str] = field(default_factory=dict)
    programs: list[str] = field(default_factory=list)


class _UnsafeError(Exception):
    def __init__(self, why: str, words: Iterable[str] = ()) -> None:
        super().__init__(why)
        self.number = next(iter(_numbers("".join(words))), None)


def _marked(parts: Sequence[str | Slot | Placeholder], pasted: dict[int, str]) -> str:
    """The text to analyse, with what `| raw` pastes."""
    numbers, texts = count(), []
    for part in parts:
        text = part if isinstance(part, str) else pasted.get(number := next(numbers))
        texts.append(chr(_FIRST_MARK + number) if text is None else _EXPANSION.sub("\ufffd", text))
        if text is None and number == _VALUES:
            raise ShellError(f"a command can have {_VALUES} values at most")
    if sum(map(len, texts)) > _SCRIPT_BYTES:
        raise ShellError(_TOO_LONG)
    return "".join(texts)


def _numbers(text: str) -> list[int]:
    return [ord(mark) - _FIRST_MARK for mark in _MARK.findall(text)]


def _analyse(parts: Sequence[str | Slot | Placeholder], pasted: dict[int, str]) -> _Analysis:
    """The places of the values in a text."""
    found, text = _Analysis(), _marked(parts, pasted)
    if numbers := _numbers(text):
        try:
            _Scanner(text, found, is_fed="|" in text or "<" in text).read()
        except _UnsafeError as refusal:
            found.refused, found.refused_at = str(refusal), numbers[0] if refusal.number is None else refusal.number
    return found


@dataclass(slots=True)
class _Scanner:
    """Reads one text: its quotes, and its simple commands one after the other."""

    text: str
    found: _Analysis
    is_fed: bool  # something may come through a pipe or a redirection
    depth: int = 0
    at: int = 0

    def read(self) -> None:
        if split := re.search(r"(?<![\s;&|])\\\n", self.text):
            raise self._unread(split.start())
        if named := re.search(_EVALUATED, re.sub(r"['\"\\]", "", self.text), re.ASCII):
            raise _UnsafeError(f"the shell evaluates what is in {named[1]}")
        self.commands()

    def _unread(self, at: int) -> _UnsafeError:
        shown = self.text[at : at + 10]
        excerpt = one_line(_EXPANSION.sub("{{ … }}", shown))
        return _UnsafeError(
            f"{f'`{excerpt}`' if excerpt else 'an open bracket'} cannot stand in a text with a value", shown
        )

    def commands(self, *, is_nested: bool = False) -> None:
        self._deeper()
        words: list[str] = []
        is_closed = False
        while self.at < len(self.text) and not is_closed:
            start, token = self.at, _TOKEN.match(self.text, self.at)
            self.at = token.end() if token else start
            if token is None:
                words.append(self._word())
            elif operator := token["redirect"]:
                word = self._word(is_argument=False)
                is_unread = operator in ("<<", "<(", ">(") or self.text[start - 1 : start] == "}"
                if is_unread or (operator.endswith("&") and _EXPANSION.search(word)):
                    raise self._unread(start)
            elif token["group"]:
                if not _RESERVED.issuperset(words):
                    raise self._unread(start)
                self.commands(is_nested=True)
            elif token["end"]:
                self.check_command(words)
                words, is_closed = [], token[0] == ")"
            else:
                self._mark(token[0], _COMMENT)
        if is_closed != is_nested:
            raise self._unread(self.at - is_closed)
        self.check_command(words)
        self.depth -= 1

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > _DEPTH:
            raise ShellError("the command is nested too deeply to be read")

    def _word(self, *, is_argument: bool = True) -> str:
        """The next word without its quotes."""
        if bracket := _BRACKET.match(self.text, self.at):
            self.at = bracket.end()
            return bracket[0]
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
        if quotes == _DOUBLE:
            raise self._unread(start)
        if is_argument and _MARK.fullmatch(self.text[start : self.at]):
            self.found.lists.update(_numbers(word))
        return word

    def _mark(self, text: str, quotes: str) -> None:
        self.found.quotes.update(dict.fromkeys(_numbers(text), quotes))

    def check_command(self, words: list[str], *, is_appended: bool = False) -> None:
        """Checks a simple command; `is_appended`: what xargs reads is put behind it."""
        for word in words:
            if _CODE_VARIABLE.match(word):
                self._note(word, f"other programs run what is in {word.partition('=')[0].rstrip('+')}")
        words = words[_behind_assignments(words, 0) :]
        if not words:
            return
        if words[0].startswith("-") or _EXPANSION.search(words[0]):
            raise _UnsafeError("the name of a command has to be written out, without an expansion or a pattern", words)
        self.found.programs.append(words[0])
        name = _program(words[0])
        if name in _REFUSED or "eval" in words:
            raise _UnsafeError(f"a text with a value must not have {name if name in _REFUSED else 'eval'}", words)
        if is_appended and name not in _SHELLS and (name in _OPTIONS or name == "find"):
            raise _UnsafeError(f"{name} could run what xargs reads")
        if name in _OPTIONS and words[:2] not in (["command", "-v"], ["command", "-V"]):
            self._deeper()
            self._launcher(name, words)
            self.depth -= 1
        else:
            self._simple(name, words)

    def _simple(self, name: str, words: list[str]) -> None:
        line = "\0".join([name, *words[1:]])
        for unsafe, why in _UNSAFE.items():
            if re.match(unsafe, line, re.DOTALL | re.ASCII):
                raise _UnsafeError(why, words)
        if name in ("test", "[", "find", "ssh"):
            self.found.lists.difference_update(_numbers(line))
        if name == "find":
            starts = [at for at, word in enumerate(words) if word in ("-exec", "-execdir", "-ok", "-okdir")]
            for start, end in pairwise([*starts, len(words)]):
                self.check_command([each.replace("{}", _MANY) for each in words[start + 1 : end]])
        self._warn(name, words)
        for at in range(1, 0 if _NO_OPTIONS.fullmatch(name) else len(words)):
            if re.search("sh(93)?$", words[at]) and _program(words[at]) in _SHELLS | _REFUSED:
                self.check_command(words[at:])  # whatever starts it: `docker exec box sh -c …`
                break

    def _launcher(self, name: str, words: list[str]) -> None:
        """A program that starts another; each of its options has to be known."""
        alone, valued, operands = _OPTIONS[name]
        at = 1
        while at < len(words) and words[at - 1] != "--" and words[at].startswith("-"):
            if words[at] != "--" and not re.fullmatch(f"{alone}|{valued}", words[at], re.DOTALL):
                raise _UnsafeError(f"a text with a value must not have {name} with unusual options", words)
            at += 2 if re.fullmatch(valued, words[at]) else 1
        at += operands
        if name == "ssh":
            return self._ssh(words, at)
        end = _behind_assignments(words, at)
        replaced = re.findall(r"\0-[0rtx]*I\0?([^\0]*)", "\0".join(words[:at])) if name == "xargs" else []
        if _EXPANSION.search("".join(words[:at])) or _MANY in "".join(words[at:end]) or len(replaced) > 1:
            raise _UnsafeError(f"{name} could take a value for its options or for what it is to run", words)
        if name in _SHELLS:
            return self._shell(name, words, at)
        for text in replaced:
            words = [word.replace(text, _MANY) for word in words]
        return self.check_command(words[at:], is_appended=name == "xargs")

    def _shell(self, name: str, words: list[str], at: int) -> None:
        """`sh FILE …` and `sh -c SCRIPT …`, where neither FILE nor SCRIPT has an expansion."""
        script = "".join(words[at : at + 1])
        has_script = any(re.match("-[a-z]*c", word) for word in words[1:at])
        if re.match(r"[-+]|\Z", script) or (not has_script and re.search(f"{_INPUT_FILE}|[{_ANY}]", script)):
            raise _UnsafeError(f"{name} could read a value as its script", words)
        if has_script:
            self._script(name, script)

    def _ssh(self, words: list[str], host: int) -> None:
        script = " ".join(words[host + 1 :])
        if script.startswith("-") or (self.is_fed and not script):
            raise _UnsafeError("the shell at the other end could read a value as its script", words)
        self._script("ssh", script)
        self._simple("ssh", words[: host + 1])

    def _script(self, name: str, script: str) -> None:
        """A script that a command is given as an argument: the values may be in its environment and its arguments."""
        if _EXPANSION.search(script):
            example = "" if name == "ssh" else f"""; write {name} -c '… "$1"' {name} {{{{ … }}}}"""
            raise _UnsafeError(f"{name} would read an expansion as its script{example}", script)
        _Scanner(script, self.found, is_fed=True, depth=self.depth).read()

    def _warn(self, name: str, words: list[str]) -> None:
        self._warn_of_scripts(words)
        if _FILTER.fullmatch(name):
            words = words[_script_of_filter(words) :]
        for before, word in pairwise([] if _NO_OPTIONS.fullmatch(name) else words):
            if word in ("--", "--end-of-options"):
                return
            is_argument = before is not words[0] and re.fullmatch("-[^=]+", before)
            if _MARK.match(word) and not is_argument:
                self._note(word[0], f"{name} can take the value for an option; put -- before it")

    def _warn_of_scripts(self, words: list[str]) -> None:
        """Values in the script of an interpreter, also behind a launcher that we do not know."""
        names = (at for at, word in enumerate(words) if any(one.fullmatch(_program(word)) for one, _ in _CODE_OPTIONS))
        words = words[next(names, len(words)) :]
        name = _program("".join(words[:1]))
        options = [option for program, option in _CODE_OPTIONS if program.fullmatch(name)]
        code = [each for before, each in pairwise(words) for one in options if one.fullmatch(before) or one.match(each)]
        if _FILTER.fullmatch(name) and not code:
            code = words[_script_of_filter(words) :][:1]
        self._note("".join(code), f"{name} reads the value as code; pass it as an argument or in a variable")
        if _INTERPRETER.fullmatch(name) and self.is_fed and all(each.startswith("-") for each in words[1:]):
            for number in sorted(self.found.quotes)[:1]:
                self.found.warnings.setdefault(number, f"{name} reads its input as code")

    def _note(self, word: str, message: str) -> None:
        for number in _numbers(word):
            self.found.warnings.setdefault(number, message)


def _program(word: str) -> str:
    return word.rpartition("/")[2]


def _behind_assignments(words: list[str], at: int) -> int:
    while at < len(words) and (words[at] in _RESERVED or _ASSIGNMENT.match(words[at])):
        at += 1
    return at


def _script_of_filter(words: list[str]) -> int:
    """Where the script of awk, sed or jq stands."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += _FILTER_OPTIONS.get(words[at], 1)
    return at
