"""The names that are known without opening a file are the names that there are."""

from __future__ import annotations

from pathlib import Path

from sidecar.catalog import agents, listing, naming, prompts


def test_they_are_those_of_the_catalog_with_their_sources_and_files(tmp_path: Path) -> None:
    state = ".swissarmyhammer/workflows"
    for place in (f"{state}/a.yaml", f"{state}/plan.yml", ".aromcp/workflows/b.yml"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("steps: []\n")
    (tmp_path / ".swissarmyhammer" / "workflows" / "no name.yaml").touch()
    root = str(tmp_path)
    known = naming.known(root, "workflows")
    assert list(known) == [row["name"] for row in listing.workflows(root)[0]]
    assert {"a", "b", "iterate"} <= set(known)
    assert known["plan"][0] == "project"
    assert list(naming.known(root, "prompts")) == [prompt.name for prompt in prompts.listing(root)[0]]
    assert list(naming.known(root, "agents")) == [agent.name for agent in agents.listing(root)[0]]


def test_the_built_in_agents_are_those_of_the_catalog() -> None:
    assert {name: agent.description for name, agent in agents.BUILTIN.items()} == naming.BUILTIN_AGENTS


def test_a_directory_that_cannot_be_listed_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / ".swissarmyhammer").mkdir()
    (tmp_path / ".swissarmyhammer" / "workflows").symlink_to("workflows")  # a loop: not even root can list it
    problems: list[str] = []
    assert "iterate" in naming.known(str(tmp_path), "workflows", problems)
    assert len(problems) == 1
    assert problems[0].startswith(f"cannot list {tmp_path}/.swissarmyhammer/workflows: ")
