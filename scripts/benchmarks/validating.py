"""What `sidecar validate` costs: the whole command over a workflow of 500 steps."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.report import Figure

_STEPS = 500
_FIELDS = 40


def measure(*, quick: bool) -> list[Figure]:
    """From the shell's point of view: start, imports, reading, JavaScript, output."""
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "large.yaml"
        path.write_text(_workflow())
        command = [sys.executable, "-m", "sidecar", "validate", str(path)]
        seconds = [_seconds(command, root) for _ in range(3 if quick else 9)]
        bare = [_seconds([sys.executable, "-c", "import pydantic, yaml"], root) for _ in seconds]
    return [
        Figure(f"validate: a workflow of {_STEPS} steps, the whole command", median(seconds) * 1e3, "ms", limit=1000),
        Figure(
            "validate: the same, beside an interpreter that imports",
            median(seconds) * 1e3,
            "ms",
            baseline="python -c 'import pydantic, yaml'",
            baseline_value=median(bare) * 1e3,
        ),
    ]


def _seconds(command: list[str], directory: str) -> float:
    started = time.perf_counter()
    subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _workflow() -> str:
    """Every step has expressions, and no two have the same."""
    lines = ["inputs: {most: {type: integer, default: 3}}", "state_schema:", "  raw: {results: object}", "  computed:"]
    lines += [
        f"    c{number}: {{from: raw.results, transform: 'Object.keys(input).filter(k => k > {number}).length'}}"
        for number in range(_FIELDS)
    ]
    lines.append("steps:")
    for number in range(0, _STEPS, 3):
        lines.append(f"""\
  - id: run{number}
    type: shell_command
    command: echo {{{{ results['k{number}'] }}}} "{{{{ inputs.most + {number} }}}}"
    state_update: {{path: raw.results.k{number}, value: "{{{{ result.trim() + {number} }}}}"}}
  - id: choose{number}
    type: conditional
    condition: "{{{{ c{number % _FIELDS} > {number} }}}}"
    then:
      - {{id: tell{number}, type: user_message, message: "now {{{{ c1 + {number} }}}} of {{{{ inputs.most }}}}"}}""")
    return "\n".join(lines) + "\n"
