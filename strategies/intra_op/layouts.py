"""The layouts a search may use: for each degree and axis the best splits of all block classes, joined at the borders.

Values that pass between blocks lie whole or cut on one dim. Borders that must lie alike (all inputs that some class
takes from several makers, all blocks of a class) form a group; every class has a table of seconds over the states of
its groups, from `block_ilp`; the sum over all blocks is minimised exactly by eliminating one group after the other.

Two layouts of each are made: the fastest, and the fastest where a device's memory is worth the seconds of a row; where
a plan without pipeline has few microbatches, or takes hardly longer than so few, also the fastest of these, over which
updates and sums of gradients are divided. Of unlike devices these are made for each class of them (`group_classes`).
`roomy_layouts` are those to try where no plan of these fits: with memory dearer still, and with replicas over several
nodes.

`axes` says what each axis may cut. Along two axes the layout along the outer one is made first, and the ops so cut are
cut again along the inner one, each dim once; the best for both at once may be another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple

from placer.costs.costs import Costs
from placer.io.memo import once
from placer.plans.plan import Layout, apart_along
from placer.rules.expert_loads import expert_counts
from placer.search.problem import Pins, Problem
from placer.strategies.background import MANY_DEVICES, from_both_ends
from placer.strategies.intra_op.best_layout import ByteWorth, LayoutPrices, best_layout
from placer.strategies.intra_op.block_borders import Borders
from placer.strategies.intra_op.shared_layouts import SharedLayouts, keep, shared_layouts
from placer.strategies.intra_op.split_costs import MICROBATCHES, Rule, SplitReplica
from placer.strategies.space.axes import DIMS, OUTER_FIRST, WHOLE, Axes, devices_of, longest_row
from placer.strategies.space.device_orders import group_classes, group_count, node_degrees
from placer.strategies.space.outline import powers_of_two, whole_batch

# Tokens of a row from which the sequence axis is searched unpinned: attention's own products are s / 6 h of a layer's
# others (arXiv:2104.04473, appendix), then two thirds at a width h of 4,096, and dropping the cut of weights may pay.
LONG = 16384
# Rows of the microbatches that splits are priced for: few, as where a replica is several devices.
MOST_ROWS = 4
# Of so few microbatches a step that is far off.
FEW_MICROBATCHES = 2
# Of what bytes and steps may be worth: nothing and many, as where speed is all; and more.
FASTEST, OTHERS = slice(0, 1), slice(1, None)
# How much dearer memory is in layouts for what fits in no others.
SCARCE = 100.0
# Seconds that a byte is worth where a pin wants ops cut that are done sooner whole.
ALL = 1.0


class Asked(NamedTuple):
    """Layouts to be made along some axes, of a replica; part: for which of what bytes and steps may be worth."""

    axes: Axes
    replica: SplitReplica
    part: slice = slice(None)


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
        Asked(axes, replica)
        for axes in _wanted(problem, counts)
        if all(_cuts_values(borders, axis, count) for axis, count in axes)
        for replica in _replicas(problem, costs, axes)
    ]
    apart, hurried = problem.cluster.size >= MANY_DEVICES, problem.until is not None
    if hurried and whole_batch(problem):  # what baselines know is along rows
        asked.sort(key=lambda one: (one.axes[0][0] != "rows", -devices_of(one.axes)))
    if hurried and not (scarce or apart):
        asked = _fastest_first(asked)
    made = from_both_ends(asked, partial(_of, borders, costs, scarce, {}), apart=apart, over=lambda: problem.spent)
    found = [shared for each in made for shared in each]
    keep(problem, found)
    return tuple(dict.fromkeys(layout for shared in found for layout in shared.layouts))


def _fastest_first(asked: Sequence[Asked]) -> list[Asked]:
    """Of each what is fastest, then the others: seconds may end it any time. Along two axes all are made of one along
    the outer."""
    first = [one._replace(part=FASTEST) if len(one.axes) == 1 else one for one in asked]
    return [*first, *(one._replace(part=OTHERS) for one in asked if len(one.axes) == 1)]


def _of(
    borders: Borders, costs: Costs, scarce: bool, known: dict[tuple[Axes, SplitReplica], LayoutPrices], asked: Asked
) -> tuple[SharedLayouts, ...]:
    """The layouts along these axes: along one, apart by what bytes and steps are worth."""
    axes, replica, part = asked
    replica = replace(replica, rows=1) if scarce else replica
    worths = _worths(_dear(borders.problem, costs, replica), replica, scarce)
    if scarce and pinned_degree(borders.problem.pins) > 1:  # cut whatever it takes
        worths = (*worths, ByteWorth(ALL, MICROBATCHES))
    alike = replace(replica, microbatches=MICROBATCHES)  # they are in the worths, and nowhere else
    if len(axes) > 1:
        make = partial(_along_two, borders, costs, axes, alike, worths)
        return (shared_layouts(borders.problem, costs, axes, alike, worths, make),)
    prices, found = once(known, (axes, alike), _prices, borders, costs, axes, alike), list[SharedLayouts]()
    for worth in worths[part]:
        if not found or not borders.problem.spent:
            make = partial(_along_one, prices, (worth,))
            found.append(shared_layouts(borders.problem, costs, axes, alike, (worth,), make))
    return tuple(found)


def _worths(dear: float, replica: SplitReplica, scarce: bool) -> tuple[ByteWorth, ...]:
    """What bytes and steps may be worth, of each of which there is a layout."""
    if scarce:
        dearer = (ByteWorth(times * dear, MICROBATCHES, again=True) for times in (1.0, SCARCE))
        return (ByteWorth(0.0, MICROBATCHES), *dearer)
    few = (ByteWorth(0.0, replica.microbatches),) if replica.microbatches <= FEW_MICROBATCHES else ()
    return (ByteWorth(0.0, MICROBATCHES), ByteWorth(dear, MICROBATCHES), *few)


def _cuts_values(borders: Borders, axis: str, count: int) -> bool:
    """Whether values between blocks may be cut, without which only a tensor axis is of use."""
    return axis == "tensor" or any(states != (WHOLE,) for states in borders.states(count, axis))


def _along_one(prices: LayoutPrices, worths: Sequence[ByteWorth]) -> Iterator[Layout | None]:
    """The layouts along one axis, one for each of what bytes and steps are worth, as many as there are seconds for."""
    for number, worth in enumerate(worths):
        if number and prices.borders.problem.spent:
            return
        yield best_layout(prices, worth)


def _prices(
    borders: Borders, costs: Costs, axes: Axes, replica: SplitReplica, rule: Rule | None = None
) -> LayoutPrices:
    """The prices along one axis, blocks between borders that lie as they may."""
    ((axis, degree),) = axes
    return LayoutPrices(borders, costs, axes, replica, borders.states(degree, axis), rule)


def _along_two(
    borders: Borders, costs: Costs, axes: Axes, replica: SplitReplica, worths: Sequence[ByteWorth],
    rules: tuple[Rule | None, Rule | None] = (None, None),
) -> Iterator[Layout | None]:  # fmt: skip
    """The layouts along two axes, as `_along_one`: what is cut along the outer one is cut again along the inner one,
    along each by a rule if there is one."""
    outer, (axis, fast) = axes[:1], axes[1]
    line = replace(replica, devices=replica.devices[::fast])
    for first in dict.fromkeys(_along_one(_prices(borders, costs, outer, line, rules[0]), worths)):
        if first is None:
            continue
        states = borders.states_within(first, fast, axis)
        prices = LayoutPrices(borders, costs, axes, replica, states, rule=rules[1], first=first)
        for worth in worths:
            yield best_layout(prices, worth)


def _replicas(problem: Problem, costs: Costs, axes: Axes) -> Iterator[SplitReplica]:
    """One replica of each class of devices, with rows as where the class is alone and as where all are used."""
    degree, apart = devices_of(axes), apart_along(axes)
    own = group_classes(problem.cluster, degree)
    if whole_batch(problem):  # one microbatch of all rows, on one replica
        rows = max(1, problem.rows // apart)
        yield from (SplitReplica(devices=each[0], rows=rows, microbatches=1) for each in own)
        return
    for each in own:
        sizes = (problem.cluster.size, len(each) * degree if len(own) > 1 else problem.cluster.size)
        for every in sorted({max(1, problem.rows * degree // apart // size) for size in sizes}):
            rows = min(MOST_ROWS, every)
            yield SplitReplica(devices=each[0], rows=rows, microbatches=_pieces(costs, each[0][0], every, rows))


def _pieces(costs: Costs, device: int, every: int, rows: int) -> int:
    """How many microbatches of so many rows take as long as all `every` of them at once, at most `MICROBATCHES`.

    Where launches take the time, as of small models, all rows take hardly longer than a few: what is done once a step
    is then a large part of it.
    """
    most = min(MICROBATCHES, every // rows)
    if most <= 1:
        return most
    all_rows, few = (costs.block_times.of(device, number) for number in (every, rows))
    whole, part = (each.forward[-1] + each.backward[-1] for each in (all_rows, few))
    return max(1, min(most, int(whole / part))) if part else most


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
    """Numbers of devices a replica may have, above 1: `node_degrees` as far as pins of replicas and stages leave room
    for them, and what is pinned."""
    pins = problem.pins
    most = problem.cluster.size // (pins.data or 1) - (pins.pipeline or 1) + 1
    likely = {*(d for d in node_degrees(problem.cluster) if d <= most), pinned_degree(pins)} - {1}
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
        allowed = pinned.get(axis, degree) == degree if axis in pinned else _searched(problem, axis, degree)
        if allowed and split in ((), ((axis, degree),)):
            yield ((axis, degree),)
    if not split and "rows" not in pinned:
        wider = (degree for degree in _degrees_over_nodes(problem) if degree not in counts)
        yield from ((("rows", degree),) for degree in wider if _searched(problem, "rows", degree))
    if not split and not {"expert", "tensor"} & pinned.keys():
        yield from _experts_by_tensor(problem, counts)


def _experts_by_tensor(problem: Problem, counts: Sequence[int]) -> Iterator[Axes]:
    """Numbers of devices that are more than a layer has experts: as many along `expert` as can have one."""
    most = min(expert_counts(problem.graph), default=0)
    for degree in counts:
        along = max((count for count in range(2, most + 1) if degree % count == 0), default=degree)
        if most < degree != along:
            yield (("expert", along), ("tensor", degree // along))


def _searched(problem: Problem, axis: str, degree: int) -> bool:
    """Whether so many devices along an axis are searched that nobody pinned."""
    if axis == "expert":
        return bool(expert_counts(problem.graph))
    if axis == "rows":  # of a batch that may be divided replicas have rows of their own
        return whole_batch(problem) and problem.rows % degree == 0
    return axis in ("tensor", "height") or (axis == "sequence" and longest_row(problem.graph) >= LONG)


def ruled_layout(problem: Problem, costs: Costs, axes: Axes, rule: Rule, *, cut: bool) -> Layout | None:
    """The best layout along one axis whose ops do as `rule` says; between blocks values are cut where they can be, or
    whole.

    None where no op is cut, the rule leaves no layout, or no devices that are alike are enough for a replica.
    """
    ((axis, degree),) = axes
    replica = _first_replica(problem, costs, axes)
    if replica is None:
        return None

    def made() -> Iterator[Layout | None]:
        borders = Borders(problem)
        states = [allowed[-1:] if cut else allowed[:1] for allowed in borders.states(degree, axis)]
        prices = LayoutPrices(borders, costs, axes, replica, states, rule=rule)
        yield best_layout(prices, ByteWorth(0.0, MICROBATCHES))

    return _kept(problem, shared_layouts(problem, costs, axes, replica, (rule, cut), made))


def fastest_layout(problem: Problem, costs: Costs, axes: Axes) -> Layout | None:
    """The fastest of `layouts` along one axis; None as for `ruled_layout`."""
    replica = _first_replica(problem, costs, axes)
    if replica is None:
        return None
    worths = (ByteWorth(0.0, MICROBATCHES),)

    def made() -> Iterator[Layout | None]:
        borders = Borders(problem)
        yield from _along_one(_prices(borders, costs, axes, replica), worths)

    return _kept(problem, shared_layouts(problem, costs, axes, replica, worths, made))


def ruled_mesh(problem: Problem, costs: Costs, axes: Axes, outer: Rule | None, inner: Rule) -> Layout | None:
    """The best layout along two axes whose ops do along each as its rule says; None as for `ruled_layout`."""
    replica = _first_replica(problem, costs, axes)
    if replica is None:
        return None
    rules, worths = (outer, inner), (ByteWorth(0.0, MICROBATCHES),)
    make = partial(_along_two, Borders(problem), costs, axes, replica, worths, rules)
    return _kept(problem, shared_layouts(problem, costs, axes, replica, rules, make))


def _first_replica(problem: Problem, costs: Costs, axes: Axes) -> SplitReplica | None:
    """A replica of the first class of devices that has enough of them; None where none has."""
    first = next(_replicas(problem, costs, axes), None)
    return None if first is None else replace(first, microbatches=MICROBATCHES)


def _kept(problem: Problem, found: SharedLayouts) -> Layout | None:
    keep(problem, (found,))
    return next(iter(found.layouts), None)
