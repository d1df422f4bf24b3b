"""Layouts that several machines have in common are made once for all problems that are made of one, as for `advise`.

In: how to make the layouts of a replica, and what they are of. Out: those layouts, the ones that would be made.

A layout depends on the devices of a replica and on what joins these, not on how many nodes there are nor on the network
between them; where it does (replicas over several nodes, unlike nodes) it is shared by searches of one cluster only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import NamedTuple

from placer.costs.costs import Costs
from placer.plans.plan import Layout
from placer.search.problem import Problem
from placer.strategies.intra_op.split_costs import SplitReplica
from placer.strategies.space.axes import Axes
from placer.strategies.space.outline import whole_batch


class SharedLayouts(NamedTuple):
    """Layouts and what they depend on."""

    key: Hashable
    layouts: tuple[Layout, ...]


def shared_layouts(
    problem: Problem, costs: Costs, axes: Axes, replica: SplitReplica, how: Hashable,
    make: Callable[[], Iterable[Layout | None]],
) -> SharedLayouts:  # fmt: skip
    """The layouts of a replica along some axes, of what is asked of them, from those known where they are."""
    key = _key(problem, costs, axes, replica, how)
    if key in problem.known_layouts:
        return SharedLayouts(key, problem.known_layouts[key][1])
    found = SharedLayouts(key, tuple(layout for layout in make() if layout is not None))
    if len(axes) == 1:  # one by one, so that none is left out where seconds are over
        problem.known_layouts[key] = problem.graph, found.layouts
    return found


def keep(problem: Problem, found: Iterable[SharedLayouts]) -> None:
    """Know these from now on, but for those made when the seconds are over, which may be fewer."""
    for key, layouts in found if not problem.spent else ():
        problem.known_layouts[key] = problem.graph, layouts  # the graph is kept, so that its id stays its own


def _key(problem: Problem, costs: Costs, axes: Axes, replica: SplitReplica, how: Hashable) -> Hashable:
    cluster = problem.cluster
    nodes = {cluster.node_of[device] for device in replica.devices}
    rows = problem.rows if whole_batch(problem) else 0
    if len(cluster.groups) > 1 or nodes != {0}:
        return id(problem.graph), problem.settings, costs.priced, rows, cluster, axes, replica, how
    node = replace(cluster.groups[0][0], name="", nic=None)
    return id(problem.graph), problem.settings, costs.priced, rows, node, axes, replica, how
