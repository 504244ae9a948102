"""Values as JSON for other programs: what JSON has no word for, NaN and the infinities, is null, as in JavaScript."""

from __future__ import annotations

import json
import math
from typing import Any


def text(value: Any, *, indent: int | None = None) -> str:
    """As every reader of JSON takes it."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
