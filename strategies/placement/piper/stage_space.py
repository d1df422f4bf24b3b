"""What memory costs a stage: the least time beyond its cheapest variants within the memory, as tables over all stages.

For tensor degree t, y microbatches kept and every stage at once: the steps from cheaper to smaller variants are sorted
once for the whole graph; their running sums over the nodes of each ideal give by difference those over each stage, and
halving finds where they cover what is missing. That is the optimum of the relaxed knapsack, never too much. Where the
answer matters `cheapest_choice` decides, and the table keeps its word.
"""

from __future__ import annotations

import numpy as np

from placer.io.memo import remembered
from placer.placement.published_planners.piper import PiperEdge, PiperProblem, Variant
from placer.strategies.engine.arrays import Flags, Floats, Ints
from placer.strategies.engine.knapsack import ROUNDING, KnapsackChoice, Steps, cheapest_choice, steps_down
from placer.strategies.placement.piper.families import IdealFamily
from placer.strategies.placement.piper.stages import degrees, offer, stage_pairs


class StageSpace:
    """The stages there may be within `limit`, and the rows asked for so far, by (degrees, y).

    Degrees share a row where their costs differ by a factor only.
    """

    def __init__(self, problem: PiperProblem, family: IdealFamily, limit: float, *, rounded: bool = False):
        self.problem, self.family, self.rounded = problem, family, rounded
        self.by = by = degrees(problem)
        self.pairs = pairs = stage_pairs(problem, family, by, limit)
        self._offers = {int(t): offer(problem, int(t)) for t in np.unique(by.tensor)}
        self.key = np.array([self._shared_key(k) for k in range(len(by.data))], dtype=np.int64)
        self._at = np.full((max(1, len(by.data)), problem.devices + 2), -1)
        self._lower = np.empty((64, len(pairs.upper)))
        self._rows = 0
        self._edges = {n.id: tuple(e for e in problem.edges if n.id in (e.source, e.target)) for n in problem.nodes}

    def lower(self, degrees: Ints, y: Ints, pair: Ints) -> Floats:
        """`data` x the extra time of each stage on its degrees with `y` microbatches kept; inf: cannot.

        At least that, or, where the tables are `rounded`, the time of some choice of variants.
        """
        key = self.key[degrees]
        row = self._at[key, y]
        if row.min(initial=0) < 0:
            missing = row < 0
            self._add(np.unique(key[missing] * self._at.shape[1] + y[missing]))
            row = self._at[key, y]
        found: Floats = self._lower[row, pair]
        return found

    @remembered
    def decided(self, pair: int, degrees: int, y: int) -> tuple[KnapsackChoice, float]:
        """The cheapest variants of a stage, exact, and its time with them; its row is brought up to date.

        They are indices of those of each node, nodes in ascending order of their index.
        """
        data, tensor = int(self.by.data[degrees]), int(self.by.tensor[degrees])
        nodes = self.nodes(pair)
        cost = self._offers[tensor].cost(self.problem, data)[nodes] + self._border(nodes, tensor)
        choice = cheapest_choice(cost, self._memory(tensor, y)[nodes], self.problem.memory_bytes)
        cheapest, row = float(self.pairs.least[pair, degrees]) * data, self._at[self.key[degrees], y]
        known = choice.cost - cheapest if self.rounded else max(self._lower[row, pair], choice.bound - cheapest)
        self._lower[row, pair] = known
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
                table[row, column] = _edge_bytes(self._edges[node], node, variant, inside) / self.problem.bandwidth
        return table

    def _add(self, codes: Ints) -> None:
        """Adds the rows of these (key, y)."""
        while self._rows + len(codes) > len(self._lower):
            self._lower = np.concatenate((self._lower, np.empty_like(self._lower)))
        for code in codes.tolist():
            key, y = divmod(code, self._at.shape[1])
            self._lower[self._rows] = self._row(key, y)
            self._at[key, y] = self._rows
            self._rows += 1

    def _row(self, degrees: int, y: int) -> Floats:
        """One row from running sums over ideals."""
        at, data = self._offers[int(self.by.tensor[degrees])], int(self.by.data[degrees])
        size = self._memory(int(self.by.tensor[degrees]), y)
        absent = np.array([0.0] + [np.inf] * (at.time.shape[1] - 1))
        steps = steps_down(np.where(at.runs[:, None], at.cost(self.problem, data), absent), size)
        inside = self.family.inside
        full = inside @ size[np.arange(len(size)), steps.cheapest]
        need = full[self.pairs.upper] - full[self.pairs.lower] - self.problem.memory_bytes * (1 + ROUNDING)
        row = np.zeros(len(need))
        short = np.flatnonzero(need > 0)
        if len(short):
            row[short] = _relaxed(
                need[short], self.pairs.upper[short], self.pairs.lower[short], inside, steps, self.rounded
            )
        return row


def _relaxed(need: Floats, upper: Ints, lower: Ints, inside: Flags, steps: Steps, rounded: bool) -> Floats:
    """The cost of the steps whose running savings cover what each stage lacks, the last in part unless `rounded`."""
    if not len(steps.item):
        return np.full(len(need), np.inf)
    saved = np.cumsum(inside[:, steps.item] * steps.saved, axis=1)
    extra = np.cumsum(inside[:, steps.item] * steps.extra, axis=1)
    found = np.full(len(need), np.inf)
    enough = np.flatnonzero(saved[upper, -1] - saved[lower, -1] >= need)
    need, upper, lower = need[enough], upper[enough], lower[enough]
    first, last = np.zeros(len(need), dtype=np.int64), np.full(len(need), len(steps.item) - 1)
    for _ in range(len(steps.item).bit_length()):
        middle = (first + last) // 2
        covers = saved[upper, middle] - saved[lower, middle] >= need
        first, last = np.where(covers, first, np.minimum(middle + 1, last)), np.where(covers, middle, last)
    over = 0.0 if rounded else saved[upper, last] - saved[lower, last] - need
    found[enough] = extra[upper, last] - extra[lower, last] - over * (steps.extra / steps.saved)[last]
    return found


def _edge_bytes(edges: tuple[PiperEdge, ...], node: int, variant: Variant, inside: set[int]) -> float:
    """Bytes over the edges between `node` and what is not `inside`."""
    total = 0.0
    forward, backward = dict(variant.forward_bytes), dict(variant.backward_bytes)
    for edge in edges:
        if edge.target == node and edge.source not in inside:
            total += 2 * (edge.bytes + forward.get(edge.source, 0.0))
        if edge.source == node and edge.target not in inside:
            total += 2 * (edge.bytes + backward.get(edge.target, 0.0))
    return total
