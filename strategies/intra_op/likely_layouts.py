"""The layouts of searches that place blocks and look at few: whole blocks, those of pinned axes; of a batch that stays
whole also blocks whose devices have rows of their own, a group of devices then is a position as a device is.

One after the other, so that seconds are spent on the next only where there are any left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from placer.plans.plan import Layout
from placer.search.problem import Problem
from placer.strategies.intra_op.layouts import degrees, fastest_layout, pinned_layouts
from placer.strategies.space.block_graph import BlockGraph
from placer.strategies.space.outline import whole_batch


def likely_layouts(problem: Problem) -> Iterator[Sequence[Layout | None]]:
    """Whole blocks or all pinned layouts at once; then, where groups of devices may stand side by side, those along
    rows, the largest groups first: what is fastest for the largest serves the others, which it takes long to make."""
    first = pinned_layouts(problem)
    yield first
    if first != (None,) or not whole_batch(problem) or not BlockGraph.of(problem.graph).branches:
        return
    if problem.pins.rows is not None or problem.spent:  # 1: pinned to none
        return
    sizes = [degree for degree in degrees(problem) if problem.rows % degree == 0]
    layout = fastest_layout(problem, problem.costs, (("rows", sizes[-1]),)) if sizes else None
    for degree in reversed(sizes):
        if layout is not None and degree * 2 <= problem.cluster.size:
            yield (replace(layout, degree=degree),)
