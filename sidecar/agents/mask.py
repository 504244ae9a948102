"""Secrets never leave a stream or an event in the clear, not even when they arrive in two pieces."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MASK = b"********"
# What names a part of the run: it comes from the definition or from us, and others find things by it.
_NAMES = frozenset({"step", "id", "thread", "task", "type", "kind", "field", "path", "handler", "status", "workflow"})


class Secrets:
    """What must not be seen, in every spelling in which a stream may carry it."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._known: set[str] = set()
        self._set(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """There are more of them."""
        if not self._known.issuperset(more := set(secrets)):
            self._set(more)

    def _set(self, secrets: Iterable[str]) -> None:
        self._known.update(secrets)
        texts: set[str] = set()
        for secret in filter(None, self._known):
            # Agents print JSON: there a quote, a line break or an umlaut is spelled differently.
            texts |= {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
        # The longest first: of two secrets that begin alike, the shorter must not leave the longer's end behind.
        self._spellings = sorted({text.encode("utf-8", "surrogateescape") for text in texts}, key=len, reverse=True)
        self._longest = len(self._spellings[0]) if texts else 0
        self._pattern = re.compile(b"|".join(map(re.escape, self._spellings))) if texts else None
        in_order = sorted(texts, key=len, reverse=True)
        self._text_pattern = re.compile("|".join(map(re.escape, in_order))) if texts else None
        self._in_json = tuple({json.dumps(text)[1:-1] for text in texts})

    def __bool__(self) -> bool:
        return self._pattern is not None

    def masked(self, data: bytes) -> bytes:
        """The data with every secret in it masked."""
        return data if self._pattern is None else self._pattern.sub(MASK, data)

    def masked_text(self, text: str) -> str:
        """The text with every secret in it masked."""
        return text if self._text_pattern is None else self._text_pattern.sub(MASK.decode(), text)

    def are_in(self, text: str) -> bool:
        """Whether one of them is in a JSON text of ASCII characters. Asked of every event: searching costs less than a
        look at each of its values."""
        return any(secret in text for secret in self._in_json)

    def masked_event(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """What an event tells, with every secret in it masked; the names in it stay."""
        return {
            name: value
            if name in _NAMES
            else self.masked_event(value)
            if name == "waits" and isinstance(value, dict)  # a question or a gate, as its own event has it
            else self.masked_value(value)
            for name, value in data.items()
        }

    def masked_value(self, value: Any) -> Any:
        """A JSON value with every secret in its texts masked."""
        if isinstance(value, str):
            return self.masked_text(value)
        if isinstance(value, dict):
            return {self.masked_text(name): self.masked_value(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.masked_value(inner) for inner in value]
        return value

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """What can be said now, masked, and the end that may be the beginning of a secret."""
        if self._pattern is None:
            return data, b""
        said: list[bytes] = []
        at = 0
        held = self._held_from(data, 0)
        for match in self._pattern.finditer(data):
            if match.start() >= held:
                break
            said += (data[at : match.start()], MASK)
            at = match.end()
            if at > held:  # what looked like a beginning was the end of this one
                held = self._held_from(data, at)
        said.append(data[at:held])
        return b"".join(said), data[held:]

    def _held_from(self, data: bytes, start: int) -> int:
        """Where the longest end that begins a secret (and is not all of it) starts; the data's length if none does."""
        for at in range(max(start, len(data) - self._longest + 1), len(data)):
            if any(len(data) - at < len(secret) and secret.startswith(data[at:]) for secret in self._spellings):
                return at
        return len(data)


class Masker:
    """One stream's masking, from chunk to chunk."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What of it can be shown now."""
        if not self._secrets:
            return data
        shown, self._held = self._secrets.split(self._held + data)
        return shown

    def rest(self) -> bytes:
        """What was held back, once nothing follows any more."""
        held, self._held = self._held, b""
        return self._secrets.masked(held)
