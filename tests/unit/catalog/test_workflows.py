"""Workflows by name: where they are found, and what is said when they are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import sidecar
from sidecar.catalog import naming, workflows
from sidecar.catalog.workflows import Definition
from sidecar.errors import NotFound

CHECKOUT = Path(__file__).parents[3]


class Catalog:
    """A project and a home with workflows in them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = Path(os.environ["HOME"])

    def write(self, base: Path, name: str, text: str = "description: from {}\nsteps: []\n") -> Path:
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{}", path.parent.parent.name))
        return path

    def find(self, name: str) -> Definition:
        return workflows.find(str(self.root), name)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path)


def test_the_first_place_that_has_a_name_wins_it(catalog: Catalog) -> None:
    order = [
        (catalog.root / ".swissarmyhammer" / "workflows", "project"),
        (catalog.root / ".aromcp" / "workflows", "project"),
        (catalog.home / ".swissarmyhammer" / "workflows", "global"),
        (catalog.home / ".aromcp" / "workflows", "global"),
    ]
    assert catalog.find("plan").source == "builtin"
    for directory, source in reversed(order):
        path = catalog.write(directory, "plan.yaml")
        found = catalog.find("plan")
        assert (found.name, found.source, found.loaded_from) == ("plan", source, str(path))


def test_the_name_is_the_files_and_may_have_a_namespace(catalog: Catalog) -> None:
    catalog.write(catalog.root / ".aromcp" / "workflows", "team:deploy-it_2.yaml", "name: other\nsteps: []\n")
    assert catalog.find("team:deploy-it_2").name == "team:deploy-it_2"
    with pytest.raises(NotFound):
        catalog.find("other")


def test_names_are_case_sensitive_by_the_listing_and_not_by_the_disk(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.write(catalog.root / ".swissarmyhammer" / "workflows", "Deploy.yaml")
    # As on a disk that finds `deploy.yaml` too: nothing but the listing may be asked.
    monkeypatch.setattr(os.path, "exists", lambda _: True)
    monkeypatch.setattr(os.path, "isfile", lambda _: True)
    with pytest.raises(NotFound, match="no such workflow: deploy; available: Deploy, "):
        catalog.find("deploy")


def test_not_found_tells_the_names_nearest_first_and_where_it_looked(catalog: Catalog) -> None:
    with pytest.raises(NotFound) as caught:
        catalog.find("code-reviw")
    message = str(caught.value)
    assert message.startswith("no such workflow: code-reviw; available: code-review, ")
    for directory in (".swissarmyhammer", ".aromcp"):
        assert str(catalog.root / directory / "workflows") in message
        assert str(catalog.home / directory / "workflows") in message
    assert naming.builtin_directory("workflows") in message


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/passwd", "", ".", "a b", "ä", "x\0", "a.yaml"])
def test_what_cannot_be_a_name_is_not_looked_for(catalog: Catalog, name: str) -> None:
    catalog.write(catalog.root / ".swissarmyhammer", "x.yaml")
    with pytest.raises(NotFound, match="cannot be a name"):
        catalog.find(name)


def test_the_built_in_ones_are_inside_an_installed_package_and_beside_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert naming.builtin_directory("workflows") == str(CHECKOUT / "workflows")
    package = tmp_path / "site-packages" / "sidecar"
    package.mkdir(parents=True)
    monkeypatch.setattr(sidecar, "__file__", str(package / "__init__.py"))
    assert naming.builtin_directory("workflows") == str(package / "builtin" / "workflows")
    (tmp_path / "site-packages" / "workflows").mkdir()  # somebody else's package
    assert naming.builtin_directory("workflows") == str(package / "builtin" / "workflows")


def test_an_include_means_an_import_first_and_then_a_workflow_by_name(catalog: Catalog) -> None:
    directory = catalog.root / ".swissarmyhammer" / "workflows"
    catalog.write(directory, "main.yaml", "imports: [parts/plan.yaml]\nsteps: []\n")
    part = catalog.write(directory / "parts", "plan.yaml", "name: plan\nsteps: []\n")
    main = catalog.find("main")
    root = str(catalog.root)
    assert workflows.included(root, main, "plan").loaded_from == str(part)
    assert workflows.included(root, main, "iterate").source == "builtin"
    with pytest.raises(NotFound):
        workflows.included(root, main, "parts")


def test_yaml_wins_over_yml_and_both_are_found(catalog: Catalog) -> None:
    directory = catalog.root / ".swissarmyhammer" / "workflows"
    second = catalog.write(directory, "a.yml")
    assert catalog.find("a").loaded_from == str(second)
    first = catalog.write(directory, "a.yaml")
    assert catalog.find("a").loaded_from == str(first)
