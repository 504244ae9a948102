"""Shell commands with values in them, where the shell never reads a value as code.

A value is never pasted into the text. It travels in the environment, and the text gets a reference to it that
fits the quotes around its placeholder. Where even that could become code the text is refused.
A list is one word per item where it stands as a word of its own, and one text joined by blanks inside
quotes. Null is refused: `rm -r {{ dir }}/build` must not run without a directory.
A command that is a list has no shell: each element is one argument.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from enum import Enum
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

from sidecar.errors import ShellError, TemplateError
from sidecar.state.javascript import Placeholder, split_template
from sidecar.state.template import Compiler, Run, Slot, as_text, compile_text, filtered, names_in

if TYPE_CHECKING:
    from collections.abc import Sequence


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
class _Compiled:
    """A command whose expressions are compiled; `placeholders` are these as they are written."""

    parts: tuple[str | Slot, ...]
    placeholders: tuple[str, ...]

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
        raise NotImplementedError

    def typed(self, values: Sequence[Any]) -> str:
        """The command as a person would type it, to look at; instead of an UNKNOWN value it has its `{{ }}`."""
        raise NotImplementedError

    def programs(self, values: Sequence[Any]) -> list[str]:
        """The programs that it starts, as far as they can be told with these values, of which some may be UNKNOWN."""
        given, parts = iter(enumerate(values)), list[str | int]()
        for part in self.parts:
            if isinstance(part, str):
                parts.append(part)
                continue
            number, value = next(given)
            is_text = _mode(part.placeholder) == "raw" and value is not UNKNOWN
            parts.append(_raw(part.placeholder, value) if is_text else number)
        return _programs(parts)

    def _typed(self, number: int, value: Any, place: _Place | None = None) -> str:
        if value is UNKNOWN:
            return self.placeholders[number]
        placeholder = self.slots[number].placeholder
        value = filtered(value, placeholder.filters, placeholder.offset)
        if _mode(placeholder) or (place is not None and place.quotes is not _Quotes.BARE):
            return as_text(value)
        return " ".join(shlex.quote(as_text(one)) for one in (value if isinstance(value, list) else [value]))


@dataclass(frozen=True, slots=True)
class ShellText(_Compiled):
    """A text for the shell; it is analysed once, unless `| raw` makes another text of it at every run."""

    analysis: _Analysis | None

    def fill(self, values: Sequence[Any]) -> PreparedCommand:
        parts = [part.placeholder if isinstance(part, Slot) else part for part in self.parts]
        found = [part for part in parts if isinstance(part, Placeholder)]
        given = [filtered(value, _before_mode(one), one.offset) for one, value in zip(found, values, strict=True)]
        # What `| raw` pastes may open a quote, so the places are looked for in the text that will really run.
        pasted = {number: _raw(one, given[number]) for number, one in enumerate(found) if _mode(one) == "raw"}
        analysis = self.analysis or _analyse(parts, pasted)
        if analysis.refused is not None:
            refused = found[analysis.refused_at]
            raise TemplateError(f"{refused.shown}: {analysis.refused}. {_WAY_OUT}", refused.offset)
        bound = _Bound("".join(part for part in parts if isinstance(part, str)) + "".join(pasted.values()))
        numbers = count()
        body = ""
        for part in parts:
            if isinstance(part, str):
                body += part
            elif (number := next(numbers)) in pasted:
                body += pasted[number]
            else:
                body += _reference(part, analysis.places[number], given[number], bound)
        return bound.prepared(body)

    def typed(self, values: Sequence[Any]) -> str:
        given, places = iter(enumerate(values)), self.analysis.places if self.analysis else {}
        texts = []
        for part in self.parts:
            number, value = (0, None) if isinstance(part, str) else next(given)
            texts.append(part if isinstance(part, str) else self._typed(number, value, places.get(number)))
        return "".join(texts)


@dataclass(frozen=True, slots=True)
class ArgumentList(_Compiled):
    """A program and its arguments. The shell only starts it: it finds each argument between quotes."""

    elements: tuple[tuple[str | Slot, ...], ...]

    def fill(self, values: Sequence[Any]) -> PreparedCommand:
        bound = _Bound("".join(part for part in self.parts if isinstance(part, str)))
        given = iter(values)
        words: list[str] = []
        for element in self.elements:
            texts, word = "", ""
            for part in element:
                text = part if isinstance(part, str) else _argument(part.placeholder, next(given))
                texts += text
                word += shlex.quote(text) if isinstance(part, str) else f'"{bound.reference(part.placeholder, text)}"'
            if not words and texts.startswith("-"):
                raise ShellError("the name of a program cannot begin with -")
            words.append(word)
        return bound.prepared(" ".join(words), is_list=True)

    def typed(self, values: Sequence[Any]) -> str:
        given = iter(enumerate(values))
        return " ".join(
            "".join(shlex.quote(part) if isinstance(part, str) else self._typed(*next(given)) for part in element)
            for element in self.elements
        )


def compile_command(command: str | tuple[str, ...], compiler: Compiler) -> ShellText | ArgumentList:
    """A command with its expressions compiled; `check` and `check_list` find what else is wrong with it."""
    if not isinstance(command, str):
        elements = tuple(compile_text(element, compiler).parts for element in command)
        between = [part for element in elements for part in (" ", *element)][1:]
        return ArgumentList(tuple(between), tuple(one for text in command for one in _written(text)), elements)
    compiled = compile_text(command, compiler)
    is_fixed = not any(_mode(slot.placeholder) == "raw" for slot in compiled.slots)
    analysis = _analyse(split_template(command), {}) if is_fixed else None
    return ShellText(compiled.parts, tuple(_written(command)), analysis)


def check(command: str) -> list[CommandFinding]:
    """Where the shell would read a value as code, which is an error, and where another program may, which is none."""
    parts = split_template(command)
    offsets = [part.offset for part in parts if isinstance(part, Placeholder)]
    analysis = _analyse(parts, {})
    if analysis.refused is not None:
        return [CommandFinding(offsets[analysis.refused_at], f"{analysis.refused}. {_WAY_OUT}", is_error=True)]
    warnings = sorted(analysis.warnings.items())
    return [CommandFinding(offsets[number], message, is_error=False) for number, message in warnings]


def check_list(command: Sequence[str]) -> list[list[CommandFinding]]:
    """What is doubtful in each element: no shell reads a list, but its program may be one."""
    found: list[list[CommandFinding]] = [[] for _ in command]
    places: list[tuple[int, int]] = []  # of each value: the element, the offset there
    words: list[list[str | int]] = []
    for number, element in enumerate(command):
        words.append([])
        for part in split_template(element):
            if isinstance(part, Placeholder) and _mode(part) == "":
                words[-1].append(len(places))
                places.append((number, part.offset))
            else:
                words[-1].append("x" if isinstance(part, Placeholder) else part)
    for at, message in sorted(_doubts(words).items()):
        number, offset = places[at]
        found[number].append(CommandFinding(offset, message, is_error=False))
    return found


def _written(text: str) -> list[str]:
    return [text[part.offset : part.end] for part in split_template(text) if isinstance(part, Placeholder)]


def _analyse(parts: Sequence[str | Placeholder], pasted: dict[int, str]) -> _Analysis:
    """Where the values stand; as long as it is not known what `| raw` pastes, it is some word."""
    found: list[str | int] = []
    numbers = count()
    for part in parts:
        if isinstance(part, str):
            found.append(part)
        else:
            number = next(numbers)
            found.append(pasted.get(number, "raw-text") if _mode(part) == "raw" else number)
    if sum(len(part) for part in found if isinstance(part, str)) > _SCRIPT_BYTES:
        raise ShellError(_TOO_LONG)
    return _analyse_parts(found)


def _mode(placeholder: Placeholder) -> str:
    last = placeholder.filters[-1:]
    return last[0] if last in (("raw",), ("quote",)) else ""


def _before_mode(placeholder: Placeholder) -> tuple[str, ...]:
    return placeholder.filters[:-1] if _mode(placeholder) else placeholder.filters


def _raw(placeholder: Placeholder, value: Any) -> str:
    items = value if isinstance(value, list) else [value]
    return _passable(placeholder, " ".join(as_text(item) for item in items))


def _reference(placeholder: Placeholder, place: _Place, value: Any, bound: _Bound) -> str:
    """What stands in the text for a value: no character of it comes from the value."""
    if place.quotes is _Quotes.COMMENT:
        return ""
    texts = [_item(placeholder, item) for item in (value if isinstance(value, list) else [value])]
    if _mode(placeholder) == "quote":
        # Bare, this shell takes the quotes off again; between quotes they stay, for the program that reads the string.
        joined = " ".join(texts)
        texts = [joined if place.quotes is _Quotes.BARE else shlex.quote(joined)]
    elif isinstance(value, list) and place.quotes is _Quotes.BARE and not place.many:
        raise _unfit(placeholder, ": a list cannot stand here; join its items, or write it as a word of its own")
    if place.quotes is _Quotes.BARE:
        return " ".join(f'"{bound.reference(placeholder, text)}"' for text in texts)
    reference = bound.reference(placeholder, " ".join(texts))
    return f"'\"{reference}\"'" if place.quotes is _Quotes.SINGLE else reference


def _argument(placeholder: Placeholder, value: Any) -> str:
    """A value in an element of a list: all of it is one argument, or a part of one."""
    value = filtered(value, placeholder.filters, placeholder.offset)
    if isinstance(value, list):
        raise _unfit(placeholder, ": each element of a command is one argument, and a list is none; join its items")
    return _item(placeholder, value)


def _item(placeholder: Placeholder, value: Any) -> str:
    if value is None:
        hint = f"write {{{{ {placeholder.source} ?? '' }}}} where nothing is meant"
        raise _unfit(placeholder, f" has no value (null); {hint}")
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
            limit = f"{_TOTAL_BYTES // 1000} kB"
            raise _unfit(placeholder, f": the values of the command exceed {limit}; pass big ones in a file")
        name = f"{self._prefix}_{len(self._values) + 1}"
        self._values[name] = text
        return f"${{{name}}}"

    def prepared(self, body: str, *, is_list: bool = False) -> PreparedCommand:
        """The script first takes the values out of its environment, so that what it starts does not inherit them.

        It does so on its first line: the shell's messages keep the line numbers of the command.
        """
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


# The scanner. A quoted reference to a variable stands for a value, and what a variable expands to is data to the shell,
# but for a few places. A value cannot be followed through all that a script does with it. So a text that has a value
# is refused where *any* expansion, the value itself or a variable of the author, stands where code does: the command's
# name, the script of `sh -c`, arithmetic, a subscript. It is refused too where it uses what reads text as code (`eval`,
# `.`, a heredoc), or what dash and bash read differently: `sh` may be either. Not followed is what a command writes
# into a file that its author then executes.

_DEPTH = 40
_VALUES = 10_000
_WORDS = 200_000  # that a scanner visits, some of them more than once
# A text to analyse has one character for each value. In a word whose quotes are taken off, two more stand for the
# author's own expansions: in double quotes they are one word, unquoted any number of words.
_FIRST_MARK = 0xF0000
_ONE, _MANY = "\U0010fff0", "\U0010fff1"
_MARK = re.compile("[\U000f0000-\U000fffff]")
_EXPANSION = re.compile("[\U000f0000-\U0010ffff]")

_TOKEN = re.compile(
    r"""(?P<blank>(?:[ \t]|\\\n)+) | (?P<comment>\#[^\n]*) | (?P<end>[;&|\n]+)
      | (?P<redirect>[0-9]*(?:<<<|<<|[<>]\(|[<>]&|<>|>>|>\||[<>])) | (?P<function>\([ \t]*\)) | (?P<bracket>[()])""",
    re.VERBOSE,
)
_END_OF_WORD = frozenset(" \t\n;&|<>()")
_ORDINARY = re.compile(r"[^ \t\n;&|<>()'\"\\`$]+")
_PATTERN = re.compile(r"[*?\[]|\{(?!\})")  # of file names, and braces that become several words
_NO_PATTERN = re.compile(r"(?:\[\[?|\{)(?=[ \t\n;&|<>()]|\Z)")
_ORDINARY_IN_QUOTES = re.compile(r"[^\"\\`$]+")
_PARAMETER = re.compile(  # no value, no quote and no bracket inside ${…}
    r"""[A-Za-z_]\w* | [0-9@*\#?$!-] | \{\#?(?:[A-Za-z_]\w*|[0-9]+|[@*\#?$!-])\}
      | \{(?:[A-Za-z_]\w*|[0-9]+|[@*]) (?: :?[-+=?] | %%? | \#\#?)
        (?:[^{}'"`\\()$\U000f0000-\U0010ffff]|\$(?!\[))*\}""",
    re.VERBOSE | re.ASCII,
)
_SPLIT_WORD = re.compile(r"(?<![\s;&|])\\\n")
# The shell evaluates what it finds in these variables, or reads it as commands.
_EVALUATED = re.compile(
    r"(?<!\w)(PS[0-4]|ENV|BASH_ENV|BASH_FUNC\w*|PROMPT_COMMAND|S?RANDOM|OPTIND|HISTCMD|SECONDS|BASHPID)(?!\w)", re.ASCII
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_RESERVED = frozenset(["if", "then", "else", "elif", "fi", "do", "done", "while", "until", "!", "{", "}", "esac"])
_KEYWORDS = _RESERVED | {"case"}

_SHELLS = frozenset(
    """sh bash dash ash rbash ksh ksh93 mksh lksh oksh pdksh posh zsh fish yash osh csh tcsh pwsh""".split()  # noqa: SIM905
)
# Commands that come through a pipe, also by a name that is relative to /dev or /proc.
_INPUT_FILE = re.compile(r"(?:^|/)(?:(?:dev|proc)/|(?:stdin|[0-9]+)$)")
_READABLE_SHELLS = frozenset(["sh", "bash", "dash", "ash"])
# They read a text as code, start a command in a way of their own, make variables that are evaluated, or are known to
# one shell only.
_REFUSED = frozenset(
    """eval . source alias let bind complete compgen compopt fc enable hash jobs mapfile readarray declare typeset
    function coproc select [[ su runuser sg newgrp login gosu su-exec pkexec chroot unshare nsenter setarch setpriv
    prlimit taskset chrt flock script watch parallel at batch crontab tmux screen entr hyperfine busybox toybox
    fakeroot strace ltrace systemd-run unbuffer capsh""".split()  # noqa: SIM905 - a list would be a page long
)
_BUILTINS = frozenset(
    """. : [ [[ alias bg break builtin case cd command continue echo eval exec exit export false fg for function getopts
    hash jobs kill let local printf pwd read readonly return select set shift source test time times trap true type
    ulimit umask unalias unset wait""".split()  # noqa: SIM905
)
_NAMING = frozenset(["export", "readonly", "local", "read", "unset", "getopts", "wait"])
# Programs that start the command behind their options: how many operands come first, and which options certainly have
# no argument in the next word. Behind any other option two words are needed to be sure of the command, or `--`.
_LAUNCHERS = {
    "builtin": (0, ""),
    "command": (0, "-p"),
    "doas": (0, "-n"),
    "env": (0, "-|-[i0v]+"),
    "exec": (0, "-[cl]+"),
    "ionice": (0, "-t|-[cn][0-9]"),
    "nice": (0, "-n?-?[0-9]+"),
    "nohup": (0, ""),
    "setsid": (0, "-[cfw]+"),
    "stdbuf": (0, "-[ioe](?:L|[0-9]+)"),
    "sudo": (0, "-[nEHSkb]+"),
    "time": (0, "-[pv]"),
    "timeout": (1, "-v|--foreground|--preserve-status|-[ks][0-9A-Z]+"),
    "xargs": (0, "-[0rtxop]+|-[nPLsl][0-9]+|-d.+|-[0rtxop]*I.+|-i.*|--(?:null|no-run-if-empty|verbose|replace)"),
}
_REPLACED = re.compile(r"(?:(-[0rtxop]*[IJ])|-[0rtxop]*i|--r[a-z]*=?)(.*)", re.DOTALL)
_EXECS = frozenset(["-exec", "-execdir", "-ok", "-okdir"])
_SSH_WITH_ARGUMENT = re.compile(r"-[^BbcDEeFIiJLlmOopQRSWw]*[BbcDEeFIiJLlmOopQRSWw]")

# What validate warns of.
_NO_OPTIONS = frozenset(
    """echo printf test [ sleep exit return break continue shift : true false for case export readonly local set expr
    raw-text""".split()  # noqa: SIM905
)
_INTERPRETER = re.compile(r"(?:python|pypy|perl|ruby|node|deno|bun|php|lua|luajit|osascript|Rscript|tclsh)[0-9.]*")
_CODE_OPTIONS = (
    (re.compile(r"(?:python|pypy)[0-9.]*"), re.compile(r"-[A-Za-z]*c")),
    (_INTERPRETER, re.compile(r"-[A-Za-z0]*[eEpr]|--eval|--print|eval")),
    (re.compile(r"git"), re.compile(r"-c|--config-env|--exec|--upload-pack|--receive-pack")),
    (re.compile(r"ssh|scp|sftp"), re.compile(r"-[oFS]")),
    (re.compile(r"rsync"), re.compile(r"-[A-Za-z]*e|--rsh|--rsync-path")),
    (re.compile(r"g?tar"), re.compile(r"-[IF]|--(?:use-compress|to-com|checkpoint-ac|info-s|rsh)[a-z-]*")),
    (re.compile(r"n?vim?|ex"), re.compile(r"-c|--cmd|\+")),
    (re.compile(r"emacs|gdb"), re.compile(r"--?eval[a-z-]*|-ex")),
    (re.compile(r"psql|mysql|mariadb"), re.compile(r"-c|-e|--command|--execute")),
)
_FILTERS = re.compile(r"[gmn]?awk|g?sed|[jy]q")
_FILTER_OPTIONS = {"-v": 2, "-F": 2, "-f": 2, "-e": 2, "--arg": 3, "--argjson": 3, "--slurpfile": 3, "--rawfile": 3}
_ANY_ARGUMENT = frozenset(["make", "gmake", "sqlite3"])
_CODE_VARIABLE = re.compile(
    r"""(?: GIT_(?:SSH\w*|EXTERNAL_DIFF|SEQUENCE_EDITOR|ASKPASS|PROXY_COMMAND|CONFIG\w*|EXEC_PATH|DIR)
      | LD_\w+ | DYLD_\w+ | PATH | PYTHON(?:STARTUP|PATH|HOME) | PERL5(?:LIB|OPT|DB) | RUBY(?:OPT|LIB)
      | NODE_(?:OPTIONS|PATH) | RSYNC_RSH | LESSOPEN | \w+_ASKPASS | MAKEFLAGS
      | \w*(?:EDITOR|VISUAL|PAGER|BROWSER|SHELL|_COMMAND|_TOOL_OPTIONS) )\+?=""",
    re.VERBOSE | re.ASCII,
)

_ARITHMETIC = "bash evaluates text in arithmetic and in subscripts; calculate in the {{ }}"
_ESCAPED = "the character before {{ would change what stands for the value; leave it out or quote it"
_HEREDOC = "a text with a value must not have a heredoc; write printf '%s\\n' {{ … }} | …"
_BACKTICKS = "a text with a value must not have backticks; write $(…)"
_ONE_SHELL = "dash and bash read {} differently"
_STANDARD_INPUT = "{} would read commands from its input or its arguments"


class _Quotes(Enum):
    """Between which quotes a value stands."""

    BARE = "bare"
    SINGLE = "'"
    DOUBLE = '"'
    COMMENT = "#"


@dataclass(slots=True)
class _Place:
    """Where one value stands; `many`: a list may become several words there."""

    quotes: _Quotes
    many: bool = False


@dataclass(slots=True)
class _Analysis:
    """What is known of a text: the place of each value by its number; why it is refused, and at which value."""

    places: dict[int, _Place] = field(default_factory=dict)
    refused: str | None = None
    refused_at: int = 0
    warnings: dict[int, str] = field(default_factory=dict)
    programs: list[str] = field(default_factory=list)
    words: int = 0


class _UnsafeError(Exception):
    def __init__(self, why: str, word: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.number = next((ord(mark) - _FIRST_MARK for mark in _MARK.findall(word)), None)


def _analyse_parts(parts: Sequence[str | int]) -> _Analysis:
    """The places of the values in a text, which are numbers among its parts."""
    found = _Analysis()
    numbers = [part for part in parts if isinstance(part, int)]
    if not numbers:
        return found
    if len(numbers) > _VALUES:
        raise ShellError(f"a command can have {_VALUES} values at most")
    text = "".join(part if isinstance(part, str) else _mark_of(part) for part in parts)
    try:
        if _EXPANSION.search("".join(part for part in parts if isinstance(part, str))):
            raise _UnsafeError("a text with a value must not have characters of Unicode's private planes")
        _Scanner(text, found, is_fed="|" in text or "<" in text).read()
    except _UnsafeError as refusal:
        found.refused, found.refused_at = refusal.why, numbers[0] if refusal.number is None else refusal.number
    return found


def _doubts(words: Sequence[Sequence[str | int]]) -> dict[int, str]:
    """The values among the words of a command that another program may read as code, or take for an option."""
    found = _Analysis()
    texts = ["".join(part if isinstance(part, str) else _mark_of(part) for part in word) for word in words]
    if any(_EXPANSION.search(part) for word in words for part in word if isinstance(part, str)):
        return {}
    for each in _MARK.findall("".join(texts)):
        found.places[ord(each) - _FIRST_MARK] = _Place(_Quotes.BARE)
    try:
        _Scanner("", found, is_fed=False).check_command(texts)
    except _UnsafeError as refusal:
        if refusal.number is not None:
            found.warnings[refusal.number] = refusal.why
    return found.warnings


def _programs(parts: Sequence[str | int]) -> list[str]:
    """The programs that a text starts, as far as it can be read; the shell's own commands need none."""
    found = _Analysis()
    try:
        text = "".join(part if isinstance(part, str) else _mark_of(part) for part in parts)
        _Scanner(text, found, is_fed=False)._commands()
    except (_UnsafeError, ShellError):
        pass  # what was read before that
    return [name for name in dict.fromkeys(found.programs) if name not in _BUILTINS and not name[0].isdigit()]


def _mark_of(number: int) -> str:
    return chr(_FIRST_MARK + number)


class _Scanner:
    """Reads one text: its quotes, and its simple commands one after the other."""

    def __init__(self, text: str, found: _Analysis, *, is_fed: bool, depth: int = 0) -> None:
        self.text = text
        self.found = found
        self.is_fed = is_fed  # something may come through a pipe or a redirection
        self.depth = depth
        self.brackets = 0
        self.in_pattern = False  # of a `case`
        self.at = 0

    def read(self) -> None:
        if _SPLIT_WORD.search(self.text):
            raise _UnsafeError(
                "a text with a value must not continue a word on the next line; put a blank before the \\"
            )
        named = _EVALUATED.search(re.sub(r"['\"\\]", "", self.text))
        if named:
            raise _UnsafeError(f"the shell evaluates what is in {named[1]}")
        self._commands()

    def _commands(self, closer: str = "") -> None:
        self._deeper()
        words: list[str] = []
        is_redirected = False  # before the command's name, behind which no keyword is one
        while self.at < len(self.text):
            token = _TOKEN.match(self.text, self.at)
            if token is None:
                start, word = self.at, self._argument()
                is_keyword = word in _KEYWORDS and all(each in _RESERVED for each in words)
                if is_keyword and (is_redirected or self.text[start : self.at] != word):
                    raise _UnsafeError(f"a command cannot be called {word}, as a word of the shell's language is")
                words.append(word)
                continue
            self.at = token.end()
            if token["comment"]:
                self._mark(token[0], _Quotes.COMMENT)
            elif token["redirect"]:
                if words and re.match(rf"{_MANY}.*\}}$", words[-1]) and self.text[token.start() - 1] == "}":
                    raise _UnsafeError(_ONE_SHELL.format("{name} before a redirection"))
                self._redirection(token[0].lstrip("0123456789"))
                is_redirected = True
            elif not token["blank"]:
                self._operator(token, words)
                words, is_redirected = [], False
                if token[0] == ")" and closer:
                    self.depth -= 1
                    return
        if closer:
            raise _UnsafeError("a bracket is not closed")
        self._operator(None, words)
        self.depth -= 1

    def _operator(self, token: re.Match[str] | None, words: list[str]) -> None:
        """What ends a command, or begins one."""
        operator = token[0] if token else ""
        own = [word for word in words if word not in _RESERVED]
        if operator == "(":
            self._group(own)
        elif token and token["function"]:
            if len(own) != 1 or _EXPANSION.search(own[0]):
                raise _UnsafeError(_ONE_SHELL.format("this ()"), "".join(words))
        else:
            if "esac" in words:
                self.in_pattern = False
            if not self.in_pattern or operator not in ("|", ")"):
                self.check_command(words)
            if operator == ")" or "esac" in words:
                self.in_pattern = False
            elif own[:1] == ["case"] or ";;" in operator or ";&" in operator:
                self.in_pattern = True
            elif words and operator != "|":
                self.in_pattern = False

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > _DEPTH:
            raise ShellError("the command is nested too deeply to be read")

    def _group(self, before: list[str]) -> None:
        if self.text.startswith("(", self.at):
            raise _UnsafeError(_ARITHMETIC)
        if before:
            raise _UnsafeError(_ONE_SHELL.format("a ( after a word"))
        self._nested()
        self.in_pattern = False  # the bracket before a pattern: what follows is a command

    def _nested(self) -> None:
        outer, self.in_pattern = self.in_pattern, False
        self.brackets += 1
        self._commands(")")
        self.brackets -= 1
        self.in_pattern = outer

    def _redirection(self, operator: str) -> None:
        if operator == "<<":
            raise _UnsafeError(_HEREDOC)
        if operator.endswith("("):
            raise _UnsafeError(_ONE_SHELL.format(f"{operator}…)"))
        blank = _TOKEN.match(self.text, self.at)
        if blank and blank["blank"]:
            self.at = blank.end()
        word = self._word()
        if operator.endswith("&") and _EXPANSION.search(word):
            raise _UnsafeError(f"bash expands what follows {operator} a second time; write > {{{{ … }}}} 2>&1", word)

    # Words.

    def _argument(self) -> str:
        word = self._word()
        if len(word) == 1 and _MARK.match(word):
            place = self.found.places[ord(word) - _FIRST_MARK]
            place.many = place.quotes is _Quotes.BARE
        return word

    def _word(self) -> str:
        """The next word without its quotes."""
        if bracket := _NO_PATTERN.match(self.text, self.at):
            self.at = bracket.end()
            return bracket[0]
        word = ""
        while self.at < len(self.text) and self.text[self.at] not in _END_OF_WORD:
            character = self._next(_ORDINARY)
            if character == "'":
                word += self._single()
            elif character == '"':
                word += self._double()
            elif character == "\\":
                word += self._escaped()
            else:
                word += _PATTERN.sub(_MANY, self._plain(character, _Quotes.BARE))
        return word

    def _next(self, ordinary: re.Pattern[str]) -> str:
        """All the ordinary characters that stand here, or one that is not."""
        run = ordinary.match(self.text, self.at)
        start, self.at = self.at, run.end() if run else self.at + 1
        return self.text[start : self.at]

    def _plain(self, character: str, quotes: _Quotes) -> str:
        if character == "`":
            raise _UnsafeError(_BACKTICKS)
        if character == "$":
            return self._dollar(quotes)
        self._mark(character, quotes)
        return character

    def _single(self) -> str:
        end = self.text.find("'", self.at)
        if end < 0:
            raise _UnsafeError("a quote is not closed")
        inside = self.text[self.at : end]
        self.at = end + 1
        self._mark(inside, _Quotes.SINGLE)
        return inside

    def _double(self) -> str:
        inside = ""
        while self.at < len(self.text):
            character = self._next(_ORDINARY_IN_QUOTES)
            if character == '"':
                return inside
            if character == "\\":
                escaped = self._escaped()
                inside += escaped if escaped in ("", "$", "`", '"', "\\") else "\\" + escaped
            else:
                inside += self._plain(character, _Quotes.DOUBLE)
        raise _UnsafeError("a quote is not closed")

    def _escaped(self) -> str:
        character = self.text[self.at : self.at + 1]
        self.at += 1
        if _MARK.match(character):
            raise _UnsafeError(_ESCAPED, character)
        return "" if character == "\n" else character

    def _dollar(self, quotes: _Quotes) -> str:
        following = self.text[self.at : self.at + 1]
        if _MARK.match(following):
            raise _UnsafeError(_ESCAPED, following)
        if following == "[" or self.text.startswith("((", self.at):
            raise _UnsafeError(_ARITHMETIC)
        if following in ("'", '"') and following and quotes is _Quotes.BARE:
            raise _UnsafeError(_ONE_SHELL.format(f"${following}…{following}"))
        if following == "(":
            self.at += 1
            self._nested()
        elif parameter := _PARAMETER.match(self.text, self.at):
            self.at = parameter.end()
            if "@" in parameter[0]:
                return _MANY
        elif following == "{":
            raise _UnsafeError("a text with a value can have ${name} and ${name:-text}, but nothing else inside ${…}")
        else:
            return "$"
        return _MANY if quotes is _Quotes.BARE else _ONE

    def _mark(self, text: str, quotes: _Quotes) -> None:
        for each in _MARK.findall(text):
            self.found.places[ord(each) - _FIRST_MARK] = _Place(quotes)

    # Commands.

    def check_command(self, words: list[str], *, is_appended: bool = False) -> None:
        """Checks a simple command; `is_appended`: what xargs reads is put behind it."""
        self.found.words += len(words)
        if self.found.words > _WORDS:
            raise ShellError("the command is too complicated to be read")
        at = 0
        while at < len(words) and (words[at] in _RESERVED or _ASSIGNMENT.match(words[at])):
            at += 1
        self._warn_of_variables(words)
        words = words[at:]
        if not words:
            return
        if re.match(rf"[A-Za-z_]\w*{_MANY}.*\]\+?=", words[0]):
            raise _UnsafeError(_ARITHMETIC, "".join(words))
        if _EXPANSION.search(words[0]):
            raise _UnsafeError("an expansion would choose the command; write the command's name here", "".join(words))
        self.found.programs.append(words[0])
        name = _program(words[0])
        if name in _REFUSED or "eval" in words:
            name = name if name in _REFUSED else "eval"
            raise _UnsafeError(f"a text with a value must not have {name}, which can make code of it", "".join(words))
        if name in ("for", "case"):
            self._compound(name, words)
        elif name in _SHELLS:
            self._shell(words)
        elif name in _LAUNCHERS and words[:2] not in (["command", "-v"], ["command", "-V"]):
            self._deeper()
            self._launcher(name, words, is_appended)
            self.depth -= 1
        else:
            self._simple(name, words, is_appended)

    def _compound(self, name: str, words: list[str]) -> None:
        if name == "case" and self.brackets:
            raise _UnsafeError("a text with a value must not have case inside ( )")
        if name == "for" and words[2:3] != ["in"]:
            self.check_command(words[2:])

    def _simple(self, name: str, words: list[str], is_appended: bool) -> None:
        if name in ("test", "["):
            self._test(words)
        elif name == "printf" and re.match(f"-v|-?{_EXPANSION.pattern}", "".join(words[1:2])):
            raise _UnsafeError("bash's printf can take the value for -v; write printf '%s' {{ … }}", "".join(words))
        elif name in _NAMING:
            _refuse_names(name, words)
        elif name == "trap":
            self._script(name, words[1:])
        elif name in ("find", "ssh"):
            if is_appended:
                raise _UnsafeError(_STANDARD_INPUT.format(name))
            (self._find if name == "find" else self._ssh)(words)
        self._warn(name, words)
        for at in range(1, 0 if name in _NO_OPTIONS else len(words)):
            if _program(words[at]) in _SHELLS:  # whatever starts it: `docker exec box sh -c …`
                self._shell(words[at:])
                break

    def _test(self, words: list[str]) -> None:
        self._apart(words)
        for before, word in pairwise(words):
            if before in ("-v", "-R") and not word.isidentifier():
                raise _UnsafeError(f"bash evaluates what follows {before}", word)

    def _shell(self, words: list[str]) -> None:
        """`sh FILE …` and `sh -c SCRIPT …`, where neither FILE nor SCRIPT nor what is before has an expansion."""
        name = _program(words[0])
        at, has_script = 1, False
        while at < len(words) and re.match("[-+].", words[at]) and words[at] != "--":
            option = words[at]
            at += 1
            if option.startswith("--"):
                at += option in ("--rcfile", "--init-file")
            else:
                has_script = has_script or "c" in option
                at += option.count("o") + option.count("O")
                if "s" in option:
                    raise _UnsafeError(_STANDARD_INPUT.format(name))
        at += words[at : at + 1] in (["-"], ["--"])
        if _EXPANSION.search("".join(words[: at + 1])):
            example = f"""{name} -c '… "$1"' {name} {{{{ … }}}}"""
            raise _UnsafeError(
                f"{name} would read an expansion as its script or its options; write {example}", "".join(words)
            )
        if at >= len(words) or _INPUT_FILE.search(words[at]):
            raise _UnsafeError(_STANDARD_INPUT.format(name))
        if has_script and name not in _READABLE_SHELLS:
            raise _UnsafeError(f"the script of {name} cannot be checked")
        if has_script:
            self._script(name, words[at : at + 1])

    def _script(self, name: str, words: list[str]) -> None:
        """A script that a command is given as an argument: the values may be in its environment and its arguments."""
        for word in words:
            if _EXPANSION.search(word):
                raise _UnsafeError(f"{name} reads an expansion as code", word)
            _Scanner(word, self.found, is_fed=True, depth=self.depth).read()

    def _launcher(self, name: str, words: list[str], is_appended: bool) -> None:
        if name == "xargs":
            words, is_appended = _with_replaced(words, is_appended), True
        operands, flags = _LAUNCHERS[name]
        is_sure, options_end = True, False
        for at in range(1, len(words)):
            word = words[at]
            if _ASSIGNMENT.match(word) and _MANY not in word:
                continue
            if _EXPANSION.search(word):
                raise _UnsafeError(f"{name} could take an expansion for the command that it is to start", word)
            if word == "--" and not options_end:
                is_sure = options_end = True
            elif word.startswith("-") and not options_end:
                _refuse_shell_option(name, word)
                is_sure = bool(re.fullmatch(rf"{flags}|--[a-z-]+=.*", word, re.DOTALL))
            elif is_sure and operands:
                operands -= 1
            else:
                self.check_command(words[at:], is_appended=is_appended)
                if is_sure:
                    return
                is_sure = True  # it may be the option's argument: the next one is the command then
        if is_appended and name != "xargs":
            raise _UnsafeError(_STANDARD_INPUT.format(name))

    def _find(self, words: list[str]) -> None:
        self._apart(words)
        for at, word in enumerate(words):
            if word in _EXECS:
                self.check_command([each.replace("{}", _MANY) for each in words[at + 1 :]])

    def _ssh(self, words: list[str]) -> None:
        host = _behind_options(words, 1)
        self._one_each(words[: host + 1])
        rest = words[host + 1 :]
        if _EXPANSION.search("".join(rest)):
            raise _UnsafeError("the shell at the other end would read the value as code", "".join(rest))
        command = rest[_behind_options(rest, 0) :]
        if not command and self.is_fed:
            raise _UnsafeError(_STANDARD_INPUT.format("ssh"))
        self._script("ssh", [" ".join(command)])

    def _apart(self, words: list[str]) -> None:
        """An expansion may be an operator such as -v or -exec, so that what follows it has to be the author's word."""
        self._one_each(words)
        for before, word in pairwise(words):
            if _EXPANSION.search(before) and _EXPANSION.search(word):
                raise _UnsafeError(f"{words[0]} could take a value for an operator and the next for its operand", word)

    def _one_each(self, words: list[str]) -> None:
        for word in words:
            if _MANY in word:
                raise _UnsafeError(
                    f"an expansion among the words of {words[0]} has to stand in double quotes", "".join(words)
                )
            for each in _MARK.findall(word):
                self.found.places[ord(each) - _FIRST_MARK].many = False

    # Warnings.

    def _warn_of_variables(self, words: list[str]) -> None:
        for word in words:
            if _CODE_VARIABLE.match(word):
                self._note(word, f"other programs run what is in {word.partition('=')[0].rstrip('+')}")

    def _warn(self, name: str, words: list[str]) -> None:
        self._warn_of_scripts(words)
        if name in _NO_OPTIONS:
            return
        if _FILTERS.fullmatch(name):
            words = words[_script_of_filter(words) :]
        for before, word in pairwise(words):
            if word in ("--", "--end-of-options"):
                return
            is_argument = before is not words[0] and re.fullmatch("-[^=]+", before)
            if _MARK.match(word) and not is_argument:
                self._note(word[0], f"{name} can take the value for an option; put -- before it")

    def _warn_of_scripts(self, words: list[str]) -> None:
        """Values in the script of an interpreter, also behind a launcher that we do not know."""
        for at, word in enumerate(words):
            name = _program(word)
            options = [option for program, option in _CODE_OPTIONS if program.fullmatch(name)]
            rest = words[at:] if options or name in _ANY_ARGUMENT or _FILTERS.fullmatch(name) else []
            if name in _ANY_ARGUMENT:
                return self._note("".join(rest), f"{name} may read the value as code")
            if _FILTERS.fullmatch(name):
                scripts = [each for before, each in pairwise(rest) if before in ("-e", "--expression")]
                script = "".join(scripts or rest[_script_of_filter(rest) :][:1])
                return self._note(script, f"{name} reads the value as code; pass it in a variable")
            for before, each in pairwise(rest):
                if any(option.fullmatch(before) or option.match(each) for option in options):
                    self._note(each, f"{name} reads the value as code; pass it as an argument behind the code")
            is_without_file = all(each.startswith("-") for each in rest[1:])
            if _INTERPRETER.fullmatch(name) and is_without_file and self.is_fed and self.found.places:
                self._note(_mark_of(min(self.found.places)), f"{name} reads its input as code")
            if options:
                return None
        return None

    def _note(self, word: str, message: str) -> None:
        for each in _MARK.findall(word):
            self.found.warnings.setdefault(ord(each) - _FIRST_MARK, message)


def _program(word: str) -> str:
    return word.rpartition("/")[2]


def _refuse_names(name: str, words: list[str]) -> None:
    """A name that is expanded can have a subscript, and the attributes of a variable can have it evaluated."""
    for word in words[1:]:
        names = word.partition("=")[0]
        if _EXPANSION.search(names) or "[" in names or re.match(r"-\w*[aAin]", word):
            raise _UnsafeError(f"{name} may evaluate the value; write a name here", "".join(words))


def _refuse_shell_option(name: str, option: str) -> None:
    """`env -S` splits a text into a command; `sudo -s` and `sudo -i` read commands from their input."""
    if name == "env" and re.match(r"-[a-zA-Z0]*S|--split-string", option):
        raise _UnsafeError("env -S makes a command of its argument")
    if name in ("sudo", "doas") and re.match(r"-[a-zA-Z]*[si]|--shell|--login", option):
        raise _UnsafeError(_STANDARD_INPUT.format(f"{name} {option}"))


def _behind_options(words: list[str], at: int) -> int:
    """Where the options of ssh end: it takes them before the host, and behind it."""
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            return at + 1
        at += 2 if _SSH_WITH_ARGUMENT.fullmatch(words[at]) else 1
    return at


def _with_replaced(words: list[str], is_appended: bool) -> list[str]:
    """The words of xargs with an expansion wherever `-I` puts one."""
    if is_appended:
        raise _UnsafeError(_STANDARD_INPUT.format("xargs"))
    found = [(at, option) for at, word in enumerate(words) if (option := _REPLACED.fullmatch(word))]
    if len(found) > 3:
        raise _UnsafeError("xargs has too many options that replace words")
    for at, option in found:
        is_separate = option[1] is not None and not option[2]
        text = "".join(words[at + 1 : at + 2]) if is_separate else option[2]
        rest = [each.replace(text or "{}", _MANY) for each in words[at + 1 :]]
        words = [*words[: at + 1], *(["x", *rest[1:]] if is_separate else rest)]
    return words


def _script_of_filter(words: list[str]) -> int:
    """Where the script of awk, sed or jq stands."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += _FILTER_OPTIONS.get(words[at], 1)
    return at
