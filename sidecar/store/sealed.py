"""Values as they stand in a row: JSON text, and a seal over the row that tells when a damaged page changed it.

SQLite notices a page whose structure is broken; a changed digit in a value it would hand out as it is.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from sidecar.errors import StoreError

_encode = json.JSONEncoder(separators=(",", ":")).encode  # one for all: `json.dumps` would make one for each value


def dump(value: object) -> str:
    """JSON. In ASCII, since a string out of JavaScript can hold half a surrogate pair, which is no UTF-8."""
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"the journal keeps JSON only: {error}", kind="value") from None


def plain(value: Any) -> Any:
    """The value as it will be read back, so that writing it once more gives the same text and the same seal."""
    return json.loads(dump(value))


def load(text: str) -> Any:
    """What `dump` wrote."""
    return json.loads(text)


def seal(*columns: object) -> int:
    """A checksum over a row's columns, whose types count too."""
    return zlib.crc32(repr(columns).encode("utf-8", "surrogatepass"))
