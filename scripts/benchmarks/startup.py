"""How long whole commands take, against a bare start of the same interpreter."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.report import Figure
from sidecar.model import ulid

LIST = "sidecar flow list, 100 workflows"


def measure(*, quick: bool) -> list[Figure]:
    """Alternating rounds, so that a noisy moment hits all of them alike."""
    sidecar = str(Path(sys.executable).with_name("sidecar"))
    script = str(Path(__file__).parent.parent / "sidecar")
    with tempfile.TemporaryDirectory() as project:
        (Path(project) / ".swissarmyhammer" / "workspaces" / "ws").mkdir(parents=True)
        for _ in range(1_000):  # runs that are over must not slow down the stopping of one that is not
            (Path(project) / ".swissarmyhammer" / "runs" / ulid.new()).mkdir(parents=True)
        definition = (Path(__file__).parents[2] / "workflows" / "plan.yaml").read_text()
        workflows = Path(project) / ".swissarmyhammer" / "workflows"
        workflows.mkdir()
        for number in range(100):
            (workflows / f"plan-{number}.yaml").write_text(definition)
        commands = {
            "bare": [sys.executable, "-I", "-c", "pass"],
            "sidecar stop WS": [sidecar, "stop", "ws"],
            "sidecar abort REASON": [sidecar, "abort", "tests are red"],
            "scripts/sidecar stop WS": [script, "stop", "ws"],
            "sidecar --help": [sidecar, "--help"],
            LIST: [sidecar, "flow", "list"],
            "a shell's tab": [sidecar, "__complete", "flow", "run", ""],
            "touch": ["touch", ".stop"],
        }
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(15 if quick else 60):
            for name, command in commands.items():
                begin = time.perf_counter()
                subprocess.run(command, cwd=project, stdout=subprocess.DEVNULL, check=True)
                taken[name].append((time.perf_counter() - begin) * 1000)
    bare = median(taken.pop("bare"))
    limits = {"sidecar stop WS": 2.0, "sidecar abort REASON": 2.0, "sidecar --help": 8.0, LIST: 12.0}
    return [
        Figure(f"start: {name}", median(times), "ms", "python -I -c pass", bare, limits.get(name))
        for name, times in taken.items()
    ]
