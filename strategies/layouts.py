"""The layouts a search may use: for each degree and axis the best splits of all block classes, joined at the borders.

Values that pass between blocks lie whole or cut on one dim. Borders that must lie alike (all inputs that some class
takes from several makers, all blocks of a class) form a group; every class has a table of seconds over the states of
its groups, from `sharding`; the sum over all blocks is minimised exactly by eliminating one group after the other.

Two layouts of each are made: the fastest, and the fastest where a device's memory is worth the seconds of a row; of
unlike devices two for each class of them (`lineups.classes`).

`axes` says what each axis may cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from placer.costs import Costs
from placer.graph import BlockClass, Graph, Tensor
from placer.plans import Layout, Split
from placer.rules.experts import expert_counts, overload
from placer.search import Pins, Problem
from placer.splitting import cut_experts, own_rows_class
from placer.strategies.axes import DIMS, WHOLE, Axis, longest
from placer.strategies.expert_places import expert_order
from placer.strategies.lineups import Unit, classes, units
from placer.strategies.sharding import Border, Sharded, best_split
from placer.strategies.space import powers_of_two
from placer.strategies.split_prices import Prices, Rule

# Tokens of a row from which the sequence axis is searched unpinned: attention's own products are s / 6 h of a layer's
# others (arXiv:2104.04473, appendix), then two thirds at a width h of 4,096, and dropping the cut of weights may pay.
LONG = 16384
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stand:
    """A replica that splits are priced for, and the rows of a microbatch."""

    unit: Unit
    rows: int


def layouts(problem: Problem, costs: Costs) -> tuple[Layout, ...]:
    """The layouts of all degrees and axes the pins allow that cut something, in order of degree.

    When the problem's seconds are over, those made so far, at least the first.
    """
    made = _Borders(problem)
    found: list[Layout | None] = []
    for degree, axis in _wanted(problem):
        if found and problem.spent:
            break
        if axis == "tensor" or any(states != (WHOLE,) for states in made.states(degree, axis)):
            for stand in _stands(problem, degree, made.axis(axis)):
                prices = _prices(made, costs, degree, axis, stand)
                dear = _dear(problem, costs, stand.unit[0])
                found += (_layout(made, prices, degree, axis, byte) for byte in (0.0, dear))
    return tuple(dict.fromkeys(layout for layout in found if layout is not None))


def _stands(problem: Problem, degree: int, along: Axis) -> Iterator[_Stand]:
    """One replica of each class of devices, with rows as where the class is alone and as where all are used."""
    own = classes(problem.cluster, degree)
    apart = degree if along.apart else 1
    for each in own:
        sizes = (problem.cluster.size, len(each) * degree if len(own) > 1 else problem.cluster.size)
        for rows in sorted({max(1, min(MOST_ROWS, problem.rows * degree // apart // size)) for size in sizes}):
            yield _Stand(unit=each[0], rows=rows)


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
    for degree, axis in product(degrees(problem), DIMS):
        if not pinned[axis] and not _searched(problem, axis):
            continue
        if pinned[axis] in (None, degree) and all(other in (None, 1) for a, other in pinned.items() if a != axis):
            yield degree, axis


def _searched(problem: Problem, axis: str) -> bool:
    """Whether an axis is searched that nobody pinned."""
    if axis == "expert":
        return bool(expert_counts(problem.graph))
    return axis in ("tensor", "height") or (axis == "sequence" and longest(problem.graph) >= LONG)


def ruled_layout(problem: Problem, costs: Costs, degree: int, rule: Rule, *, cut: bool) -> Layout | None:
    """The best tensor layout whose ops do as `rule` says; between blocks values are cut where they can be, or whole.

    None where no op is cut, or the rule leaves no layout.
    """
    made = _Borders(problem)
    states = [allowed[-1:] if cut else allowed[:1] for allowed in made.states(degree, "tensor")]
    stand = next(_stands(problem, degree, made.axis("tensor")))
    return _layout(made, _prices(made, costs, degree, "tensor", stand, rule), degree, "tensor", 0.0, states=states)


def _prices(
    made: _Borders, costs: Costs, degree: int, axis: str, stand: _Stand, rule: Rule | None = None
) -> dict[int, Prices]:
    """The prices of each block class, in the order of blocks."""
    problem, along = made.problem, made.axis(axis)
    apart, loads = degree if along.apart else 1, problem.settings.expert_loads
    return {
        kind: Prices(
            costs, own_rows_class(problem.graph.classes[kind], apart), device=stand.unit[0], degree=degree,
            rows=stand.rows, microbatches=MICROBATCHES, axis=along, rule=rule, devices=stand.unit,
            load=overload(loads, expert_order(loads, degree), degree),
        )
        for kind in dict.fromkeys(block.kind for block in problem.graph.blocks)
    }  # fmt: skip


def _layout(
    made: _Borders, prices: dict[int, Prices], degree: int, axis: str, byte: float, *,
    states: Sequence[tuple[str, ...]] | None = None,
) -> Layout | None:  # fmt: skip
    """The best layout of one degree and axis; None where every block is best left whole."""
    problem, states = made.problem, made.states(degree, axis) if states is None else states
    counts = Counter(block.kind for block in problem.graph.blocks)
    order = expert_order(problem.settings.expert_loads, degree)
    tables = {kind: _table(made, kind, states, own.weighing(byte)) for kind, own in prices.items()}
    factors = [
        _Factor(groups=made.own[kind], seconds={key: count * best.seconds for key, best in tables[kind].items()})
        for kind, count in counts.items()
    ]
    best = _best(factors, states)
    if best is None:
        return None
    splits: list[Split | None] = [None] * len(problem.graph.classes)
    for kind, factor in zip(counts, factors, strict=True):
        split = tables[kind][tuple(best[group] for group in factor.groups)].split
        splits[kind] = _placed(problem.graph.classes[kind], split, order)
    if all(name in (WHOLE, "deferred") for split in splits if split for name in split.choices):
        return None
    return Layout(axis=axis, degree=degree, splits=tuple(splits))


def _placed(kind: BlockClass, split: Split, order: tuple[int, ...]) -> Split:
    """The split with its experts in that order, where it cuts any."""
    return replace(split, experts=order) if order and cut_experts(kind, split) else split


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

    def axis(self, name: str) -> Axis:
        """The axis of that name."""
        return Axis(name=name, images=self.images)

    def states(self, degree: int, axis: str) -> list[tuple[str, ...]]:
        """The states of each group: whole, and cut where all of it can be. What the model gets and returns is whole."""
        allowed: list[tuple[str, ...]] = [(WHOLE,)] * len(set(self.groups.values()))
        for group, tensors in self._members().items():
            allowed[group] = self.axis(axis).states(tensors, degree)
        return allowed

    def _members(self) -> dict[int, list[Tensor]]:
        graph = self.problem.graph
        whole = {_maker(graph, reference) for reference in graph.outputs if _is_made(reference)}
        whole |= {
            _Place(block.kind, False, number)
            for block in graph.blocks
            for number, reference in enumerate(block.inputs)
            if not _is_made(reference)
        }
        fixed = {self.groups[place] for place in whole if place in self.groups}
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
