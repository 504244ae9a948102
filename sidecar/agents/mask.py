"""Secrets never leave a stream in the clear, not even when they arrive in two pieces."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MASK = b"********"


class Secrets:
    """What must not be seen, in every spelling in which a stream may carry it."""

    def __init__(self, secrets: Iterable[str]) -> None:
        spellings: set[bytes] = set()
        for secret in secrets:
            if secret:
                # Agents print JSON: there a quote, a line break or an umlaut is spelled differently.
                spellings.add(secret.encode("utf-8", "surrogateescape"))
                spellings.add(json.dumps(secret)[1:-1].encode())
                spellings.add(json.dumps(secret, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape"))
        # The longest first: of two secrets that begin alike, the shorter must not leave the longer's end behind.
        self._spellings = sorted(spellings, key=len, reverse=True)
        self._longest = len(self._spellings[0]) if spellings else 0
        self._pattern = re.compile(b"|".join(map(re.escape, self._spellings))) if spellings else None

    def __bool__(self) -> bool:
        return self._pattern is not None

    def masked(self, data: bytes) -> bytes:
        """The data with every secret in it masked."""
        return data if self._pattern is None else self._pattern.sub(MASK, data)

    def masked_text(self, text: str) -> str:
        """The text with every secret in it masked."""
        if self._pattern is None:
            return text
        return self.masked(text.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")

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
