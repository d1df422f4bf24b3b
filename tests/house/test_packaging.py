"""What is listed for installation is what lies in the folders; nothing lies at the top level that does not belong."""

from __future__ import annotations

import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import placer

TOP_FILES = {"pyproject.toml", "README.md", "LICENSE", ".gitignore"}
TOP_FOLDERS = {".ci", "placer", "strategies", "runtime", "examples", "tests"}


def package_folders(checkout: Path) -> set[str]:
    """Every folder with an __init__.py, by its dotted name."""
    found = set()
    for top in ("placer", "strategies", "runtime"):
        for path in (checkout / top).rglob("__init__.py"):
            parts = path.parent.resolve().relative_to(checkout).parts
            found.add(".".join(parts if parts[0] == "placer" else ("placer", *parts)))
    return found


def test_every_package_folder_is_listed(checkout: Path) -> None:
    listed = tomllib.loads((checkout / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(listed) == listed, "keep the list in order"
    assert set(listed) == package_folders(checkout)


def test_every_data_folder_is_listed(checkout: Path) -> None:
    described = tomllib.loads((checkout / "pyproject.toml").read_text())["tool"]["setuptools"]
    listed = {
        path
        for package, patterns in described["package-data"].items()
        for pattern in patterns
        for path in _folder(checkout, package).glob(pattern)
    }
    data = {
        checkout / name
        for name in _tracked(checkout)
        if name.startswith(("placer/", "strategies/", "runtime/"))
        and not name.endswith((".py", "README.md"))
        and not (checkout / name).is_symlink()
    }
    assert data <= listed


def test_the_strategies_and_runtime_folders_are_reached_by_relative_links(checkout: Path) -> None:
    for name in ("strategies", "runtime"):
        link = checkout / "placer" / name
        assert link.is_symlink()
        assert str(link.readlink()) == f"../{name}"


def test_nothing_else_lies_at_the_top_level(checkout: Path) -> None:
    assert {name.split("/")[0] for name in _tracked(checkout)} <= TOP_FILES | TOP_FOLDERS


def test_the_distribution_is_not_called_placer() -> None:
    assert version("placer-planner")
    assert placer.__name__ == "placer"


def _folder(checkout: Path, package: str) -> Path:
    """Where a package lies in the source tree."""
    return (checkout / package.replace(".", "/")).resolve()


def _tracked(checkout: Path) -> list[str]:
    listing = subprocess.run(["git", "ls-files"], cwd=checkout, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return listing.stdout.split("\n")[:-1]
