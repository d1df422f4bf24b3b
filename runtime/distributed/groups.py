"""Process groups of a plan: one per set of ranks that some program reduces over, made in the same order on all
ranks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta

import torch
from torch import distributed as dist

from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.program.instructions import Collective, Program

#: A hang is only noticed by a timeout; a dead peer at once.
TIMEOUT_SECONDS = 60.0


def join(plan: Plan, timeout_seconds: float = TIMEOUT_SECONDS) -> int:
    """This process's rank in the plan; joins the others under torchrun. Raises UsageError where their number
    differs."""
    found = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
    if found != plan.world_size:
        under = (
            "" if dist.is_initialized() or "WORLD_SIZE" in os.environ else " (this process was not started by torchrun)"
        )
        raise UsageError(
            f"the plan wants {plan.world_size} ranks, there are {found}{under}; start it with "
            f"`torchrun --nproc-per-node {plan.world_size}`, or plan again for {found} devices"
        )
    if plan.world_size == 1:
        return 0
    if not dist.is_initialized():
        backend = backend_of(plan, int(os.environ.get("RANK", "0")))
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    return dist.get_rank()


def backend_of(plan: Plan, rank: int) -> str:
    """What a rank communicates with: gloo for what lies on hosts, nccl for what lies on its GPU.

    In a world of both kinds CPUs say that they have none: NCCL cannot be there where no GPU is.
    """
    if plan.cluster.devices[plan.ranks[rank]].backend == "cuda":
        return "cpu:gloo,cuda:nccl"
    return "cpu:gloo" if plan.cluster.unlike(plan.ranks) else "gloo"


def device_of(plan: Plan, rank: int) -> torch.device:
    """The torch device of a rank: a GPU is numbered among those of its node."""
    number, chips = plan.ranks[rank], plan.cluster.devices
    if chips[number].backend == "cpu":
        return torch.device("cpu")
    first = plan.cluster.node_of.index(plan.cluster.node_of[number])
    return torch.device("cuda", sum(chips[before].backend != "cpu" for before in range(first, number)))


def by_host(plan: Plan, rank: int) -> frozenset[int]:
    """The ranks with which `rank` speaks through its host: of a GPU those on CPUs."""
    if len(plan.cluster.backends) == 1 or plan.cluster.devices[plan.ranks[rank]].backend == "cpu":
        return frozenset()
    return frozenset(r for r, device in enumerate(plan.ranks) if plan.cluster.devices[device].backend == "cpu")


class Groups:
    """The process groups by their ranks. member: only those that this rank belongs to are made (all ranks must make
    all, so only where there are no others)."""

    def __init__(
        self,
        programs: Iterable[Program],
        more: Iterable[tuple[int, ...]] = (),
        timeout_seconds: float = TIMEOUT_SECONDS,
        member: int | None = None,
    ) -> None:
        wanted = {tuple(ranks) for ranks in more if len(ranks) > 1}
        for program in programs:
            done = [entry for entry in program.instructions if isinstance(entry, Collective)]
            wanted |= {ranks for entry in done for ranks in groups_of(entry) if len(ranks) > 1}
        wanted = {ranks for ranks in wanted if member is None or member in ranks}
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        for ranks in sorted(wanted):
            group = dist.new_group(list(ranks), timeout=timedelta(seconds=timeout_seconds))
            if isinstance(group, dist.ProcessGroup):
                self._groups[ranks] = group

    def has(self, ranks: tuple[int, ...]) -> bool:
        """Whether there is a group of `ranks` that this rank belongs to."""
        return ranks in self._groups

    def of(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        """The group of `ranks`, which this rank belongs to."""
        return self._groups[ranks]


def groups_of(entry: Collective) -> tuple[tuple[int, ...], ...]:
    """The ranks of a collective, and of those within it where it sums over unlike ones."""
    return (entry.ranks, *(entry.way.groups if entry.way is not None else ()))
