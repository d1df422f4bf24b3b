"""What ranks are asked to do: sum in every way, in turns."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
import torch.distributed as dist

from placer.cluster.cluster import Cluster
from placer.costs.communication.reductions import reductions
from placer.plans.plan import Reduction
from placer.program.mixed_allreduce import SumRoute
from placer.program.reductions import ServerRoute, reduction_route
from placer.runtime.distributed.tensors import GroupOf, sum_over
from placer.runtime.distributed.world import Groups

ROUNDS = 7
# In which connections are made.
FIRST = 1


def summed_seconds(cluster: Cluster, size: int, rounds: int = ROUNDS) -> dict[Reduction, tuple[float, ...]]:
    """Seconds of this rank's sums of `size` bytes over all devices of `cluster` in each way, which take turns.

    Raises ArithmeticError where a sum is not exact.
    """
    devices, rank = tuple(range(cluster.size)), dist.get_rank()
    routes = {way: reduction_route(cluster, devices, devices, way) for way in reductions(cluster, devices)}
    groups = Groups((), (devices, *(group for route in routes.values() if route for group in route.groups)))
    found: dict[Reduction, list[float]] = {way: [] for way in routes}
    for turn in range(FIRST + rounds):
        for way, route in _turned(routes, turn).items():
            tensor = torch.full((size // 8,), rank + 1.0, dtype=torch.float64)
            dist.barrier()
            began = time.perf_counter()
            _sum(tensor, route, devices, groups.of)
            found[way] += [time.perf_counter() - began] * (turn >= FIRST)
            if not bool((tensor == cluster.size * (cluster.size + 1) / 2).all()):
                raise ArithmeticError(f"{way}: the sum is {tensor.unique().tolist()}")
    return {way: tuple(seconds) for way, seconds in found.items()}


def _sum(tensor: torch.Tensor, route: SumRoute | ServerRoute | None, ranks: tuple[int, ...], of: GroupOf) -> None:
    if route is None:
        dist.all_reduce(tensor, group=of(ranks))
    else:
        sum_over(tensor, route, ranks, dist.get_rank(), of)


def _turned(
    routes: Mapping[Reduction, SumRoute | ServerRoute | None], turn: int
) -> dict[Reduction, SumRoute | ServerRoute | None]:
    """The same, begun with another one each time."""
    ways = list(routes)
    first = turn % len(ways)
    return {way: routes[way] for way in (*ways[first:], *ways[:first])}
