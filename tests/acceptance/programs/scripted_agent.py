"""An agent for the examples of the documentation: it does at once, and without a model, what their prompts ask for.

Whatever else it is asked, it says that it is done. A task it does as real agents do: it asks the run for its steps.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

TASKS = Path(__file__).parents[2] / "kit" / "programs" / "caller.py"


def main() -> None:
    prompt = sys.stdin.read()
    if "workflow_get_next_step" in prompt:
        os.execv(sys.executable, [sys.executable, str(TASKS), "tasks", os.devnull])
    if found := re.search(r"^Resolve this TODO and nothing else: ([^:]+):(\d+):", prompt, re.MULTILINE):
        path, number = Path(found[1]), int(found[2])
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([*lines[: number - 1], *lines[number:]]))
    if found := re.search(r"^(.+) has \d+ bytes\. Make it shorter", prompt, re.MULTILINE):
        Path(found[1]).write_text("short\n")
    sys.stdout.write('{"applied_count": 2}\n' if "applied_count" in prompt else "done\n")


main()
