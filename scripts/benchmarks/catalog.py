"""What a list of workflows costs: reading 200 files for names, descriptions and inputs."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import yaml

from benchmarks.report import Figure
from sidecar.catalog import listing, naming, yaml_format

if TYPE_CHECKING:
    from collections.abc import Callable

_COUNT = 200


def measure(*, quick: bool) -> list[Figure]:
    """Copies of the built-in workflows, so that they are as long as real ones are."""
    rounds = 3 if quick else 9
    with tempfile.TemporaryDirectory() as root:
        paths = _fill(Path(root) / ".swissarmyhammer" / "workflows")

        def listed() -> None:
            assert len(listing.workflows(root, "project")[0]) == _COUNT

        def read() -> None:
            listing.heading.cache_clear()
            listed()

        def parsed() -> None:
            loader = yaml.CSafeLoader if yaml_format.FAST else yaml.SafeLoader
            for path in paths:
                yaml.load(path.read_bytes(), loader)

        listed()  # models built, files in the cache of the operating system
        again = _seconds(listed, rounds)
        fresh = _seconds(read, rounds)
        bare = _seconds(parsed, rounds)
    scanner = "libyaml" if yaml_format.FAST else "pure Python"
    return [
        Figure(f"catalog: {_COUNT} workflows for the enum, again", again * 1e3, "ms", limit=300),
        Figure(f"catalog: {_COUNT} workflows, every file read and checked", fresh * 1e3, "ms", limit=300),
        Figure(
            "catalog: the same, beside bare YAML",
            fresh * 1e3,
            "ms",
            baseline=f"yaml.load, {scanner}",
            baseline_value=bare * 1e3,
        ),
    ]


def _fill(directory: Path) -> list[Path]:
    directory.mkdir(parents=True)
    sources = [path.read_bytes() for path in sorted(Path(naming.builtin_directory("workflows")).glob("*.yaml"))]
    paths = [directory / f"w{number:03}.yaml" for number in range(_COUNT)]
    for number, path in enumerate(paths):
        path.write_bytes(sources[number % len(sources)])
    return paths


def _seconds(work: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return median(times)
