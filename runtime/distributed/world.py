"""The ranks of a plan: what this process is among them, its device, and the process groups while it runs.

`joined(plan, ...)` checks first that torchrun started as many ranks as the plan wants, and ends in order; `join` is for
people with their own loop.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # torch exports them unsaid

from placer.errors import ExecutionError, UsageError
from placer.io.processes import die_with_parent
from placer.plans.plan import Plan
from placer.program.instructions import Collective, Program
from placer.runtime.distributed.backends import BackendName, backend_of, mpirun_command, require_backend
from placer.runtime.distributed.faults import Watch, guarded
from placer.runtime.distributed.hosts import RankPlace, on_several_hosts, rank_in_plan, ranks_in_order, this_place
from placer.runtime.distributed.mpi.started import told_as_torchrun_tells, under_mpirun

#: No operation waits longer for other ranks: a hang is only noticed by a timeout, a dead peer at once.
TIMEOUT_SECONDS = 60.0
# By whether it was mpirun.
STARTERS = {False: "torchrun", True: "mpirun"}
_START = "start the ranks with torchrun, which sets it"
# Every rank joins the same number of times; each time the store's keys are new.
_JOINED = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among the ranks of a plan, and how it sees the others."""

    rank: int
    size: int
    device: torch.device
    watch: Watch | None = None

    @property
    def first(self) -> bool:
        """Whether this rank speaks for all: logs, progress, files."""
        return self.rank == 0


def under_torchrun() -> bool:
    """Whether torchrun started this process, or mpirun, after `told_as_torchrun_tells`."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def torchrun_command(plan: Plan, plan_path: str) -> str:
    """The command that starts `plan` on one machine."""
    return f"torchrun --nproc-per-node {plan.world_size} --no-python placer execute {plan_path}"


def require_world(plan: Plan, plan_path: str = "plan.json") -> World:
    """This rank. Raises UsageError without torchrun (or mpirun), with more or fewer ranks than planned, or without its
    GPU."""
    told_as_torchrun_tells()
    if not under_torchrun():
        raise UsageError(
            f"a plan runs under torchrun, which did not start this process; run: {_advice(plan, plan_path)}"
        )
    size, rank = _environment_number("WORLD_SIZE"), _environment_number("RANK")
    if size != plan.world_size:
        more = "more" if size > plan.world_size else "fewer"
        raise UsageError(
            f"the plan wants {plan.world_size} ranks, {STARTERS[under_mpirun()]} started {size}, {more} than it wants; "
            f"run: {_advice(plan, plan_path)}"
        )
    if rank >= size:
        raise UsageError(f"RANK is {rank} in the environment, of {size} ranks, which count from 0; {_START}")
    # On several hosts ranks may have to change places before their devices can be looked for.
    device = device_of(plan, rank) if on_several_hosts() else present_device(plan, rank)
    return World(rank=rank, size=size, device=device)


def _environment_number(name: str, default: str = "") -> int:
    """What the environment has under `name`. Raises UsageError where it is no number."""
    text = os.environ.get(name, default)
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"{name} is {text!r} in the environment, which is no number; {_START}")
    return int(text)


def _advice(plan: Plan, plan_path: str) -> str:
    if under_mpirun():
        return mpirun_command(plan, plan_path)
    nodes = len({plan.cluster.node_of[device] for device in plan.ranks})
    if nodes == 1:
        return torchrun_command(plan, plan_path)
    return f"{torchrun_command(plan, plan_path)}  (or on {nodes} nodes, as many ranks on each as the plan has there)"


def present_device(plan: Plan, rank: int) -> torch.device:
    """The device that `rank` computes on. Raises UsageError where this machine does not have it."""
    device = device_of(plan, rank)
    if device.type == "cuda" and (not torch.cuda.is_available() or torch.cuda.device_count() <= device.index):
        raise UsageError(
            f"the plan puts rank {rank} on {device}, a {plan.cluster.devices[plan.ranks[rank]].name}; this machine "
            f"has {torch.cuda.device_count()} GPUs; run on the planned machines, or plan again with --cluster local"
        )
    return device


@contextmanager
def joined(
    plan: Plan, *, plan_path: str = "plan.json", timeout_seconds: float = TIMEOUT_SECONDS, backend: BackendName = "auto"
) -> Iterator[World]:
    """The process group of `plan` around the body; no operation waits longer than `timeout_seconds`.

    Raises UsageError as `require_world` and `require_backend` do, ExecutionError naming the rank where one dies or
    hangs.
    """
    require_backend(plan, backend, plan_path)
    world = require_world(plan, plan_path)
    die_with_parent()
    timeout = timedelta(seconds=timeout_seconds)
    store = _store(world, timeout)
    rank = rank_in_plan(plan, PrefixStore("hosts", store))
    world = replace(world, rank=rank, device=present_device(plan, rank))
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    watch = Watch(PrefixStore("watch", store), world.rank, world.size)
    world = replace(world, watch=watch)
    others = dist.is_initialized()
    with guarded(watch, lambda: None if others else _end_at_once(world)):
        watch.join()
        dist.init_process_group(
            backend_of(plan, world.rank, backend),
            store=PrefixStore("group", store),
            rank=world.rank,
            world_size=world.size,
            timeout=timeout,
        )
        yield world
        _end_in_order(watch)


def _store(world: World, timeout: timedelta) -> Store:
    """The store of this attempt: torchrun's own where it shares it, so that it outlives every rank.

    Raises UsageError where the environment does not say where ranks meet, ExecutionError where they cannot there.
    """
    unsaid = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if unsaid:
        raise UsageError(f"{' and '.join(unsaid)} are not set, where ranks meet; start the ranks with torchrun")
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], _environment_number("MASTER_PORT")
    try:
        store = TCPStore(
            address, port, world.size, is_master=world.first and not shared, timeout=timeout, wait_for_workers=False,
            multi_tenant=True,
        )  # fmt: skip
    except dist.DistError as error:
        raise ExecutionError(_no_meeting(address, port, error)) from error
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"placer/{attempt}/{next(_JOINED)}", store)


def _no_meeting(address: str, port: int, error: Exception) -> str:
    """Why ranks do not meet, in words."""
    if "EADDRINUSE" in str(error):
        return (
            f"port {port} of {address}, where the ranks were to meet, is in use by another process; give a free one "
            "(torchrun --master-port, or MASTER_PORT), or leave its choice to torchrun --standalone"
        )
    said = str(error).strip().split("\n")[0][:200]
    return f"this rank does not reach port {port} of {address}, where the ranks meet ({said}); is rank 0 up there?"


def _end_in_order(watch: Watch) -> None:
    # Without this order 1 to 3 of 10 runs abort while the interpreter shuts down (seen with torch 2.13 and gloo).
    gc.collect()
    dist.barrier()
    watch.leave()
    dist.destroy_process_group()


def _end_at_once(world: World) -> None:
    """After a failure: leave the group without waiting for the others; NCCL's destroy waits, the exit does it."""
    gc.collect()
    if dist.is_initialized() and world.device.type == "cpu":
        dist.destroy_process_group()


def join(plan: Plan, timeout_seconds: float = TIMEOUT_SECONDS) -> int:
    """This process's rank in the plan; joins the others under torchrun. Raises UsageError where their number
    differs."""
    told_as_torchrun_tells()
    found = dist.get_world_size() if dist.is_initialized() else _environment_number("WORLD_SIZE", "1")
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
    if dist.is_initialized():
        _require_order(plan)
        return dist.get_rank()
    # Not torch's own meeting by the environment: its keys are those of the first group also where a second is made.
    timeout, rank = timedelta(seconds=timeout_seconds), _environment_number("RANK", "0")
    store = _store(World(rank=rank, size=plan.world_size, device=device_of(plan, rank)), timeout)
    rank = rank_in_plan(plan, PrefixStore("hosts", store))
    dist.init_process_group(
        backend_of(plan, rank),
        store=PrefixStore("group", store),
        rank=rank,
        world_size=plan.world_size,
        timeout=timeout,
    )
    return rank


def _require_order(plan: Plan) -> None:
    """Raise UsageError where a group that somebody else made has its hosts in another order than the plan."""
    if not on_several_hosts():
        return
    places: list[RankPlace] = [this_place()] * plan.world_size
    dist.all_gather_object(places, this_place())
    if ranks_in_order(plan, places) != tuple(range(plan.world_size)):
        raise UsageError(
            "the process group was made with hosts in another order than the plan's; leave making it to "
            "placer.runtime.load, which puts ranks in order, or start the hosts in the plan's order (placer launch)"
        )


def device_of(plan: Plan, rank: int) -> torch.device:
    """The torch device of a rank: a GPU is numbered among those of its node."""
    number, chips = plan.ranks[rank], plan.cluster.devices
    if chips[number].backend == "cpu":
        return torch.device("cpu")
    first = plan.cluster.node_of.index(plan.cluster.node_of[number])
    return torch.device("cuda", sum(chips[before].backend != "cpu" for before in range(first, number)))


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

    def of(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        """The group of `ranks`, which this rank belongs to."""
        return self._groups[ranks]


def groups_of(entry: Collective) -> tuple[tuple[int, ...], ...]:
    """The ranks of a collective, and of those within it where it sums over unlike ones."""
    return (entry.ranks, *(entry.way.groups if entry.way is not None else ()))
