"""Tests that take turns: a run of all takes one part, every part comes in some turn, and what is named runs whole."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from turns import PARTS, in_turn

CASES = """
import pytest
@pytest.mark.in_turns
@pytest.mark.parametrize("case", range(24))
def test_dear(case): pass
def test_cheap(): pass
"""
SETTINGS = """
[pytest]
testpaths = tests
pythonpath = {house}
markers = in_turns: as of placer
addopts = --strict-markers -v -p no:cacheprovider
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "tests").mkdir()
    shutil.copy(checkout / "tests" / "conftest.py", folder / "tests")
    (folder / "tests" / "test_cases.py").write_text(CASES)
    (folder / "pytest.ini").write_text(SETTINGS.format(house=checkout / "tests" / "house"))
    return folder


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=600, check=False)


def ran(project: Path, *arguments: str) -> list[str]:
    """The tests that were run, which pass."""
    done = run(project, *arguments)
    assert done.returncode == 0, done.stdout
    lines = [line.split() for line in done.stdout.splitlines() if "PASSED" in line]
    return sorted(next(word for word in line if "::" in word) for line in lines)


class Claim(NamedTuple):
    """As much of a test as turns look at."""

    path: Path
    name: str
    dear: bool

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return pytest.Mark(name, (), {}, _ispytest=True) if self.dear else None


def test_each_dear_test_has_one_turn_and_each_other_all() -> None:
    files = ["one.py"] * 30 + ["other.py"] * 3 + ["one.py"] * 2
    tests = [Claim(Path(file), str(number), number % 3 > 0) for number, file in enumerate(files)]
    turns = [in_turn(tests, turn) for turn in range(PARTS)]
    for kept, left in turns:
        assert sorted(kept + left) == sorted(tests)
        assert sum(test.dear and test.path == Path("one.py") for test in kept) in (1, 2)
    for test in tests:
        assert sum(test in kept for kept, _ in turns) == (1 if test.dear else PARTS)


def test_files_that_are_named_run_whole(project: Path) -> None:
    assert len(ran(project, "tests/test_cases.py")) == len(ran(project, "--turn", "every")) == 25


def test_processes_run_the_turn_of_a_run_of_all_tests(project: Path) -> None:
    alone = ran(project)
    assert len(alone) == 3
    assert ran(project, "-n", "2") == alone


def test_a_turn_that_is_none_is_refused(project: Path) -> None:
    refused = run(project, "--turn", "12")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--turn 12: give a number from 0 to 11, or `every`" in refused.stderr
