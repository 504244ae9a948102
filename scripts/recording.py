"""A command in a pseudo-terminal, and what that showed, as an SVG that moves: no script in it, no font from elsewhere.

The frames stand side by side like those of a film, and one animation moves the film behind the window. A row that
several frames have is drawn once. Where motion is not wanted, the last frame is shown.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyte

CELL_WIDTH, CELL_HEIGHT = 8.4, 18
MARGIN, BAR = 14, 30
GATHER_S = 0.1  # what comes within this time is one frame
LONGEST_FRAME_S = 1.5  # nobody wants to watch a program start
LAST_FRAME_S = 5.0
BACKGROUND, FOREGROUND = "#14181f", "#d6dbe4"
COLOURS = {
    "default": FOREGROUND,
    "black": "#4a5261",
    "red": "#e5646f",
    "green": "#7fc77a",
    "brown": "#d9b45c",
    "blue": "#6ea3e8",
    "magenta": "#c08adf",
    "cyan": "#57bfc9",
    "white": FOREGROUND,
    "brightblack": "#8a93a3",
}


class Frame(NamedTuple):
    at_s: float
    rows: tuple[str, ...]  # each as the inside of a <text>


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/record",
        description="Make a moving picture of a command, an SVG.",
        usage="%(prog)s FILE [--size COLUMNSxROWS] [-- COMMAND ...]",
    )
    parser.add_argument("file", type=Path, help="where it goes")
    parser.add_argument("--size", default="100x28", metavar="COLUMNSxROWS", help="of the terminal (default: 100x28)")
    words, command = sys.argv[1:], ["sidecar", "demo"]
    if "--" in words:
        words, command = words[: words.index("--")], words[words.index("--") + 1 :]
    options = parser.parse_args(words)
    columns, rows = map(int, options.size.split("x"))
    frames, code = record(command, columns, rows)
    if code != 0:
        print(f"{' '.join(command)} ended with {code}: no picture", file=sys.stderr)
        return 1
    options.file.write_text("\n".join(picture(paced(frames), columns, rows, " ".join(command))) + "\n")
    return 0


def record(command: list[str], columns: int, rows: int) -> tuple[list[Frame], int]:
    """Every picture that the terminal showed, and how the command ended."""
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    frames: list[Frame] = []
    while data := _output(ours):
        stream.feed(data.replace(b"\033[2m", b"\033[90m"))  # pyte knows grey, but not dim
        found = tuple(_row(screen, number) for number in range(rows))
        if not frames or found != frames[-1].rows:
            frames.append(Frame(time.monotonic(), found))
    os.close(ours)
    return frames, process.wait()


def _output(terminal: int) -> bytes:
    """What comes together; nothing at the end."""
    data = b""
    select.select([terminal], [], [])
    until = time.monotonic() + GATHER_S
    while select.select([terminal], [], [], max(until - time.monotonic(), 0))[0]:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # Linux tells the end of a terminal so
            break
        if not chunk:
            break
        data += chunk
    return data


def _row(screen: pyte.Screen, number: int) -> str:
    """One line of the screen, its blanks at the end left out, as runs of one style."""
    line = screen.buffer[number]
    cells = [line[column] for column in range(screen.columns)]
    while cells and not cells[-1].data.strip():
        cells.pop()
    runs = []
    column = 0
    for (colour, bold), group in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
        text = "".join(cell.data for cell in group)
        fill = COLOURS.get(colour, f"#{colour}" if len(colour) == 6 else FOREGROUND)
        style = f' fill="{fill}"' * (fill != FOREGROUND) + ' font-weight="bold"' * bold
        if text.strip():
            x = f"{column * CELL_WIDTH:.1f}"
            width = f"{len(text) * CELL_WIDTH:.1f}"  # whatever font there is, columns stay columns
            runs.append(
                f'<tspan x="{x}" textLength="{width}" lengthAdjust="spacingAndGlyphs"{style}>{escape(text)}</tspan>'
            )
        column += len(text)
    return "".join(runs)


def paced(frames: list[Frame]) -> list[Frame]:
    """The same without long waits, from nought on."""
    shown: list[Frame] = []
    now_s = 0.0
    for before, frame in zip([None, *frames], frames, strict=False):
        now_s += min(frame.at_s - before.at_s, LONGEST_FRAME_S) if before is not None else 0.0
        shown.append(Frame(now_s, frame.rows))
    return shown


def picture(frames: list[Frame], columns: int, rows: int, title: str) -> Iterator[str]:
    """The lines of the SVG."""
    inner, height = columns * CELL_WIDTH, rows * CELL_HEIGHT
    stride = inner + MARGIN  # what a letter sticks out does not reach into the next frame
    width = inner + 2 * MARGIN
    length_s = frames[-1].at_s + LAST_FRAME_S
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height + BAR + MARGIN}" '
        f'width="{width:.0f}" role="img" aria-label="{escape(title)}, recorded in a terminal">'
    )
    yield "<style>"
    yield "text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre; }"
    yield f"text {{ fill: {FOREGROUND}; }}"
    yield f".film {{ transform: translateX({-(len(frames) - 1) * stride:.1f}px); }}"
    yield "@media (prefers-reduced-motion: no-preference) {"
    yield f"  .film {{ animation: play {length_s:.2f}s steps(1, end) infinite; }}"
    yield "}"
    yield "@keyframes play {"
    for number, frame in enumerate(frames):
        yield f"  {frame.at_s / length_s:.3%} {{ transform: translateX({-number * stride:.1f}px); }}"
    yield f"  100% {{ transform: translateX({-(len(frames) - 1) * stride:.1f}px); }}"
    yield "}"
    yield "</style>"
    names = {
        row: f"r{number}" for number, row in enumerate(dict.fromkeys(row for f in frames for row in f.rows if row))
    }
    yield "<defs>"
    for row, name in names.items():
        yield f'<text id="{name}" xml:space="preserve">{row}</text>'
    yield "</defs>"
    yield f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>'
    for number, colour in enumerate(("#e5646f", "#d9b45c", "#7fc77a")):
        yield f'<circle cx="{MARGIN + 6 + number * 18}" cy="16" r="5" fill="{colour}"/>'
    yield f'<svg x="{MARGIN}" y="{BAR}" width="{inner:.1f}" height="{height}" viewBox="0 0 {inner:.1f} {height}">'
    yield '<g class="film">'
    for number, frame in enumerate(frames):
        yield f'<g transform="translate({number * stride:.1f} 0)">'
        for line, row in enumerate(frame.rows):
            if row:
                yield f'<use href="#{names[row]}" y="{line * CELL_HEIGHT + 14}"/>'
        yield "</g>"
    yield "</g></svg></svg>"


if __name__ == "__main__":
    sys.exit(main())
