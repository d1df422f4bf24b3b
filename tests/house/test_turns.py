"""Tests that take turns: a run of all takes one part, every part comes in some turn, and what is named runs whole."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from turns import in_turn

CASES = """
import pytest
pytestmark = pytest.mark.in_turns(3)
@pytest.mark.parametrize("case", range(7))
def test_dear(case): pass
@pytest.mark.in_turns(2)
@pytest.mark.parametrize("case", range(3))
def test_less_dear(case): pass
"""
SETTINGS = """
[pytest]
testpaths = tests
pythonpath = {house}
markers = in_turns(n): as of placer
addopts = --strict-markers -v -p no:cacheprovider
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "tests").mkdir()
    shutil.copy(checkout / "tests" / "conftest.py", folder / "tests")
    (folder / "tests" / "test_cases.py").write_text(CASES)
    (folder / "tests" / "test_plain.py").write_text("def test_of_no_mark(): pass\n")
    (folder / "pytest.ini").write_text(SETTINGS.format(house=checkout / "tests" / "house"))
    return folder


def ran(project: Path, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", *arguments]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=600, check=True)
    words = [line.split() for line in done.stdout.splitlines() if "PASSED" in line]
    return sorted(next(word.split("::")[1] for word in line if "::" in word) for line in words)


class Claim(NamedTuple):
    """As much of a test as turns look at."""

    path: Path
    name: str
    parts: int | None

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return None if self.parts is None else pytest.Mark(name, (self.parts,), {}, _ispytest=True)


def test_each_test_has_its_turn_and_few_run_in_each() -> None:
    marked = [(Path("dear.py"), 3)] * 7 + [(Path("plain.py"), None)] + [(Path("dear.py"), 2), (Path("other.py"), 3)] * 3
    tests = [Claim(path, str(number), parts) for number, (path, parts) in enumerate(marked)]
    turns = [in_turn(tests, turn) for turn in range(6)]
    for kept, left in turns:
        assert sorted(kept + left) == sorted(tests)
    for test in tests:
        assert sum(test in kept for kept, _ in turns) == 6 // (test.parts or 1)
    for first in range(6):
        assert len([test for test in turns[first][0] if (test.path, test.parts) == (Path("dear.py"), 3)]) in (2, 3)


def test_files_that_are_named_run_whole(project: Path) -> None:
    assert len(ran(project, "tests/test_cases.py")) == 10


def test_processes_run_the_turn_of_a_run_of_all_tests(project: Path) -> None:
    alone = ran(project)
    assert len(alone) < 11
    assert ran(project, "-n", "2") == alone
