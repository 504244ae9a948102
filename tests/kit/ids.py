"""ULIDs, the ids of runs and signals, by their definition."""

from __future__ import annotations

import os
import re
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new_id() -> str:
    """48 bits of milliseconds, 80 random bits, in Crockford's base 32."""
    value = time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


def is_id(text: str) -> bool:
    """Whether the text is a ULID."""
    return re.fullmatch(f"[0-7][{_ALPHABET}]{{25}}", text) is not None
