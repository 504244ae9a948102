"""The lower half of the panel: who works, what the run told, what was printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.display import cells, words
from sidecar.display.rows import Row, StyleName, fitted

if TYPE_CHECKING:
    from sidecar.display.progress import Progress
    from sidecar.display.tasks import Task

_NOTES = 3
_HEADING_COLUMNS = 20
_TASK_SYMBOLS: dict[str, tuple[str, StyleName]] = {
    "running": ("▶", "good"),
    "done": ("✓", "good"),
    "failed": ("✗", "bad"),
    "again": ("↻", "warn"),
}


def details(progress: Progress, width: int, room: int, now: float) -> list[Row | str]:
    """Who works, what was told, what was printed: in that order, each with a heading while there is room."""
    if room < 1:
        return []
    heads = room >= 6 and width >= _HEADING_COLUMNS
    said = min(len(progress.crew.lines), max(1, room // 3))  # what the others have to leave
    rows: list[Row | str] = []
    workers = _workers(progress, width, max(1, room - said - heads), now)
    if workers:
        rows += [*(["Tasks" if progress.tasks.running else "Agents"] if heads else []), *workers]
    notes = list(progress.notes)[-_NOTES:] if heads and room - len(rows) > 5 else []
    if notes:
        rows.append("Messages")
        rows += [fitted([(cells.clean(note.text), "warn" if note.is_problem else "plain")], width) for note in notes]
    left = room - len(rows)
    if progress.crew.lines and left > heads:
        rows += ["Output"] if heads else []
        rows += _output(progress, width, left - heads)
    return rows


def _workers(progress: Progress, width: int, most: int, now: float) -> list[Row]:
    if progress.is_over:
        return []
    if progress.tasks.running:
        return _tasks(progress, width, most, now)
    agents = list(progress.crew.agents.values())
    shown = agents if len(agents) <= most else agents[: most - 1]
    rows = [
        fitted(
            [
                (f"{cells.clean(agent.name)}  ", "strong"),
                (f"pid {agent.pid}  {words.duration(now - agent.began_at)}  ", "dim"),
                (cells.clean(agent.doing), "plain"),
            ],
            width,
        )
        for agent in shown
    ]
    if len(shown) < len(agents):
        rows.append(fitted([(f"… and {len(agents) - len(shown)} more", "dim")], width))
    return rows


def _tasks(progress: Progress, width: int, most: int, now: float) -> list[Row]:
    shown = progress.tasks.rows(most)
    if len(progress.tasks.running) > most:
        shown = shown[: most - 1]
    doing = {agent.task: agent.doing for agent in progress.crew.agents.values() if agent.task and agent.doing}
    longest = max((cells.width(cells.clean(task.id)) for task in shown), default=0)
    rows = [_task(task, doing.get(task.id, ""), min(longest, width // 2), width, now) for task in shown]
    hidden = len(progress.tasks.running) - len(shown)
    if hidden > 0:
        rows.append(fitted([(f"… and {hidden} more", "dim")], width))
    return rows


def _task(task: Task, doing: str, longest: int, width: int, now: float) -> Row:
    symbol, style = _TASK_SYMBOLS[task.state]
    return fitted(
        [
            (f"{symbol} ", style),
            *fitted([(cells.clean(task.id), "plain")], longest),
            (f"  {words.duration(task.lasted_s(now)):>7}  ", "dim"),
            (cells.clean(doing if doing and task.state == "running" else task.doing), "plain"),
        ],
        width,
    )


def _output(progress: Progress, width: int, room: int) -> list[Row]:
    lines = list(progress.crew.lines)[-room:]
    several = len({line.source for line in lines}) > 1
    return [
        fitted(
            [
                (f"{cells.clean(line.source)}: " if several else "", "dim"),
                (cells.clean(line.text), "dim" if line.stream == "stderr" else "plain"),
            ],
            width,
        )
        for line in lines
    ]
