"""Dear tests take turns: a run of all tests takes a part of those marked `in_turns`, another for each commit.

Each claim's many cases hold the same idea on other models and layouts; all of them take more than an hour. So that each
commit is judged in minutes and none is never run, `in_turns(n)` on a test or a file (`pytestmark`) divides it into `n`
parts by position, and a commit's hash says which of them is its own: the same on every machine, so that what failed
fails again. Files named on the command line run whole, and `--turn every` runs all there is.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

EVERY = "every"


def turn_of_commit(checkout: Path) -> int:
    """A number of the commit that is checked out; 0 where there is none (an archive of the source)."""
    said = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return int(said.stdout, 16) if said.returncode == 0 else 0


def asked_turn(config: pytest.Config) -> str:
    """The turn that was asked for, or else the commit's in a run of all tests and every one where files are named."""
    asked: str | None = config.getoption("turn")
    if asked is not None:
        return asked
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return str(turn_of_commit(config.rootpath)) if whole else EVERY


class Marked(Protocol):
    """As much of a test as turns look at."""

    @property
    def path(self) -> Path:
        """The file it stands in."""

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        """Its own mark of that name, or else that of its file."""


Test = TypeVar("Test", bound=Marked)


def in_turn(items: Sequence[Test], turn: int) -> tuple[list[Test], list[Test]]:
    """The tests whose turn it is and the others, both in their order."""
    positions: Counter[tuple[Path, int]] = Counter()
    kept: list[Test] = []
    left: list[Test] = []
    for item in items:
        mark = item.get_closest_marker("in_turns")
        if mark is None:
            kept.append(item)
            continue
        (parts,) = mark.args
        place = (item.path, parts)
        (kept if positions[place] % parts == turn % parts else left).append(item)
        positions[place] += 1
    return kept, left
