"""The words of the shell command that is being read, and what the shell's reserved words make of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from sidecar.state.shell_words import Cell, Word

_RESERVED = frozenset(
    ["if", "then", "else", "elif", "fi", "do", "done", "while", "until", "!", "{", "}", "esac", "time"]
)


@dataclass(slots=True)
class Frame:
    """One list of commands, from a bracket to its end."""

    words: list[Word] = field(default_factory=list)
    word: Word | None = None
    redirect: str = ""  # the operator before the next word, which is then a file and not a word of the command
    fed: list[Cell] = field(default_factory=list)  # what a `<<<`, or the command before a `|`, gives this one to read
    printed: list[Cell] = field(default_factory=list)  # what the command before this place gives to the next
    cases: list[str] = field(default_factory=list)  # of each open `case`: "pattern" or "body"

    @property
    def in_test(self) -> bool:
        return bool(self.words) and self.words[0].plain and self.words[0].text == "[["

    @property
    def in_pattern(self) -> bool:
        return bool(self.cases) and self.cases[-1] == "pattern"

    def current(self) -> Word:
        """The word that is being read; a new one if none is."""
        if self.word is None:
            self.word = Word()
        return self.word

    def end_word(self) -> bool:
        """Puts the word where it belongs; true if it ends a command without an operator, as `]]` does."""
        word, self.word = self.word, None
        if word is None:
            return False
        if self.redirect:
            self.redirect = ""
        elif self.in_pattern:
            if word.plain and word.text == "esac":
                self.cases.pop()
        elif self.in_test and word.text == "]]":
            return True
        elif not self.words and word.plain and word.text in _RESERVED:
            if word.text == "esac" and self.cases:
                self.cases.pop()
        else:
            self.words.append(word)
            self._open()
        return False

    def _open(self) -> None:
        """`case … in` opens patterns, `function f {` a list of commands: they are no words of a command."""
        words = self.words
        if len(words) == 3 and words[0].plain and (words[0].text, words[2].text) in (("case", "in"), ("function", "{")):
            if words[0].text == "case":
                self.cases.append("pattern")
            words.clear()
