"""Where the values of a shell command stand, and whether the shell could come to read one as code.

A value is never pasted into the text: a quoted reference to a variable stands for it, and what a variable expands to is
data to the shell, but for a few places. Nobody can follow a value through all that a script does with it. So a text
that has a value is refused where *any* expansion, the value itself or a variable of the author, stands where code
does: the command's name, the script of `sh -c`, arithmetic, a subscript. It is refused too where it uses what reads
text as code (`eval`, `.`, a heredoc), or what dash and bash read differently: `sh` may be either.
Not followed is what a command writes into a file that its author then executes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING

from sidecar.errors import ShellError

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEPTH = 40
_VALUES = 10_000
_WORDS = 200_000  # which a reader looks at, some of them more than once
# A text to analyse has one character for each value. In a word whose quotes are taken off, two more stand for the
# author's own expansions: in double quotes they are one word, unquoted any number of words.
_FIRST_HOLE = 0xF0000
_ONE, _MANY = "\U0010fff0", "\U0010fff1"
_HOLE = re.compile("[\U000f0000-\U000fffff]")
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


class Context(Enum):
    """Between which quotes a value stands."""

    BARE = "bare"
    SINGLE = "'"
    DOUBLE = '"'
    COMMENT = "#"


@dataclass(slots=True)
class Place:
    """Where one value stands; `many`: a list may become several words there."""

    context: Context
    many: bool = False


@dataclass(slots=True)
class Analysis:
    """What is known of a text: the place of each value by its number; why it is refused, and at which value."""

    places: dict[int, Place] = field(default_factory=dict)
    refused: str | None = None
    refused_at: int = 0
    warnings: dict[int, str] = field(default_factory=dict)
    words: int = 0


class _UnsafeError(Exception):
    def __init__(self, why: str, word: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.hole = next((ord(hole) - _FIRST_HOLE for hole in _HOLE.findall(word)), None)


def analyse(parts: Sequence[str | int]) -> Analysis:
    """The places of the values in a text, which are numbers among its parts."""
    found = Analysis()
    numbers = [part for part in parts if isinstance(part, int)]
    if not numbers:
        return found
    if len(numbers) > _VALUES:
        raise ShellError(f"a command can have {_VALUES} values at most")
    text = "".join(part if isinstance(part, str) else _hole(part) for part in parts)
    try:
        if _EXPANSION.search("".join(part for part in parts if isinstance(part, str))):
            raise _UnsafeError("a text with a value must not have characters of Unicode's private planes")
        _Reader(text, found, is_fed="|" in text or "<" in text).read()
    except _UnsafeError as refusal:
        found.refused, found.refused_at = refusal.why, numbers[0] if refusal.hole is None else refusal.hole
    return found


def doubts(words: Sequence[Sequence[str | int]]) -> dict[int, str]:
    """The values among the words of a command that another program may read as code, or take for an option."""
    found = Analysis()
    texts = ["".join(part if isinstance(part, str) else _hole(part) for part in word) for word in words]
    if any(_EXPANSION.search(part) for word in words for part in word if isinstance(part, str)):
        return {}
    for each in _HOLE.findall("".join(texts)):
        found.places[ord(each) - _FIRST_HOLE] = Place(Context.BARE)
    try:
        _Reader("", found, is_fed=False).judge(texts)
    except _UnsafeError as refusal:
        if refusal.hole is not None:
            found.warnings[refusal.hole] = refusal.why
    return found.warnings


def _hole(number: int) -> str:
    return chr(_FIRST_HOLE + number)


class _Reader:
    """Reads one text: its quotes, and its simple commands one after the other."""

    def __init__(self, text: str, found: Analysis, *, is_fed: bool, depth: int = 0) -> None:
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
                self._mark(token[0], Context.COMMENT)
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
                self.judge(words)
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
        if len(word) == 1 and _HOLE.match(word):
            place = self.found.places[ord(word) - _FIRST_HOLE]
            place.many = place.context is Context.BARE
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
                word += _PATTERN.sub(_MANY, self._plain(character, Context.BARE))
        return word

    def _next(self, ordinary: re.Pattern[str]) -> str:
        """All the ordinary characters that stand here, or one that is not."""
        run = ordinary.match(self.text, self.at)
        start, self.at = self.at, run.end() if run else self.at + 1
        return self.text[start : self.at]

    def _plain(self, character: str, context: Context) -> str:
        if character == "`":
            raise _UnsafeError(_BACKTICKS)
        if character == "$":
            return self._dollar(context)
        self._mark(character, context)
        return character

    def _single(self) -> str:
        end = self.text.find("'", self.at)
        if end < 0:
            raise _UnsafeError("a quote is not closed")
        inside = self.text[self.at : end]
        self.at = end + 1
        self._mark(inside, Context.SINGLE)
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
                inside += self._plain(character, Context.DOUBLE)
        raise _UnsafeError("a quote is not closed")

    def _escaped(self) -> str:
        character = self.text[self.at : self.at + 1]
        self.at += 1
        if _HOLE.match(character):
            raise _UnsafeError(_ESCAPED, character)
        return "" if character == "\n" else character

    def _dollar(self, context: Context) -> str:
        following = self.text[self.at : self.at + 1]
        if _HOLE.match(following):
            raise _UnsafeError(_ESCAPED, following)
        if following == "[" or self.text.startswith("((", self.at):
            raise _UnsafeError(_ARITHMETIC)
        if following in ("'", '"') and following and context is Context.BARE:
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
        return _MANY if context is Context.BARE else _ONE

    def _mark(self, text: str, context: Context) -> None:
        for each in _HOLE.findall(text):
            self.found.places[ord(each) - _FIRST_HOLE] = Place(context)

    # Commands.

    def judge(self, words: list[str], *, is_appended: bool = False) -> None:
        """Judges a simple command; `is_appended`: what xargs reads is put behind it."""
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
            self.judge(words[2:])

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
            _Reader(word, self.found, is_fed=True, depth=self.depth).read()

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
                self.judge(words[at:], is_appended=is_appended)
                if is_sure:
                    return
                is_sure = True  # it may be the option's argument: the next one is the command then
        if is_appended and name != "xargs":
            raise _UnsafeError(_STANDARD_INPUT.format(name))

    def _find(self, words: list[str]) -> None:
        self._apart(words)
        for at, word in enumerate(words):
            if word in _EXECS:
                self.judge([each.replace("{}", _MANY) for each in words[at + 1 :]])

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
            for each in _HOLE.findall(word):
                self.found.places[ord(each) - _FIRST_HOLE].many = False

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
            if _HOLE.match(word) and not is_argument:
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
                self._note(_hole(min(self.found.places)), f"{name} reads its input as code")
            if options:
                return None
        return None

    def _note(self, word: str, message: str) -> None:
        for each in _HOLE.findall(word):
            self.found.warnings.setdefault(ord(each) - _FIRST_HOLE, message)


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
