"""The panel as rows of text for a screen of any size: what matters most stays when there is little room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.display import cells, words
from sidecar.display.details import details
from sidecar.display.rows import Row, Span, StyleName, fitted, framed, unframed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.display.progress import Progress

_BOX_COLUMNS, _BOX_ROWS = 30, 12  # below that a box would cost more than it gives
_FACT_COLUMNS = 28
_SYMBOLS: dict[str, tuple[str, StyleName]] = {
    "pending": ("·", "dim"),
    "running": ("▶", "good"),
    "paused": ("‖", "warn"),
    "completed": ("✓", "good"),
    "failed": ("✗", "bad"),
    "aborted": ("✗", "bad"),
    "stopped": ("■", "warn"),
    "interrupted": ("!", "warn"),
}


def compose(progress: Progress, columns: int, lines: int, now: float, *, keys: bool) -> list[Row]:
    """Exactly `lines` rows of `columns` cells. `keys`: whether the key `s` is heard."""
    boxed = columns >= _BOX_COLUMNS and lines >= _BOX_ROWS
    width, room = (columns - 4, lines - 2) if boxed else (columns, lines)
    foot = _foot(width, keys=keys and not progress.is_over, boxed=boxed)
    top = [*_essentials(progress, width), *_asked(progress, width, keys=keys, lines=room)]
    # What was asked of the run is worth more than the hint how to ask for it.
    foot = foot if len(top) + len(foot) <= room else foot[-1:] if len(top) < room else []
    facts = _facts(progress, width, now)[: max(0, room - len(top) - len(foot))]
    body: list[Row | str] = [*top[:room], *facts]
    body += details(progress, width, room - len(body) - len(foot), now)
    body += [fitted((), width)] * (room - len(body) - len(foot)) + foot
    return framed(body, columns, _title(progress), progress.run_id) if boxed else unframed(body, columns)


def summary(progress: Progress, columns: int, now: float) -> list[Row]:
    """What stays on the terminal when the panel goes: how the run ended, in as few rows as that takes."""
    width = columns - 4 if columns >= _BOX_COLUMNS else columns
    body = [*_essentials(progress, width), *_facts(progress, width, now)]
    return framed(body, columns, _title(progress), progress.run_id) if width < columns else unframed(body, columns)


def _title(progress: Progress) -> str:
    return cells.clean(" · ".join(filter(None, (progress.workflow or "run", progress.workspace))))


def _foot(width: int, *, keys: bool, boxed: bool) -> list[Row | str]:
    if not keys:
        return []
    hint = cells.first_fitting(width, "Press s to toggle stop", "s: toggle stop")
    row = fitted([(hint, "dim")], width)
    return ["", row] if boxed else [row]


def _essentials(progress: Progress, width: int) -> list[Row]:
    symbol, style = _SYMBOLS[progress.status]
    status: list[Span] = [(f"{symbol} {progress.status.upper()}", style)]
    where = cells.clean(_where(progress))
    if where:
        status.append((f"  {where}", "plain"))
    rows = [fitted(status, width)]
    bar = _bar(progress, width)
    if bar is not None:
        rows.append(bar)
    return rows


def _where(progress: Progress) -> str:
    if progress.is_over:
        return progress.reason
    if progress.waits_for:
        return f"waits for {progress.waits_for}" if progress.status == "paused" else f"asks: {progress.waits_for}"
    parts = [f"step {progress.step}"] if progress.step else []
    if progress.loop is not None and progress.loop.done < progress.loop.number:
        parts.append(f"iteration {progress.loop.number}")
    if progress.attempt > 1:
        parts.append(f"attempt {progress.attempt}")
    return " · ".join(parts)


def _bar(progress: Progress, width: int) -> Row | None:
    done, of, unit = 0, None, ""
    if progress.loop is not None and not (progress.loop.is_over and progress.tasks.running):
        done, of, unit = progress.loop.done, progress.loop.of, "iterations"
    elif progress.tasks:
        done, _, of = progress.tasks.count()
        unit = "tasks"
    if not unit:
        return None
    if not of or (progress.status == "completed" and unit == "iterations"):  # it was a maximum, and is nobody's now
        return fitted([(f"{done} {unit} done", "strong")], width)
    told = words.share(done, of)
    room = width - len(told) - 2
    if room < 4:
        return fitted([(told, "strong")], width)
    full = room * min(done, of) // of
    return fitted([("█" * full, "good"), ("░" * (room - full), "dim"), (f"  {told}", "strong")], width)


def _asked(progress: Progress, width: int, *, keys: bool, lines: int) -> list[Row]:
    """The signals that stand. The words for a stop are never cut."""
    if progress.is_over:
        return []
    rows: list[Row] = []
    stop, abort = progress.asked.get("stop"), progress.asked.get("abort")
    if abort is not None:
        rows.append(fitted([(f"✗ Abort requested: {cells.clean(abort.reason)}", "bad")], width))
    if stop is None:
        return rows
    whole = "Stop requested (Press 's' to cancel)" if keys else "Stop requested"
    if len(whole) <= width:
        mark = "■ " if len(whole) + 2 <= width else ""
        rows.append(fitted([(mark + whole, "warn")], width))
    else:
        rows += [fitted([(text, "warn")], width) for text in ("■ Stop requested", "  press s to cancel")]
    reason = cells.clean(stop.reason)
    told = (f"  by {stop.source} {cells.clean(stop.path)}: {reason}", f"  by {stop.source}: {reason}")
    if lines > len(rows) + 3:
        rows.append(fitted([(cells.first_fitting(width, *told), "dim")], width))
    return rows


def _facts(progress: Progress, width: int, now: float) -> list[Row]:
    facts = [(label, told) for label, told in _known(progress, now) if told]
    columns = max(1, min(4, width // _FACT_COLUMNS))
    if columns == 1:
        return _packed(facts, width)
    each = width // columns
    rows: list[Row] = []
    for first in range(0, len(facts), columns):
        spans: list[Span] = []
        for label, told in facts[first : first + columns]:
            spans += fitted([(f"{label}: ", "dim"), (told, "plain")], each)
        rows.append(fitted(spans, width))
    return rows


def _known(progress: Progress, now: float) -> list[tuple[str, str]]:
    loop, (ended, failed, of) = progress.loop, progress.tasks.count()
    left_s = loop.left_s(now) if loop is not None and not progress.is_over else None
    counts_down = loop is not None and loop.of is not None and not progress.is_over
    average_s = loop.average_s if loop is not None else None
    tasks = f"{ended} / {of}" if of is not None else f"{ended} done"
    known = [
        ("Elapsed", words.duration(progress.elapsed_s(now))),
        ("ETA", words.estimate(left_s) if left_s is not None else "–" if counts_down else ""),
        ("Avg/iter", words.duration(average_s) if average_s is not None else ""),
        ("Mode", cells.clean(progress.mode)),
        ("Tasks", tasks + (f", {failed} failed" if failed else "") if progress.tasks else ""),
        ("Steps", f"{progress.steps_done} done" if progress.steps_done else ""),
        ("Cost", words.cost(progress.crew.cost_usd) if progress.crew.cost_usd is not None else ""),
        ("Tokens", words.tokens(progress.crew.tokens) if progress.crew.tokens else ""),
    ]
    if progress.updated_at is not None and not progress.is_over:
        known.append(("Updated", f"{words.duration(now - progress.updated_at)} ago"))
    return known


def _packed(facts: Sequence[tuple[str, str]], width: int) -> list[Row]:
    """As many as fit side by side."""
    rows: list[list[Span]] = [[]]
    used = 0
    for label, told in facts:
        size = len(label) + 2 + cells.width(told)
        if used and used + 2 + size > width:
            rows.append([])
            used = 0
        if used:
            rows[-1].append(("  ", "plain"))
            used += 2
        rows[-1] += [(f"{label}: ", "dim"), (told, "plain")]
        used += size
    return [fitted(spans, width) for spans in rows if spans]
