"""How ranks on accelerators and on CPUs sum together: the way that takes least, and its steps.

Each rank has a tensor on its own device; a rank on a CPU has it on the host already. In all ways

    copy out, copy in   an accelerator's tensor to memory of its host, and back
    reduce, broadcast   of what lies on hosts, to the first of the ranks and from it
    all_reduce          of what lies on hosts, or, `on` the device, of what lies on accelerators
    send, receive       what lies on the host, to or from one rank
    add                 what one rank sends is copied to the device and added there
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from placer.costs.communication.mixed_allreduce import RouteName, mixed_sum
from placer.plans.plan import Plan

Deed = Literal["copy out", "copy in", "reduce", "broadcast", "all_reduce", "send", "receive", "add"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SumRoute:
    """A way with who does what in it, by rank: `placer.costs.communication.mixed_allreduce.Roles`."""

    kind: RouteName
    accelerators: tuple[int, ...]
    hosts: tuple[tuple[int, ...], ...]
    workers: tuple[tuple[int, ...], ...]

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of the collectives within it, beside all of its ranks; one alone among them."""
        if self.kind == "host":
            return ()
        return (self.accelerators,) if self.kind == "device" else (*self.hosts, self.firsts)

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first rank of each host."""
        return tuple(host[0] for host in self.hosts)


class SumStep(NamedTuple):
    """What a rank does with `ranks`, itself among them where that is a collective."""

    do: Deed
    ranks: tuple[int, ...] = ()
    on: Literal["host", "device"] = "host"


def sum_route(plan: Plan, ranks: Sequence[int], size: float, groups: int = 1) -> SumRoute | None:
    """The cheapest way to sum `size` bytes over `ranks`, `groups` such sums at once; None where all are of one kind."""
    if len(plan.cluster.backends) == 1:
        return None
    devices = tuple(plan.ranks[rank] for rank in ranks)
    if not plan.cluster.unlike(devices):
        return None
    found = mixed_sum(plan.cluster, devices, groups)

    def named(places: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(ranks[place] for place in places)

    own = found.roles
    return SumRoute(
        kind=found.cheapest(size)[0],
        accelerators=named(own.accelerators),
        hosts=tuple(map(named, own.hosts)),
        workers=tuple(map(named, own.workers)),
    )


def route_seconds(plan: Plan, ranks: Sequence[int], size: float, groups: int = 1) -> dict[RouteName, float]:
    """Seconds of each way to sum `size` bytes over unlike ranks."""
    return mixed_sum(plan.cluster, tuple(plan.ranks[rank] for rank in ranks), groups).seconds(size)


def route_steps(way: SumRoute, rank: int) -> Iterator[SumStep]:
    """What `rank` does, in order."""
    if way.kind == "device":
        yield from _by_device(way, rank)
        return
    copies = rank in way.accelerators
    if copies:
        yield SumStep("copy out")
    yield from _on_hosts(way, rank)
    if copies:
        yield SumStep("copy in")


def _on_hosts(way: SumRoute, rank: int) -> Iterator[SumStep]:
    if way.kind == "host":
        yield SumStep("all_reduce", tuple(sorted(member for host in way.hosts for member in host)))
        return
    own = next(host for host in way.hosts if rank in host)
    if len(own) > 1:
        yield SumStep("reduce", own)
    if rank == own[0] and len(way.hosts) > 1:
        yield SumStep("all_reduce", way.firsts)
    if len(own) > 1:
        yield SumStep("broadcast", own)


def _by_device(way: SumRoute, rank: int) -> Iterator[SumStep]:
    for accelerator, workers in zip(way.accelerators, way.workers, strict=True):
        if rank in workers:
            yield SumStep("send", (accelerator,))
            yield SumStep("receive", (accelerator,))
        elif rank == accelerator:
            for worker in workers:
                yield SumStep("add", (worker,))
            if len(way.accelerators) > 1:
                yield SumStep("all_reduce", way.accelerators, "device")
            if workers:
                yield SumStep("copy out")
            for worker in workers:
                yield SumStep("send", (worker,))
