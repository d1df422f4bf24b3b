"""The best layout of a replica along some axes: every class has a table of seconds over the states of its borders, made
by `block_ilp`, and the sum over all blocks is minimised over the states.

In: `LayoutPrices` of a replica, what bytes and steps are worth (`ByteWorth`), the states of each group of borders. Out:
a Layout. Prices and programs are made once for all that bytes and steps may be worth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from placer.costs.costs import Costs
from placer.graph import BlockClass
from placer.io.memo import remembered
from placer.plans.plan import Layout, Split, apart_along
from placer.rules.expert_loads import overload
from placer.rules.two_axis_layouts import axis_names
from placer.spmd.device_rows import own_rows_class
from placer.spmd.expert_order import cut_experts
from placer.strategies.intra_op.block_borders import Borders, combinations
from placer.strategies.intra_op.block_ilp import BlockProgram, block_program, relaxed_of
from placer.strategies.intra_op.expert_assignment import expert_order
from placer.strategies.intra_op.split_costs import Rule, SplitCosts, SplitReplica
from placer.strategies.intra_op.split_tables import Table, least_splits
from placer.strategies.space.axes import WHOLE, Axes, devices_of


@dataclass(frozen=True, slots=True)
class ByteWorth:
    """Seconds that a byte is worth, microbatches among which what is done once a step is divided, and whether blocks
    run again and keep as little of what enters them as they can."""

    byte: float
    microbatches: int
    again: bool = False


@dataclass(eq=False)
class LayoutPrices:
    """The prices of each block class along some axes, in the order of blocks, and its programs.

    states: how each group of borders may lie. first: how blocks lie along the outer of two axes.
    """

    borders: Borders
    costs: Costs
    axes: Axes
    replica: SplitReplica
    states: Sequence[tuple[str, ...]]
    rule: Rule | None = None
    first: Layout | None = None

    @cached_property
    def each(self) -> dict[int, SplitCosts]:
        """Of each class, by its number."""
        problem, (axis, count), along = self.borders.problem, self.axes[-1], dict(self.axes)
        loads, experts = problem.settings.expert_loads, along.get("expert", count)
        load = overload(loads, expert_order(loads, experts), experts)
        replica = replace(self.replica, axis=self.borders.axis(axis), fast=count, load=load)
        return {
            kind: SplitCosts(
                costs=self.costs, kind=own_rows_class(problem.graph.classes[kind], apart_along(self.axes)),
                replica=replica, rule=self.rule, outer=_names(self.first, kind),
            )
            for kind in dict.fromkeys(block.kind for block in problem.graph.blocks)
        }  # fmt: skip

    @remembered
    def program(self, kind: int) -> BlockProgram:
        """The program of a class."""
        return block_program(self.each[kind].kind, self.borders.border_states(kind, self.states), self.each[kind])


def best_layout(prices: LayoutPrices, worth: ByteWorth) -> Layout | None:
    """The best layout along some axes; None where every block is best left whole along the last."""
    borders, axes = prices.borders, prices.axes
    problem, along = borders.problem, dict(axes)
    counts = Counter(block.kind for block in problem.graph.blocks)
    order = expert_order(problem.settings.expert_loads, along.get("expert", axes[-1][1]))
    states = [allowed[-1:] for allowed in prices.states] if worth.again else prices.states
    tables = {
        kind: _table(prices, kind, states, own.weighing(worth.byte, worth.microbatches, worth.again * counts[kind]))
        for kind, own in prices.each.items()
    }
    best = least_splits(borders, counts, tables, states)
    if best is None:
        return None
    splits: list[Split | None] = [None] * len(problem.graph.classes)
    for kind, split in best.items():
        splits[kind] = _placed(problem.graph.classes[kind], split, order)
    if all(axis_names(name)[-1] in (WHOLE, "deferred") for split in splits if split for name in split.choices):
        return None
    one = Layout(axis=axes[0][0], degree=devices_of(axes), splits=tuple(splits))
    return one if len(axes) == 1 else replace(one, inner_axis=axes[1][0], inner=axes[1][1])


def _names(layout: Layout | None, kind: int) -> tuple[str, ...]:
    split = None if layout is None else layout.splits[kind]
    return () if split is None else split.choices


def _placed(kind: BlockClass, split: Split, order: tuple[int, ...]) -> Split:
    """The split with its experts in that order, where it cuts any."""
    return replace(split, experts=order) if order and cut_experts(kind, split) else split


def _table(prices: LayoutPrices, kind: int, states: Sequence[tuple[str, ...]], costs: SplitCosts) -> Table:
    """What the linear relaxation says of the splits of a class for the states of its groups."""
    found: Table = {}
    groups = prices.borders.of_class[kind]
    for chosen in combinations(prices.borders, kind, states):
        border = prices.borders.border(kind, dict(zip(groups, chosen, strict=True)), costs.inner)
        entry = relaxed_of(prices.program(kind), border, costs)
        if entry is not None:
            found[chosen] = entry
    return found
