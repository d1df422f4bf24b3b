"""What ranks run for the tests of sums over GPUs and CPU workers, and over several hosts: processes with tensors of a
CPU in every role, all else as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product
from typing import get_args
from unittest import mock
from uuid import uuid4

import torch
from torch import distributed as dist

from examples.parity.cases import capture_of, run_case
from mixed_plans import on
from placer.cluster.cluster import Cluster
from placer.costs.communication.mixed_allreduce import RouteName
from placer.plans.plan import Plan, Reduction
from placer.program.instructions import Collective
from placer.program.lowering import lower
from placer.program.mixed_allreduce import SumRoute
from placer.program.reductions import ServerRoute
from placer.runtime import VerifyReport, load
from placer.runtime.distributed import tensors as mixed_sums
from placer.runtime.distributed.backends import backend_of
from placer.runtime.distributed.rank_pool import UnmetError
from placer.runtime.distributed.world import Groups
from placer.runtime.executor import load as assemble
from placer.runtime.measuring.communication_record import Recorder, compare, joined_sums, of_collective
from placer.runtime.verify import judged
from placer.runtime.verify import parity as verifying
from placer.runtime.verify.batches import uneven_batch

# Of one element, of fewer than a piece of a server's sum, of more pieces than it has rooms for.
ELEMENTS = (1, 5, 2**18 + 3)


def verified(plan: Plan, cluster: Cluster, places: tuple[int, ...]) -> VerifyReport:
    """Verify a plan on other machines."""
    with in_both_roles():
        return run_case(on(plan, cluster, places), 2)


def without_additions(plan: Plan, cluster: Cluster, places: tuple[int, ...]) -> VerifyReport:
    """The same by a runtime whose GPUs get what CPU workers send and forget to add it."""
    with in_both_roles(), mock.patch.object(mixed_sums, "_received", _lost):
        return run_case(on(plan, cluster, places), 1)


def recorded(
    plan: Plan, cluster: Cluster, places: tuple[int, ...], way: Reduction = "flat"
) -> tuple[tuple[str, ...], int]:
    """How what a rank communicates in a step differs from its program; bytes of gradients it then counts as summed."""
    made = on(plan, cluster, places)
    made = replace(made, stages=tuple(replace(stage, reduction=way) for stage in made.stages))
    with in_both_roles():
        executor, batch = load(made, capture=capture_of(made)), uneven_batch(made, 0)
        for _ in range(2):  # in the first DDP has one bucket of everything, in the second it says what they will be
            executor.step(batch)
        with Recorder() as recorder:
            executor.step(batch)
    program = lower(made)[executor.rank]
    sums = [entry for entry in program.instructions if isinstance(entry, Collective)]
    whole = joined_sums(recorder.records, sums, executor.rank)
    return compare(program, recorder.records), sum(c.bytes for c in whole if c.bytes > 8)


def in_one_world(plan: Plan, folder: str) -> list[float]:
    """A sum in each way in a world that each rank joins as its kind does, with gloo in place of NCCL.

    Raises UnmetError where gloo drops a connection as they meet: the pool then tries again, with another store.
    """
    rank, world, name = dist.get_rank(), plan.world_size, [uuid4().hex]
    dist.broadcast_object_list(name)
    dist.destroy_process_group()
    backend = backend_of(plan, rank).replace("nccl", "gloo")
    try:
        dist.init_process_group(backend, init_method=f"file://{folder}/{name[0]}", rank=rank, world_size=world)
    except RuntimeError as error:
        raise UnmetError(str(error)) from error
    everyone, found = tuple(range(world)), []
    for kind in get_args(RouteName):
        way = _way(world, 1, 1, kind)
        given = torch.ones(())
        mixed_sums.sum_over(given, way, everyone, rank, Groups((), (everyone, *way.groups)).of)
        found.append(float(given))
    return found


def summed_every_way(world: int) -> list[str]:
    """Ways in which the ranks of any mix of GPUs and CPUs do not get the sum, exactly."""
    rank, wrong = dist.get_rank(), []
    for accelerators, nodes, kind in product(range(1, world), (1, 2), get_args(RouteName)):
        if world % nodes:
            continue
        way = _way(world, accelerators, nodes, kind)
        everyone = tuple(range(world))
        groups = Groups((), (everyone, *way.groups))
        given = torch.arange(5, dtype=torch.float64) + 10.0**rank
        expected = sum(torch.arange(5, dtype=torch.float64) + 10.0**other for other in everyone)
        mixed_sums.sum_over(given, way, everyone, rank, groups.of)
        if not torch.equal(given, torch.as_tensor(expected)):
            wrong.append(f"{kind}, {accelerators} of {world} ranks on GPUs, {nodes} nodes: {given}")
    return wrong


def summed_over_hosts(world: int) -> list[str]:
    """Ways in which this rank does not get the sum, exactly, or communicates something else than they say."""
    rank, everyone, wrong = dist.get_rank(), tuple(range(world)), []
    routes: list[SumRoute | ServerRoute] = [
        ServerRoute(server=one, served=tuple(other for other in everyone if other != one)) for one in everyone
    ]
    routes += [
        SumRoute(kind="hosts", accelerators=(), hosts=(everyone[:cut], everyone[cut:]), workers=())
        for cut in range(1, world)
    ]
    for route, elements in product(routes, ELEMENTS):
        groups = Groups((), (everyone, *route.groups))
        given = torch.arange(elements, dtype=torch.float64) + 10.0**rank
        expected = torch.arange(elements, dtype=torch.float64) * world + sum(10.0**other for other in everyone)
        with Recorder() as recorder:
            mixed_sums.sum_over(given, route, everyone, rank, groups.of)
        if not torch.equal(given, expected):
            wrong.append(f"{route}, {elements} elements: {given}")
        said = Collective(
            kind="all_reduce", engine="placer", purpose="gradients", ranks=everyone, bytes=8 * elements,
            dtype="float64", way=route,
        )  # fmt: skip
        pairs = zip(of_collective(said, rank), recorder.records, strict=True)
        wrong += [f"{route}: {wanted}, but {done}" for wanted, done in pairs if not wanted.meets(done)]
    return wrong


def _way(world: int, accelerators: int, nodes: int, kind: RouteName) -> SumRoute:
    """Every other rank is an accelerator, from the last one on, until there are so many."""
    order = sorted(range(world), key=lambda rank: (rank % 2 == 0, -rank))
    chosen = tuple(sorted(order[:accelerators]))
    others = [rank for rank in range(world) if rank not in chosen]
    per = world // nodes
    return SumRoute(
        kind=kind,
        accelerators=chosen,
        hosts=tuple(tuple(range(first, first + per)) for first in range(0, world, per)),
        workers=tuple(tuple(others[place :: len(chosen)]) for place in range(len(chosen))),
    )


@contextmanager
def in_both_roles() -> Iterator[None]:
    """Every rank's device is a CPU, whatever the plan says."""
    with ExitStack() as stack:
        for module in (assemble, verifying, judged):
            stack.enter_context(mock.patch.object(module, "device_of", _cpu))
        yield


def _cpu(plan: Plan, rank: int) -> torch.device:
    return torch.device("cpu")


def _lost(like: torch.Tensor, source: int, group: dist.ProcessGroup) -> torch.Tensor:
    dist.recv(torch.empty_like(like), source, group=group)
    return torch.zeros_like(like)
