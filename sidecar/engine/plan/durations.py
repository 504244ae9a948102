"""How long something takes, as far as its definition says: waits are counted, timeouts are the most."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNITS_S = (("d", 86400), ("h", 3600), ("m", 60))


@dataclass(frozen=True, slots=True)
class Lasts:
    """Bounds in seconds. Without `most_s` nothing limits it; `uncounted` is whose time nobody can tell."""

    least_s: float = 0.0
    most_s: float | None = 0.0
    uncounted: frozenset[str] = frozenset()

    def then(self, following: Lasts, *, for_sure: bool) -> Lasts:
        """Both, one after the other; `for_sure`: nothing leaves in between."""
        least_s = self.least_s + following.least_s if for_sure else self.least_s
        most_s = None if self.most_s is None or following.most_s is None else self.most_s + following.most_s
        return Lasts(least_s, most_s, self.uncounted | following.uncounted)

    def times(self, least: int, most: int | None) -> Lasts:
        """Again and again."""
        if most == 0 or (self.most_s == 0 and not self.uncounted):
            return Lasts()
        unlimited = most is None or self.most_s is None
        return replace(self, least_s=self.least_s * least, most_s=None if unlimited else self.most_s * most)  # type: ignore[operator]

    def text(self) -> str:
        """For people."""
        words = sorted(self.uncounted)
        others = " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
        if self.most_s is not None and self.most_s == self.least_s:
            return f"about {shown(self.least_s)}" if self.most_s else "at once"
        if self.most_s is not None:
            return f"at least {shown(self.least_s)}, at most {shown(self.most_s)} by its timeouts"
        return f"at least {shown(self.least_s)}" + (f"; {others} not counted" if others else "")


def either(ways: Iterable[Lasts]) -> Lasts:
    """One of several, nobody knows which."""
    each = list(ways)
    most = [way.most_s for way in each]
    most_s = None if None in most else max(one for one in most if one is not None)
    return Lasts(min(way.least_s for way in each), most_s, frozenset().union(*(way.uncounted for way in each)))


def shown(seconds_s: float) -> str:
    """A duration as the language has it: 500ms, 2s, 1h30m."""
    if seconds_s < 1:
        return f"{round(seconds_s * 1000)}ms" if seconds_s else "0s"
    text, left_s = "", seconds_s
    for unit, length_s in _UNITS_S:
        count, left_s = divmod(left_s, length_s)
        text += f"{int(count)}{unit}" if count else ""
    return text + (f"{left_s:.3g}s" if left_s or not text else "")
