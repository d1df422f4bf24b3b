"""The layouts a search may use: for each degree and axis the best splits of all block classes, joined at the borders.

Values that pass between blocks lie whole or cut on one dim. Borders that must lie alike (all inputs that some class
takes from several makers, all blocks of a class) form a group; every class has a table of seconds over the states of
its groups, from `block_ilp`; the sum over all blocks is minimised exactly by eliminating one group after the other.

Two layouts of each are made: the fastest, and the fastest where a device's memory is worth the seconds of a row; where
a plan without pipeline has few microbatches also the fastest of so few, over which updates and sums of gradients are
divided. Of unlike devices these are made for each class of them (`group_classes`). `roomy_layouts` are those to try
where no plan of these fits: with memory dearer still, and with replicas over several nodes.

`axes` says what each axis may cut. Along two axes the layout along the outer one is made first, and the ops so cut are
cut again along the inner one, each dim once; the best for both at once may be another.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod

from placer.costs.costs import Costs
from placer.graph import BlockClass
from placer.plans.plan import Layout, Split
from placer.rules.expert_loads import expert_counts, overload
from placer.rules.two_axis_layouts import axis_names
from placer.search.problem import Pins, Problem
from placer.spmd.device_rows import own_rows_class
from placer.spmd.expert_order import cut_experts
from placer.strategies.background import MANY_DEVICES, from_both_ends
from placer.strategies.intra_op.block_borders import Borders, Factor, best_states
from placer.strategies.intra_op.block_ilp import BestSplit, best_split
from placer.strategies.intra_op.expert_assignment import expert_order
from placer.strategies.intra_op.shared_layouts import shared_layouts
from placer.strategies.intra_op.split_costs import MICROBATCHES, Rule, SplitCosts, SplitReplica
from placer.strategies.space.axes import DIMS, OUTER_FIRST, WHOLE, Axes, devices_of, longest_row
from placer.strategies.space.device_orders import group_classes, group_count
from placer.strategies.space.outline import powers_of_two, whole_batch

# Tokens of a row from which the sequence axis is searched unpinned: attention's own products are s / 6 h of a layer's
# others (arXiv:2104.04473, appendix), then two thirds at a width h of 4,096, and dropping the cut of weights may pay.
LONG = 16384
# Rows of the microbatches that splits are priced for: few, as where a replica is several devices.
MOST_ROWS = 4
# Of so few microbatches a step that is far off.
FEW_MICROBATCHES = 2
# How much dearer memory is in layouts for what fits in no others.
SCARCE = 100.0


@dataclass(frozen=True, slots=True)
class _ByteWorth:
    """Seconds that a byte is worth, microbatches among which what is done once a step is divided, and whether blocks
    run again and keep as little of what enters them as they can."""

    byte: float
    microbatches: int
    again: bool = False


def halfway(problem: Problem) -> Problem:
    """The problem with half of the seconds that are left: layouts made in these leave the others for the search."""
    now = time.perf_counter()
    return problem if problem.until is None else replace(problem, until=now + (problem.until - now) / 2)


def layouts(problem: Problem, costs: Costs) -> tuple[Layout, ...]:
    """The layouts of all degrees and axes the pins allow that cut something, in order of degree.

    When the problem's seconds are over, those made so far, at least the first; where the batch is not divided, so that
    one replica does all the work, they are then made from the largest degree down.
    """
    return _made(problem, costs, degrees(problem), scarce=False)


def pinned_layouts(problem: Problem) -> tuple[Layout | None, ...]:
    """The layouts of pinned axes; no layout where no axis is pinned."""
    if all(degree in (None, 1) for _, degree in problem.pins.axes):
        return (None,)
    return layouts(problem, problem.costs)


def roomy_layouts(problem: Problem, costs: Costs) -> tuple[Layout, ...]:
    """Layouts that hold less on a device than those of `layouts`, for problems where none of these fits; where no axis
    is pinned also of replicas over several nodes."""
    pinned = any(count is not None for _, count in problem.pins.axes)
    wider = () if pinned else _degrees_over_nodes(problem)
    return _made(problem, costs, (*degrees(problem), *wider), scarce=True)


def _made(problem: Problem, costs: Costs, counts: tuple[int, ...], *, scarce: bool) -> tuple[Layout, ...]:
    borders = Borders(problem)
    asked = [
        (axes, replica)
        for axes in _wanted(problem, counts)
        if all(_cuts_values(borders, axis, count) for axis, count in axes)
        for replica in _replicas(problem, axes)
    ]
    if problem.until is not None and whole_batch(problem):
        asked.sort(key=lambda one: -devices_of(one[0]))
    make = partial(_of, borders, costs, scarce)
    found = from_both_ends(asked, make, apart=problem.cluster.size >= MANY_DEVICES, over=lambda: problem.spent)
    return tuple(dict.fromkeys(layout for each in found for layout in each))


def _of(borders: Borders, costs: Costs, scarce: bool, asked: tuple[Axes, SplitReplica]) -> tuple[Layout, ...]:
    """The layouts along these axes."""
    axes, replica = asked
    make = partial(_anew, borders, costs, scarce, axes, replica)
    return shared_layouts(borders.problem, costs, (axes, replica, scarce), make)


def _anew(borders: Borders, costs: Costs, scarce: bool, axes: Axes, replica: SplitReplica) -> tuple[Layout, ...]:
    """The same, made."""
    replica = replace(replica, rows=1) if scarce else replica
    worths = _worths(_dear(borders.problem, costs, replica), replica, scarce)
    along = _along_one if len(axes) == 1 else _along_two
    found = along(borders, costs, axes, replica, worths)
    return tuple(layout for layout in found if layout is not None)


def _worths(dear: float, replica: SplitReplica, scarce: bool) -> tuple[_ByteWorth, ...]:
    """What bytes and steps may be worth, of each of which there is a layout."""
    if scarce:
        dearer = (_ByteWorth(times * dear, MICROBATCHES, again=True) for times in (1.0, SCARCE))
        return (_ByteWorth(0.0, MICROBATCHES), *dearer)
    few = (_ByteWorth(0.0, replica.microbatches),) if replica.microbatches <= FEW_MICROBATCHES else ()
    return (_ByteWorth(0.0, MICROBATCHES), _ByteWorth(dear, MICROBATCHES), *few)


def _cuts_values(borders: Borders, axis: str, count: int) -> bool:
    """Whether values between blocks may be cut, without which only a tensor axis is of use."""
    return axis == "tensor" or any(states != (WHOLE,) for states in borders.states(count, axis))


def _along_one(
    borders: Borders, costs: Costs, axes: Axes, replica: SplitReplica, worths: Sequence[_ByteWorth]
) -> Iterator[Layout | None]:
    """The layouts along one axis, one for each of what bytes and steps are worth, as many as there are seconds for."""
    ((axis, degree),) = axes
    prices = _prices(borders, costs, axes, replica)
    for number, worth in enumerate(worths):
        if number and borders.problem.spent:
            return
        yield _layout(borders, prices, axes, worth, borders.states(degree, axis))


def _along_two(
    borders: Borders, costs: Costs, axes: Axes, replica: SplitReplica, worths: Sequence[_ByteWorth]
) -> Iterator[Layout | None]:
    """The layouts along two axes, as `_along_one`: what is cut along the outer one is cut again along the inner one."""
    outer, (axis, fast) = axes[:1], axes[1]
    line = replace(replica, devices=replica.devices[::fast])
    for first in dict.fromkeys(_along_one(borders, costs, outer, line, worths)):
        if first is None:
            continue
        prices = _prices(borders, costs, axes, replica, first=first)
        states = borders.states_within(first, fast, axis)
        for worth in worths:
            yield _layout(borders, prices, axes, worth, states)


def _replicas(problem: Problem, axes: Axes) -> Iterator[SplitReplica]:
    """One replica of each class of devices, with rows as where the class is alone and as where all are used."""
    degree, apart = devices_of(axes), dict(axes).get("expert", 1)
    own = group_classes(problem.cluster, degree)
    if whole_batch(problem):  # one microbatch of all rows, on one replica
        rows = max(1, problem.rows // apart)
        yield from (SplitReplica(devices=each[0], rows=rows, microbatches=1) for each in own)
        return
    for each in own:
        sizes = (problem.cluster.size, len(each) * degree if len(own) > 1 else problem.cluster.size)
        for every in sorted({max(1, problem.rows * degree // apart // size) for size in sizes}):
            rows = min(MOST_ROWS, every)
            yield SplitReplica(devices=each[0], rows=rows, microbatches=min(MICROBATCHES, every // rows))


def _dear(problem: Problem, costs: Costs, replica: SplitReplica) -> float:
    """Seconds that a byte of a device is worth where all its memory is worth those of a row.

    Of a batch that is not divided all rows are in memory at once, and what does not fit runs again: worth those of all.
    """
    device = replica.devices[0]
    whole = costs.block_times.of(device, problem.rows if whole_batch(problem) else 1)
    return (whole.forward[-1] + whole.backward[-1]) / problem.cluster.devices[device].memory_bytes


def pinned_degree(pins: Pins) -> int:
    """The devices of a replica that pins demand; 1 where they demand none."""
    return prod(degree or 1 for _, degree in pins.axes)


def degrees(problem: Problem) -> tuple[int, ...]:
    """Numbers of devices a replica may have, above 1: powers of two up to the largest node, and what is pinned."""
    largest = max(node.size for node, _ in problem.cluster.groups)
    likely = {*powers_of_two(largest), pinned_degree(problem.pins)} - {1}
    return tuple(d for d in sorted(likely) if group_count(problem.cluster, d))


def _degrees_over_nodes(problem: Problem) -> tuple[int, ...]:
    """Numbers of devices of a replica that fill several whole nodes: times powers of two, and all."""
    largest, cluster = max(node.size for node, _ in problem.cluster.groups), problem.cluster
    likely = {*(largest * nodes for nodes in powers_of_two(cluster.size // largest)), cluster.size}
    return tuple(d for d in sorted(likely) if d > largest and d % largest == 0 and group_count(cluster, d))


def _wanted(problem: Problem, counts: Sequence[int]) -> Iterator[Axes]:
    """The axes the pins allow and how many devices are along each: all that are pinned, or any one of these `counts`.

    Where nothing is pinned to more than 1, also experts x tensor where there are more devices than experts.
    """
    pinned = {axis: count for axis, count in problem.pins.axes if count is not None}
    split = tuple((axis, pinned[axis]) for axis in OUTER_FIRST if pinned.get(axis, 1) > 1)
    if len(split) > 1:
        yield split
        return
    for degree, axis in product(counts, DIMS):
        allowed = pinned.get(axis, degree) == degree if axis in pinned else _searched(problem, axis)
        if allowed and split in ((), ((axis, degree),)):
            yield ((axis, degree),)
    if not split and not {"expert", "tensor"} & pinned.keys():
        yield from _experts_by_tensor(problem, counts)


def _experts_by_tensor(problem: Problem, counts: Sequence[int]) -> Iterator[Axes]:
    """Numbers of devices that are more than a layer has experts: as many along `expert` as can have one."""
    most = min(expert_counts(problem.graph), default=0)
    for degree in counts:
        along = max((count for count in range(2, most + 1) if degree % count == 0), default=degree)
        if most < degree != along:
            yield (("expert", along), ("tensor", degree // along))


def _searched(problem: Problem, axis: str) -> bool:
    """Whether an axis is searched that nobody pinned."""
    if axis == "expert":
        return bool(expert_counts(problem.graph))
    return axis in ("tensor", "height") or (axis == "sequence" and longest_row(problem.graph) >= LONG)


def ruled_layout(problem: Problem, costs: Costs, degree: int, rule: Rule, *, cut: bool) -> Layout | None:
    """The best tensor layout whose ops do as `rule` says; between blocks values are cut where they can be, or whole.

    None where no op is cut, or the rule leaves no layout.
    """
    borders, axes = Borders(problem), (("tensor", degree),)
    states = [allowed[-1:] if cut else allowed[:1] for allowed in borders.states(degree, "tensor")]
    prices = _prices(borders, costs, axes, next(_replicas(problem, axes)), rule=rule)
    return _layout(borders, prices, axes, _ByteWorth(0.0, MICROBATCHES), states)


def _prices(
    borders: Borders, costs: Costs, axes: Axes, replica: SplitReplica, *, rule: Rule | None = None,
    first: Layout | None = None,
) -> dict[int, SplitCosts]:  # fmt: skip
    """The prices of each block class, in the order of blocks; `first` is how they lie along the outer of two axes."""
    problem, (axis, count), along = borders.problem, axes[-1], dict(axes)
    loads, experts = problem.settings.expert_loads, along.get("expert", count)
    load = overload(loads, expert_order(loads, experts), experts)
    replica = replace(replica, axis=borders.axis(axis), fast=count, load=load)
    return {
        kind: SplitCosts(
            costs=costs, kind=own_rows_class(problem.graph.classes[kind], along.get("expert", 1)), replica=replica,
            rule=rule, outer=_names(first, kind),
        )
        for kind in dict.fromkeys(block.kind for block in problem.graph.blocks)
    }  # fmt: skip


def _names(layout: Layout | None, kind: int) -> tuple[str, ...]:
    split = None if layout is None else layout.splits[kind]
    return () if split is None else split.choices


def _layout(
    borders: Borders, prices: dict[int, SplitCosts], axes: Axes, worth: _ByteWorth, states: Sequence[tuple[str, ...]]
) -> Layout | None:
    """The best layout along some axes; None where every block is best left whole along the last."""
    problem, along = borders.problem, dict(axes)
    counts = Counter(block.kind for block in problem.graph.blocks)
    order = expert_order(problem.settings.expert_loads, along.get("expert", axes[-1][1]))
    if worth.again:
        states = [allowed[-1:] for allowed in states]
    tables = {
        kind: _table(borders, kind, states, own.weighing(worth.byte, worth.microbatches, worth.again * counts[kind]))
        for kind, own in prices.items()
    }
    factors = [
        Factor(groups=borders.of_class[kind], seconds={key: count * best.seconds for key, best in tables[kind].items()})
        for kind, count in counts.items()
    ]
    best = best_states(factors, states)
    if best is None:
        return None
    splits: list[Split | None] = [None] * len(problem.graph.classes)
    for kind, factor in zip(counts, factors, strict=True):
        split = tables[kind][tuple(best[group] for group in factor.groups)].split
        splits[kind] = _placed(problem.graph.classes[kind], split, order)
    if all(axis_names(name)[-1] in (WHOLE, "deferred") for split in splits if split for name in split.choices):
        return None
    one = Layout(axis=axes[0][0], degree=devices_of(axes), splits=tuple(splits))
    return one if len(axes) == 1 else replace(one, inner_axis=axes[1][0], inner=axes[1][1])


def _placed(kind: BlockClass, split: Split, order: tuple[int, ...]) -> Split:
    """The split with its experts in that order, where it cuts any."""
    return replace(split, experts=order) if order and cut_experts(kind, split) else split


def _table(
    borders: Borders, kind: int, states: Sequence[tuple[str, ...]], prices: SplitCosts
) -> dict[tuple[str, ...], BestSplit]:
    """The best split of a class for all states of its groups."""
    found = {}
    for chosen in product(*(states[group] for group in borders.of_class[kind])):
        known = dict(zip(borders.of_class[kind], chosen, strict=True))
        best = best_split(prices.kind, borders.border(kind, known, prices.inner), prices)
        if best is not None:
            found[chosen] = best
    return found
