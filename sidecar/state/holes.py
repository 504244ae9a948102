"""Where the `{{ expressions }}` of a text begin and end, and which filters stand at their end.

An expression is JavaScript, so its end is found by reading JavaScript: a `}}` inside a string, a template literal,
a regular expression or nested braces does not end it, and a `|` there is no filter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sidecar.errors import TemplateError

FILTERS = frozenset({"path_to_key", "json", "quote", "raw"})

_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n\r\u2028\u2029]*|/\*[\s\S]*?\*/)
      | (?P<string>"(?:[^"\\\n]|\\[\s\S])*"|'(?:[^'\\\n]|\\[\s\S])*')
      | (?P<word>[\w$\#]+)
      | (?P<mark>\|\|=?|\|=|\+\+|--|[\s\S])""",
    re.VERBOSE,
)
_REGEX = re.compile(r"/(?![*/])(?:[^/\\\[\n]|\\[^\n]|\[(?:[^\]\\\n]|\\[^\n])*\])+/[\w$]*")
_TEMPLATE_TEXT = re.compile(r"(?:[^`\\$]|\\[\s\S]|\$(?!\{))*")
_CLOSERS = {"}": ("{", "${"), ")": ("(",), "]": ("[",)}
# After one of these words a slash begins a regular expression; after any other word it divides.
_BEFORE_REGEX = frozenset(
    ["return", "typeof", "case", "in", "of", "delete", "void", "throw", "new", "instanceof", "else", "do", "await"]
)
_AFTER_VALUE = frozenset({")", "]", "}", "`", "++", "--"})


@dataclass(frozen=True, slots=True)
class Hole:
    """One `{{ expression | filter }}` of a text; `offset` to `end` is all of it, braces included."""

    offset: int
    end: int
    source: str
    source_offset: int
    filters: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The expression for a message: one line, and not a long one."""
        line = " ".join(self.source.split())
        return f"{{{{ {line if len(line) <= 60 else line[:57] + '…'} }}}}"


def split(text: str) -> tuple[str | Hole, ...]:
    """The text as an alternation of plain pieces and holes; a text without `{{` is one plain piece."""
    parts: list[str | Hole] = []
    done = 0
    while (start := text.find("{{", done)) >= 0:
        if start > done:
            parts.append(text[done:start])
        hole = _Expression(text, start).read()
        parts.append(hole)
        done = hole.end
    if done < len(text) or not parts:
        parts.append(text[done:])
    return tuple(parts)


class _Expression:
    """Reads one expression token by token; nesting is kept on a list, so that depth costs no Python stack."""

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.start = start
        self.at = start + 2
        self.open: list[tuple[str, int]] = []
        self.tokens: list[tuple[str, int]] = []

    def read(self) -> Hole:
        while self.at < len(self.text):
            if self.open and self.open[-1][0] == "`":
                self._template_text()
            elif self.text.startswith("}}", self.at) and not self.open:
                return self._hole()
            else:
                self._token()
        if self.open:
            what, where = self.open[-1]
            raise TemplateError(f"the {what} is not closed before the text ends", where)
        raise TemplateError("{{ has no }}; to write the braces themselves, write {{ '{{' }}", self.start)

    def _token(self) -> None:
        slash = self.text[self.at] == "/"
        match = (_REGEX.match(self.text, self.at) if slash and self._regex_may_begin() else None) or _TOKEN.match(
            self.text, self.at
        )
        assert match is not None  # the last alternative takes any character
        token, start = match.group(), self.at
        self.at = match.end()
        if match.lastgroup == "blank":
            return
        if token in ("'", '"'):
            raise TemplateError("the string that begins here does not end on its line", start)
        if token in ("{", "(", "[", "`"):
            self.open.append((token, start))
        elif token in _CLOSERS:
            self._close(token, start)
        self.tokens.append((token, start))

    def _close(self, token: str, start: int) -> None:
        if not self.open:
            raise TemplateError(f"the {token} closes nothing", start)
        opener, where = self.open.pop()
        if opener not in _CLOSERS[token]:
            raise TemplateError(f"the {opener} is not closed before this {token}", where)

    def _template_text(self) -> None:
        match = _TEMPLATE_TEXT.match(self.text, self.at)
        assert match is not None
        end = match.end()
        if self.text.startswith("${", end):
            self.open.append(("${", end))
            self.tokens.append(("${", end))
            self.at = end + 2
        elif self.text.startswith("`", end):
            self.open.pop()
            self.tokens.append(("`", end))
            self.at = end + 1
        else:
            self.at = len(self.text)

    def _regex_may_begin(self) -> bool:
        if not self.tokens:
            return True
        last = self.tokens[-1][0]
        if re.match(r"[\w$#]", last):
            is_member = len(self.tokens) > 1 and self.tokens[-2][0] == "."
            return last in _BEFORE_REGEX and not is_member
        return last == "/" or (last not in _AFTER_VALUE and last[0] not in "'\"/")

    def _hole(self) -> Hole:
        stop, tokens, filters = self.at, self.tokens, []
        while len(tokens) >= 2 and tokens[-1][0] in FILTERS and tokens[-2][0] == "|":
            filters.append(tokens.pop()[0])
            stop = tokens.pop()[1]
        if not tokens:
            raise TemplateError("there is no expression between {{ and }}", self.start)
        inner = self.text[self.start + 2 : stop]
        source = inner.strip()
        lead = len(inner) - len(inner.lstrip())
        return Hole(self.start, self.at + 2, source, self.start + 2 + lead, tuple(reversed(filters)))
