"""The layouts a search may use: for each degree and axis the best splits of all block classes, joined at the borders.

Values that pass between blocks lie whole or cut on one dim. Borders that must lie alike (all inputs that some class
takes from several makers, all blocks of a class) form a group; every class has a table of seconds over the states of
its groups, from `sharding`; the sum over all blocks is minimised exactly by eliminating one group after the other.

Two layouts of each are made: the fastest, and the fastest where a device's memory is worth the seconds of a row; of
unlike devices two for each class of them (`lineups.classes`).

    tensor    values of three dims (batch, sequence, hidden) whole or cut on 1; others whole
    height    images (batch, channels, height, width) whole or cut on 2
    width     images whole or cut on 3; only where it is pinned
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from placer.costs import Costs
from placer.graph import Graph, Tensor
from placer.plans import Layout, Split
from placer.search import Pins, Problem
from placer.strategies.lineups import Unit, classes, units
from placer.strategies.sharding import Border, Sharded, best_split
from placer.strategies.space import powers_of_two
from placer.strategies.split_prices import Prices, Rule

WHOLE = "whole"
# axis -> the dim on which values of so many dims may be cut.
AXES: dict[str, dict[int, int]] = {"tensor": {3: 1}, "height": {4: 2}, "width": {4: 3}}
# Rows of the microbatches that splits are priced for: few, as where a replica is several devices.
MOST_ROWS = 4
# Microbatches among which the cost of updating is divided when splits are compared.
MICROBATCHES = 8


@dataclass(frozen=True, slots=True)
class _Place:
    """A border of a block class: its number-th input or output."""

    kind: int
    output: bool
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Factor:
    """Seconds of all blocks of a class by the states of its groups; absent where there is no split."""

    groups: tuple[int, ...]
    seconds: dict[tuple[str, ...], float]


def layouts(problem: Problem, costs: Costs) -> tuple[Layout, ...]:
    """The layouts of all degrees and axes the pins allow that cut something, in order of degree."""
    made = _Borders(problem)
    found = [
        _layout(made, costs, degree, axis, unit, rows, byte)
        for degree, axis in _wanted(problem)
        for unit, rows in _stands(problem, degree)
        for byte in (0.0, _dear(problem, costs, unit[0]))
        if axis == "tensor" or any(len(states) > 1 for states in made.states(degree, axis))
    ]
    return tuple(dict.fromkeys(layout for layout in found if layout is not None))


def _stands(problem: Problem, degree: int) -> Iterator[tuple[Unit, int]]:
    """The replicas that splits are priced for, with the rows of a microbatch: one of each class of devices.

    Rows as where the class is alone, and as where all devices are used.
    """
    own = classes(problem.cluster, degree)
    for each in own:
        sizes = (problem.cluster.size, len(each) * degree if len(own) > 1 else problem.cluster.size)
        for rows in sorted({max(1, min(MOST_ROWS, problem.rows * degree // size)) for size in sizes}):
            yield each[0], rows


def _dear(problem: Problem, costs: Costs, device: int) -> float:
    """Seconds that a byte of a device is worth where all its memory is worth those of a row."""
    whole = costs.profiles.of(device, 1)
    return (whole.forward[-1] + whole.backward[-1]) / problem.cluster.devices[device].memory_bytes


def pinned_degree(pins: Pins) -> int:
    """The devices of a replica that pins demand; 1 where they demand none."""
    return max(degree or 1 for _, degree in pins.axes)


def degrees(problem: Problem) -> tuple[int, ...]:
    """Numbers of devices a replica may have, above 1: powers of two up to the largest node, and what is pinned."""
    largest = max(node.size for node, _ in problem.cluster.groups)
    likely = {*powers_of_two(largest), *(degree for _, degree in problem.pins.axes if degree)} - {1}
    return tuple(d for d in sorted(likely) if units(problem.cluster, d))


def _wanted(problem: Problem) -> Iterator[tuple[int, str]]:
    """Degrees and axes the pins allow: one axis may be more than 1."""
    pinned = dict(problem.pins.axes)
    for degree, axis in product(degrees(problem), AXES):
        if axis == "width" and not pinned[axis]:  # what width can do height can
            continue
        if pinned[axis] in (None, degree) and all(other in (None, 1) for a, other in pinned.items() if a != axis):
            yield degree, axis


def ruled_layout(problem: Problem, costs: Costs, degree: int, rule: Rule, *, cut: bool) -> Layout | None:
    """The best tensor layout whose ops do as `rule` says; between blocks values are cut where they can be, or whole.

    None where no op is cut, or the rule leaves no layout.
    """
    made = _Borders(problem)
    states = [allowed[-1:] if cut else allowed[:1] for allowed in made.states(degree, "tensor")]
    unit, rows = next(_stands(problem, degree))
    return _layout(made, costs, degree, "tensor", unit, rows, 0.0, rule=rule, states=states)


def _layout(
    made: _Borders, costs: Costs, degree: int, axis: str, unit: Unit, rows: int, byte: float, *,
    rule: Rule | None = None, states: Sequence[tuple[str, ...]] | None = None,
) -> Layout | None:  # fmt: skip
    """The best layout of one degree and axis; None where every block is best left whole."""
    problem, states = made.problem, made.states(degree, axis) if states is None else states
    counts = Counter(block.kind for block in problem.graph.blocks)
    tables: dict[int, dict[tuple[str, ...], Sharded]] = {}
    for kind in counts:
        prices = Prices(
            costs, problem.graph.classes[kind], device=unit[0], degree=degree, rows=rows,
            microbatches=MICROBATCHES, byte=byte, barred=made.barred(axis), devices=unit,
            rule=rule,
        )  # fmt: skip
        tables[kind] = _table(made, kind, states, prices)
    factors = [
        _Factor(groups=made.own[kind], seconds={key: count * best.seconds for key, best in tables[kind].items()})
        for kind, count in counts.items()
    ]
    best = _best(factors, states)
    if best is None:
        return None
    splits: list[Split | None] = [None] * len(problem.graph.classes)
    for kind, factor in zip(counts, factors, strict=True):
        splits[kind] = tables[kind][tuple(best[group] for group in factor.groups)].split
    if all(name in (WHOLE, "deferred") for split in splits if split for name in split.choices):
        return None
    return Layout(axis=axis, degree=degree, splits=tuple(splits))


def _table(
    made: _Borders, kind: int, states: Sequence[tuple[str, ...]], prices: Prices
) -> dict[tuple[str, ...], Sharded]:
    """The best split of a class for all states of its groups."""
    found = {}
    for chosen in product(*(states[group] for group in made.own[kind])):
        known = dict(zip(made.own[kind], chosen, strict=True))
        best = best_split(prices.kind, made.border(kind, known), prices)
        if best is not None:
            found[chosen] = best
    return found


class _Borders:
    """The groups of borders that lie alike."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.groups = _groups(problem)
        self.own = {kind: self._own(kind) for kind in {block.kind for block in problem.graph.blocks}}

    def border(self, kind: int, known: dict[int, str]) -> Border:
        """The border of a class whose groups lie as `known` says."""
        shape = self.problem.graph.classes[kind]
        texts = [
            tuple(known.get(self.groups.get(_Place(kind, output, number), -1), WHOLE) for number in range(count))
            for output, count in ((False, len(shape.inputs)), (True, len(shape.outputs)))
        ]
        return Border(inputs=texts[0], outputs=texts[1])

    @property
    def images(self) -> bool:
        """Whether images pass between blocks."""
        return any(len(tensor.shape) == 4 for tensors in self._members().values() for tensor in tensors)

    def barred(self, axis: str) -> frozenset[int]:
        """The dims of images that an axis does not cut: height and width, unless it is theirs."""
        return frozenset({2, 3} - {AXES[axis].get(4)}) if self.images else frozenset()

    def states(self, degree: int, axis: str) -> list[tuple[str, ...]]:
        """The states of each group: whole, and cut where every value of it can be. What the model returns is whole."""
        allowed: list[tuple[str, ...]] = [(WHOLE,)] * len(set(self.groups.values()))
        for group, tensors in self._members().items():
            dims = {AXES[axis].get(len(tensor.shape)) for tensor in tensors}
            dim = dims.pop() if len(dims) == 1 else None
            if dim is not None and all(_can_cut(tensor, dim, degree) for tensor in tensors):
                allowed[group] = (WHOLE, f"cut {dim}")
        return allowed

    def _members(self) -> dict[int, list[Tensor]]:
        graph = self.problem.graph
        returned = {_maker(graph, reference) for reference in graph.outputs if _is_made(reference)}
        fixed = {self.groups[place] for place in returned if place in self.groups}
        found: dict[int, list[Tensor]] = {}
        for place, group in self.groups.items():
            kind = graph.classes[place.kind]
            tensor = kind.tensor(kind.outputs[place.number]) if place.output else kind.inputs[place.number]
            if group not in fixed and isinstance(tensor, Tensor):
                found.setdefault(group, []).append(tensor)
        return found

    def _own(self, kind: int) -> tuple[int, ...]:
        return tuple(sorted({group for place, group in self.groups.items() if place.kind == kind}))


def _best(factors: list[_Factor], states: Sequence[tuple[str, ...]]) -> dict[int, str] | None:
    """The states of all groups of the smallest sum: groups are eliminated one by one, then read off backwards."""
    eliminated: list[tuple[int, tuple[int, ...], dict[tuple[str, ...], str]]] = []
    left = factors
    for group in range(len(states)):
        touching = [factor for factor in left if group in factor.groups]
        others = tuple(sorted({g for factor in touching for g in factor.groups} - {group}))
        made, choice = _eliminated(group, others, touching, states)
        eliminated.append((group, others, choice))
        left = [factor for factor in left if group not in factor.groups] + [_Factor(groups=others, seconds=made)]
    if any(not factor.seconds for factor in left):
        return None
    found: dict[int, str] = {}
    for group, others, choice in reversed(eliminated):
        found[group] = choice[tuple(found[g] for g in others)]
    return found


def _eliminated(
    group: int, others: tuple[int, ...], factors: list[_Factor], states: Sequence[tuple[str, ...]]
) -> tuple[dict[tuple[str, ...], float], dict[tuple[str, ...], str]]:
    """The smallest sum over the states of `group` for all states of `others`, and the state that has it."""
    seconds: dict[tuple[str, ...], float] = {}
    choice: dict[tuple[str, ...], str] = {}
    for chosen in product(*(states[g] for g in others)):
        known = dict(zip(others, chosen, strict=True))
        for state in states[group]:
            known[group] = state
            keys = [(factor, tuple(known[g] for g in factor.groups)) for factor in factors]
            if all(key in factor.seconds for factor, key in keys):
                total = sum(factor.seconds[key] for factor, key in keys)
                if total < seconds.get(chosen, float("inf")):
                    seconds[chosen], choice[chosen] = total, state
    return seconds, choice


def _groups(problem: Problem) -> dict[_Place, int]:
    """The group of every border between blocks; borders that meet in some block lie alike."""
    graph, parent = problem.graph, dict[_Place, _Place]()

    def root(place: _Place) -> _Place:
        while parent.setdefault(place, place) != place:
            place = parent[place]
        return place

    for block in graph.blocks:
        for number, reference in enumerate(block.inputs):
            if _is_made(reference):
                parent[root(_Place(block.kind, False, number))] = root(_maker(graph, reference))
    numbers: dict[_Place, int] = {}
    return {place: numbers.setdefault(root(place), len(numbers)) for place in list(parent)}


def _is_made(reference: str) -> bool:
    """Whether a block makes the value, not the prologue or the batch."""
    return reference.startswith("b") and not reference.startswith("b-1.")


def _maker(graph: Graph, reference: str) -> _Place:
    block, output = (int(part) for part in reference[1:].split("."))
    return _Place(graph.blocks[block].kind, True, output)


def _can_cut(tensor: Tensor, dim: int, degree: int) -> bool:
    return tensor.requires_grad and tensor.shape[dim].per_row == 0 and tensor.shape[dim].fixed % degree == 0
