"""Layouts that several machines have in common are made once for all problems that are made of one, as for `advise`.

In: how to make the layouts of a replica, and what they are of. Out: those layouts, the ones that would be made.

A layout depends on the devices of a replica and on what joins these, not on how many nodes there are nor on the network
between them; where it does (replicas over several nodes, unlike nodes) nothing is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

from placer.costs.costs import Costs
from placer.plans.plan import Layout
from placer.search.problem import Problem
from placer.strategies.intra_op.split_costs import SplitReplica
from placer.strategies.space.axes import Axes
from placer.strategies.space.outline import whole_batch


def shared_layouts(
    problem: Problem, costs: Costs, asked: tuple[Axes, SplitReplica, bool], make: Callable[[], tuple[Layout, ...]]
) -> tuple[Layout, ...]:
    """The layouts of a replica along some axes (`scarce` ones, or not), from those known where they are."""
    key = _key(problem, costs, asked)
    if key in problem.known_layouts:
        return problem.known_layouts[key][1]
    made = make()
    if key is not None and not problem.spent:  # those made when the seconds are over may be fewer
        problem.known_layouts[key] = problem.graph, made  # the graph is kept, so that its id stays its own
    return made


def _key(problem: Problem, costs: Costs, asked: tuple[Axes, SplitReplica, bool]) -> Hashable:
    """All that layouts depend on; None where that is more than one node."""
    cluster, replica = problem.cluster, asked[1]
    nodes = {cluster.node_of[device] for device in replica.devices}
    if len(cluster.groups) > 1 or nodes != {0}:
        return None
    rows = problem.rows if whole_batch(problem) else 0
    node = replace(cluster.groups[0][0], name="", nic=None)
    return id(problem.graph), problem.settings, costs.priced, rows, node, asked
