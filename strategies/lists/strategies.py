"""`heft`, `etf`, `sct`, `critical_path`, `greedy` and `metis` as strategies: a model's blocks over all positions.
`lists` is all of them at once.

Every device is a position, at most `MOST_POSITIONS` of them (with pinned replicas or layouts every group of devices; of
a batch that stays whole groups that have rows of their own beside it); microbatches are powers of two. Blocks are
placed once for each such outline, for one microbatch, within memory, and the plans of these placements are judged by
the estimate. What a list scheduler leaves empty stays unused; device classes and nodes are asked for alone too
(`space/parts`).
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec

from placer.errors import Infeasible
from placer.plans.plan import Layout
from placer.search.problem import Problem, Solution
from placer.strategies.intra_op.likely_layouts import likely_layouts
from placer.strategies.lists.from_blocks import block_tasks
from placer.strategies.lists.methods import METHODS, Method
from placer.strategies.space.best_placed import best_placed
from placer.strategies.space.likely_outlines import likely_outlines
from placer.strategies.space.outline import Outline
from placer.strategies.space.parts import best_of_parts
from placer.strategies.space.pin_conflicts import require_pins
from placer.strategies.space.placements import Placement, Placing

MOST_POSITIONS, MOST_OUTLINES = 16, 24
# Those first that most often differ; the dearest, by load, not before some that are cheap.
CLASSIC = ("heft", "greedy", "critical_path", "etf", "sct")


class Listed(ABC):
    """The best plan of a method's placements."""

    name: str
    exact = False

    def solve(self, problem: Problem) -> Solution | Infeasible:
        """The best plan of all outlines; why there is none. Raises UsageError for contradicting pins, and where an
        extra is missing."""
        require_pins(problem)
        return best_of_parts(problem, self._solved)

    @property
    def methods(self) -> tuple[str, ...]:
        """Whose placements are judged."""
        return (self.name,)

    def _solved(self, problem: Problem) -> Solution | Infeasible:
        return best_placed(problem, _outlines(problem), [partial(_placements, METHODS[name]) for name in self.methods])


def _placements(method: Method, placing: Placing, kept: int) -> Sequence[Placement] | Infeasible:
    found = method(block_tasks(placing, kept))
    return found if isinstance(found, Infeasible) else (found,)


def _outlines(problem: Problem) -> Iterator[tuple[Outline, Layout | None]]:
    """Under each layout those of most positions."""
    for layouts in likely_layouts(problem):
        yield from _most_positions(problem, layouts)


def _most_positions(problem: Problem, layouts: Sequence[Layout | None]) -> list[tuple[Outline, Layout | None]]:
    """Those of most positions, each with as few replicas as pins allow."""
    for positions in range(MOST_POSITIONS, 0, -1):
        found = likely_outlines(problem, layouts, "1f1b", range(positions, positions + 1))
        fewest = min((outline.replicas for outline, _ in found), default=0)
        if found:
            return [entry for entry in found if entry[0].replicas == fewest][:MOST_OUTLINES]
    return []


class Heft(Listed):
    """Heterogeneous earliest finish time."""

    name = "heft"


class EarliestTask(Listed):
    """m-ETF."""

    name = "etf"


class SmallCommunication(Listed):
    """m-SCT."""

    name = "sct"


class CriticalPath(Listed):
    """The longest way first."""

    name = "critical_path"


class Greedy(Listed):
    """By load."""

    name = "greedy"


class Metis(Listed):
    """By METIS."""

    name = "metis"


class Lists(Listed):
    """All of them, outline by outline: the best plan that any of them has; METIS where it is installed."""

    name = "lists"

    @property
    def methods(self) -> tuple[str, ...]:
        """All but `single`, which is a strategy of its own."""
        return (*((Metis.name,) if find_spec("pymetis") else ()), *CLASSIC)
