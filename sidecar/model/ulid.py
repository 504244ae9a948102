"""ULIDs: 128-bit ids that sort by the time they were made. Run ids and signal ids are these."""

import os
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32: no I, L, O, U
_LENGTH = 26
_ALLOWED = frozenset(_ALPHABET)


def new() -> str:
    """A fresh ULID: 48 bits of milliseconds, 80 random bits."""
    value = time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join([_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5)])


def is_valid(text: str) -> bool:
    """Whether the text is a ULID as `new` writes it."""
    return len(text) == _LENGTH and text[0] <= "7" and _ALLOWED.issuperset(text)
