"""Plans whose replicas are several devices, their ops cut at random, along two axes, or as a search cuts them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from examples.parity.cases import Case, plan_of
from examples.parity.named_splits import Picker, split_plan
from examples.parity.processes import processes
from examples.parity.splits import fast_links, searched, widened
from placer.graph import BlockClass
from placer.plans.plan import Layout, Plan, Split
from placer.rules import block_choices
from placer.rules.two_axis_layouts import axis_names
from placer.search.problem import Pins
from placer.spmd.propagation import Wishes, fits, followed


def random_plan(case: Case, degree: int, seed: int) -> Plan:
    """A plan whose every op is cut at random, and whose borders are whole or cut on dim 1 (images: 2) at random."""
    draw = Random(seed)

    def any_of(kind: BlockClass) -> Wishes:
        found = zip(kind.ops, block_choices(kind), strict=True)
        return {op.name: draw.choice([one.name for one in known if fits(kind, op, one, degree)]) for op, known in found}

    return split_plan(case, degree, any_of, draw.choice(("whole", "cut 2" if "images" in case.model else "cut 1")))


def random_twice(case: Case, degrees: tuple[int, int], seed: int, borders: tuple[str, ...]) -> Plan:
    """A plan of two axes whose every op is cut at random along either, where it can be along both at once."""
    draw = Random(seed)

    def any_of(degree: int) -> Picker:
        def pick(kind: BlockClass) -> Wishes:
            found = zip(kind.ops, block_choices(kind), strict=True)
            return {
                op.name: draw.choice([one.name for one in known if fits(kind, op, one, degree)])
                for op, known in found
                if draw.random() < 0.7
            }

        return pick

    return twice_split_plan(case, degrees, (any_of(degrees[0]), any_of(degrees[1])), draw.choice(borders))


def twice_split_plan(case: Case, degrees: tuple[int, int], picks: tuple[Picker, Picker], borders: str) -> Plan:
    """The plan of `case` with replicas of two axes; classes for which the first of `picks` gives None are whole."""
    (slow, fast), (outer, inner) = degrees, picks
    first, *rest = axis_names(borders)
    once = split_plan(case, slow, outer, first)
    graph, whole = once.graph, Split(choices=(), inputs=(), outputs=())

    def again(kind: BlockClass, split: Split | None) -> Split | None:
        texts = [tuple(borders if text != "whole" else text for text in own) for own in _borders(split or whole)]
        wishes = inner(kind)
        if split is None or wishes is None:
            return None
        return followed(kind, slow * fast, wishes, *texts, outer=split, fast=fast)

    assert len(rest) == 1
    splits = tuple(map(again, graph.classes, once.layouts[0].splits))
    layout = Layout(degree=slow * fast, splits=splits, inner_axis="tensor", inner=fast)
    return widened(plan_of(case), layout, processes(case.ranks * slow * fast))


def _borders(split: Split) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return split.inputs, split.outputs


def searched_plans(case: Case, degree: int, pins: Pins, loads: tuple[float, ...] = ()) -> tuple[Plan, ...]:
    """Plans with the layouts a search would use where communication costs next to nothing."""
    plan = plan_of(case)
    plan = replace(plan, settings=replace(plan.settings, expert_loads=loads))
    along = {axis: pinned for axis, pinned in pins.axes if pinned}
    found = searched(plan.graph, plan.model, plan.rows, " x ".join(along), max(along.values()), loads)
    return tuple(widened(plan, layout, fast_links(case.ranks * degree)) for layout in found)
