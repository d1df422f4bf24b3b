"""What memory costs a stage: the least time beyond its cheapest variants within the memory, as tables over all stages.

For tensor degree t, y microbatches kept and every stage at once: the steps from cheaper to smaller variants are sorted
once for the whole graph; their running sums over the nodes of each ideal give by difference those over each stage, and
halving finds where they cover what is missing. That is the optimum of the relaxed knapsack (`lower`); rounded up it is
an answer (`upper`). Where the answer matters and both differ, `cheapest_choice` decides and the table keeps its word.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placer.placement.piper import PiperProblem, Variant
from placer.strategies.knapsack import ROUNDING, Choice, Floats, Ints, cheapest_choice, steps_down
from placer.strategies.piper_pairs import Degrees, Family, Offer, Pairs, offer


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Over all stages: `data` x the extra time at one (degrees, y), at least and at most; inf where nothing fits."""

    lower: Floats
    upper: Floats


class Recompute:
    """The rows asked for so far, by (degrees, y). Degrees share a row where their costs differ by a factor only."""

    def __init__(self, problem: PiperProblem, family: Family, by: Degrees, pairs: Pairs):
        self.problem, self.family, self.by, self.pairs = problem, family, by, pairs
        self._offers = {int(t): offer(problem, int(t)) for t in np.unique(by.tensor)}
        self.key = np.array([self._shared_key(k) for k in range(len(by.data))])
        self._rows: dict[tuple[int, int], Row] = {}

    def row(self, degrees: int, y: int) -> Row:
        """The row of these degrees with `y` microbatches kept."""
        key = (int(self.key[degrees]), y)
        if key not in self._rows:
            self._rows[key] = self._made(key[0], y)
        return self._rows[key]

    def decide(self, pair: int, degrees: int, y: int) -> tuple[Choice, float]:
        """The cheapest variants of a stage, exact, and the time of the stage with them; its row is brought up to date.

        The variants of the choice are indices into those of each node, nodes in ascending order of their index.
        """
        data, tensor = int(self.by.data[degrees]), int(self.by.tensor[degrees])
        nodes = self.nodes(pair)
        cost = self._offers[tensor].cost(self.problem, data)[nodes] + self._border(nodes, tensor)
        size = self._memory(tensor, y)[nodes]
        choice = cheapest_choice(cost, size, self.problem.memory_bytes)
        row, cheapest = self.row(degrees, y), float(self.pairs.least[pair, degrees]) * data
        row.lower[pair] = max(row.lower[pair], choice.bound - cheapest)
        row.upper[pair] = max(choice.cost - cheapest, row.lower[pair])
        return choice, choice.cost / data

    def nodes(self, pair: int) -> Ints:
        """The indices of the nodes of a stage."""
        inside = self.family.inside
        return np.flatnonzero(inside[self.pairs.upper[pair]] & ~inside[self.pairs.lower[pair]])

    def _shared_key(self, degrees: int) -> int:
        """The first degrees with the same row."""
        at = self._offers[int(self.by.tensor[degrees])]
        same = bool((at.parameters == at.parameters[:, :1]).all())
        return int(np.flatnonzero(self.by.tensor == self.by.tensor[degrees])[0]) if same else degrees

    def _memory(self, tensor: int, y: int) -> Floats:
        """Bytes of each variant of each node."""
        at = self._offers[tensor]
        return at.a * y + at.b

    def _border(self, nodes: Ints, tensor: int) -> Floats:
        """Nodes x variants: time of the edges that cross the border of the stage."""
        ids = [self.problem.nodes[i].id for i in nodes]
        inside = set(ids)
        width = self._offers[tensor].time.shape[1]
        table = np.zeros((len(ids), width))
        for row, node in enumerate(ids):
            for column, variant in enumerate(self.problem.by_id[node].at(tensor)):
                table[row, column] = _edge_bytes(self.problem, node, variant, inside) / self.problem.bandwidth
        return table

    def _made(self, degrees: int, y: int) -> Row:
        """One row from running sums over ideals."""
        at, data = self._offers[int(self.by.tensor[degrees])], int(self.by.data[degrees])
        size = at.a * y + at.b
        cost = np.where(at.runs[:, None], at.cost(self.problem, data), np.array([0.0] + [np.inf] * (at.time.shape[1] - 1)))
        steps = steps_down(cost, size)
        inside = self.family.inside
        full = inside @ size[np.arange(len(size)), steps.cheapest]
        saved = np.cumsum(inside[:, steps.item] * steps.saved, axis=1)
        extra = np.cumsum(inside[:, steps.item] * steps.extra, axis=1)
        return _cut(full, saved, extra, steps.extra / steps.saved, self)


def _cut(full: Floats, saved: Floats, extra: Floats, rate: Floats, of: Recompute) -> Row:
    """Where the running savings of each stage cover what it lacks."""
    upper, lower = of.pairs.upper, of.pairs.lower
    need = full[upper] - full[lower] - of.problem.memory_bytes * (1 + ROUNDING)
    low = np.zeros(len(upper))
    high = np.zeros(len(upper))
    short = np.flatnonzero(need > 0)
    if not len(short):
        return Row(lower=low, upper=high)
    if not len(rate):
        low[short] = high[short] = np.inf
        return Row(lower=low, upper=high)
    need, up, down = need[short], upper[short], lower[short]
    enough = saved[up, -1] - saved[down, -1] >= need
    first, last = np.zeros(len(short), dtype=np.int64), np.full(len(short), len(rate) - 1)
    for _ in range(len(rate).bit_length()):
        middle = (first + last) // 2
        covers = saved[up, middle] - saved[down, middle] >= need
        first, last = np.where(covers, first, np.minimum(middle + 1, last)), np.where(covers, middle, last)
    over = saved[up, last] - saved[down, last] - need
    rounded = extra[up, last] - extra[down, last]
    high[short] = np.where(enough, rounded, np.inf)
    low[short] = np.where(enough, rounded - over * rate[last], np.inf)
    return Row(lower=low, upper=high)


def _edge_bytes(problem: PiperProblem, node: int, variant: Variant, inside: set[int]) -> float:
    """Bytes over the edges between `node` and what is not `inside`."""
    total = 0.0
    forward, backward = dict(variant.forward_bytes), dict(variant.backward_bytes)
    for edge in problem.edges:
        if edge.target == node and edge.source not in inside:
            total += 2 * (edge.bytes + forward.get(edge.source, 0.0))
        if edge.source == node and edge.target not in inside:
            total += 2 * (edge.bytes + backward.get(edge.target, 0.0))
    return total
