"""Amounts in the words that people read at a glance: durations, costs, tokens."""

from __future__ import annotations


def duration(seconds_s: float) -> str:
    """`28s`, `5m 42s`, `1h 05m`, `2d 3h`: never more than two units."""
    whole = max(0, int(seconds_s))
    if whole < 60:
        return f"{whole}s"
    minutes, seconds = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m {seconds:02}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h {minutes:02}m"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h"


def estimate(seconds_s: float) -> str:
    """A duration that nobody knows exactly."""
    return f"~{duration(seconds_s)}"


def cost(usd: float) -> str:
    """Dollars; more digits where there are few dollars."""
    return f"${usd:,.2f}" if usd >= 10 else f"${usd:.4f}"


def tokens(count: int) -> str:
    """`950`, `12.3k`, `4.56M`."""
    if count < 1_000:
        return str(count)
    # What would be rounded up to 1000k is a million.
    return f"{count / 1e3:.1f}k" if count < 999_950 else f"{count / 1e6:.2f}M"


def share(done: int, of: int) -> str:
    """`12 / 50 (24%)`. Never 100 before the end."""
    return f"{done} / {of} ({int(100 * done / of) if of else 100}%)"
