"""Dear tests take turns: a run of all tests takes one of twelve parts of those marked `in_turns`, by its commit.

Many cases hold one claim on other models and layouts, and all of them take more than an hour. So that a commit is
judged in minutes and none is left out for long, the marked tests of a file are dealt to parts in their order, and the
hash of the commit says which part is its own: the same on every machine, so that what failed fails again. Files named
on the command line run whole; `--turn every` runs all there is.
"""

from __future__ import annotations

import subprocess
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

PARTS = 12
EVERY = "every"


def turn_of_commit(checkout: Path) -> int:
    """A number of the commit that is checked out; 0 where there is none (an archive of the source)."""
    asking = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    try:
        said = subprocess.run(asking, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git here
        return 0
    return int(said.stdout, 16) % PARTS if said.returncode == 0 else 0


def asked_turn(config: pytest.Config) -> str:
    """The turn that was asked for, or else the commit's in a run of all tests and every one where files are named.

    Raises UsageError where what was asked for is none.
    """
    asked: str | None = config.getoption("turn")
    if asked is None:
        whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        return str(turn_of_commit(config.rootpath)) if whole else EVERY
    if asked != EVERY and asked not in map(str, range(PARTS)):
        raise pytest.UsageError(f"--turn {asked}: give a number from 0 to {PARTS - 1}, or `{EVERY}`")
    return asked


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
    first = {item.path: zlib.crc32(item.path.name.encode()) for item in items}  # else few tests would be dealt the last
    dealt: Counter[Path] = Counter(first)
    kept: list[Test] = []
    left: list[Test] = []
    for item in items:
        if item.get_closest_marker("in_turns") is None:
            kept.append(item)
            continue
        (kept if dealt[item.path] % PARTS == turn else left).append(item)
        dealt[item.path] += 1
    return kept, left
