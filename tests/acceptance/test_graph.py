"""`sidecar graph`, as a user has it."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.kit import SIDECAR, Forked, call


def graph(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return call("graph", *arguments, cwd=root)


def test_in_a_pipe_the_picture_is_mermaid(tmp_path: Path) -> None:
    ended = graph(tmp_path, "standards:fix")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[:4] == ["---", 'title: "standards:fix"', "---", "flowchart TD"]


def test_on_a_terminal_the_picture_is_text(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with Forked([SIDECAR, "graph", "iterate"], tmp_path, dict(os.environ), stdout=theirs, stdin=theirs) as process:
        os.close(theirs)
        told = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux says EIO where others say end of file
                break
            if not part:
                break
            told += part
        os.close(ours)
    assert process.returncode == 0
    assert b"`- loop (while) !complete" in told


def test_svg_is_a_document_with_every_step(tmp_path: Path) -> None:
    root = ElementTree.fromstring(graph(tmp_path, "iterate", "--format", "svg").stdout)
    told = " ".join(node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text"))
    for step in ("loop · while", "work · agent", "end_without_progress · conditional", "computed.worked"):
        assert step in told


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed here")
def test_graphviz_takes_what_we_write(tmp_path: Path) -> None:
    text = 'steps: [{type: user_message, message: "a \\"b\\" \\\\N \\\\ <c> {d|e}"}]\n'
    (tmp_path / "hostile.yaml").write_text(text)
    for workflow in ("standards:fix", "hostile.yaml"):
        source = graph(tmp_path, workflow, "--format", "dot").stdout
        drawn = subprocess.run(["dot", "-Tsvg"], input=source, capture_output=True, text=True, check=True, timeout=60)
        assert drawn.stderr == ""
    texts = [node.text for node in ElementTree.fromstring(drawn.stdout).iter("{http://www.w3.org/2000/svg}text")]
    assert 'a "b" \\N \\ <c> {d|e}' in texts


def test_a_file_can_be_drawn_and_a_broken_one_says_why(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("steps: [{id: only, type: exit}]\n")
    assert "`- only (exit)" in graph(tmp_path, "w.yaml", "--format", "ascii").stdout
    (tmp_path / "w.yaml").write_text("steps: 3\n")
    ended = graph(tmp_path, "w.yaml")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "w.yaml:1: " in ended.stderr


def test_a_name_that_nobody_has_is_bad_usage(tmp_path: Path) -> None:
    ended = graph(tmp_path, "iterat")
    assert ended.returncode == 2
    assert ended.stderr.startswith("sidecar: no such workflow: iterat; available: iterate,")
