"""Processes, threads and cores of a host, chosen together from its topology.

    processes    a socket as many as leave six physical cores to each; at least one
    threads      of a process: its even share of its socket's physical cores (intra-op); inter-op as many as sockets
    cores        of a process, side by side on one socket; bound only where there are several sockets: a bound process
                 cannot use a core that another leaves idle, and what binding saves is reading the other socket's memory
    communication  the first cores of each socket, one for each process there, for libraries that bind threads of their
                 own; gloo's are left to the system
    data workers a quarter of the process's cores, at least one

For two sockets of 12 cores that is the published setting: 2 processes a socket, 6 threads each, communication on cores
0, 1, 12 and 13, inter-op threads as many as sockets (Intel's advice for TensorFlow and Horovod on dual-socket hosts, as
the talks placer was started from quote it).

`thread_settings` lists what else there is to measure: settings with no more threads than cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

CORES_OF_A_PROCESS = 6
CORES_OF_A_WORKER = 4
SYSTEM = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Of each socket one logical processor for each physical core that may be used, by the system's numbers."""

    sockets: tuple[tuple[int, ...], ...]

    @property
    def cores(self) -> int:
        """Physical ones of all sockets."""
        return sum(map(len, self.sockets))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessThreads:
    """What one process of a host is given. cores: it is bound to these; empty: to none."""

    threads: int
    inter_op: int
    data_workers: int
    cores: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostThreads:
    """All processes of a host, and the cores that communication shares with them."""

    processes: tuple[ProcessThreads, ...]
    communication: tuple[int, ...] = ()

    def __str__(self) -> str:
        first = self.processes[0]
        bound = "; ".join(_ranges(one.cores) for one in self.processes) if first.cores else "none, the system's choice"
        talk = f", communication on {_ranges(self.communication)}" if self.communication else ""
        return (
            f"{len(self.processes)} process{'es' * (len(self.processes) > 1)}, {first.threads} "
            f"thread{'s' * (first.threads > 1)} each, inter-op {first.inter_op}, bound to cores: {bound}{talk}, "
            f"data workers {first.data_workers} each"
        )


def advised_processes(topology: Topology) -> int:
    """How many processes of a host compute best with its cores, where nothing else says."""
    return sum(max(1, len(socket) // CORES_OF_A_PROCESS) for socket in topology.sockets)


def host_threads(topology: Topology, processes: int, usable: int | None = None) -> HostThreads:
    """The setting of so many processes. usable: cores that a control group grants, where that is less."""
    granted = min(topology.cores, usable or topology.cores)
    sockets = len(topology.sockets)
    if sockets == 1 or granted < topology.cores or processes < sockets or processes > granted:
        share = max(1, granted // processes)
        return HostThreads(processes=(_process(share, sockets, ()),) * processes)
    made: list[ProcessThreads] = []
    communication: list[int] = []
    for number, socket in enumerate(topology.sockets):
        here = (number + 1) * processes // sockets - number * processes // sockets
        share = max(1, len(socket) // here)
        made += [_process(share, sockets, socket[k * share : (k + 1) * share]) for k in range(here)]
        communication += socket[:here]
    if not all(one.cores for one in made):  # a socket with fewer cores than processes
        return HostThreads(processes=(_process(max(1, granted // processes), sockets, ()),) * processes)
    return HostThreads(processes=tuple(made), communication=tuple(communication))


def thread_settings(topology: Topology, usable: int | None = None) -> tuple[HostThreads, ...]:
    """Processes that divide the cores, each with 1, 2, 4, ... threads up to its share, bound to cores and not.

    Bound are only settings whose processes each fit on a socket; those of `host_threads` are always among them.
    """
    granted = min(topology.cores, usable or topology.cores)
    counts = [count for count in range(1, granted + 1) if granted % count == 0]
    found = {one.processes: one for one in (host_threads(topology, count, usable) for count in counts)}
    for count in counts:
        for threads in _powers(granted // count):
            free = HostThreads(processes=(_process(threads, len(topology.sockets), ()),) * count)
            for one in (free, *(_bound(topology, free) if granted == topology.cores else ())):
                found.setdefault(one.processes, one)
    return tuple(sorted(found.values(), key=_order))


def topology(system: Path = SYSTEM, allowed: frozenset[int] | None = None) -> Topology:
    """Of this host as Linux tells it, of the processors this process may use; elsewhere one socket of all of them."""
    if allowed is None:
        own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        allowed = frozenset(own)
    first: dict[tuple[int, int], int] = {}
    for number in sorted(allowed):
        socket, core = (
            _told(system / f"cpu{number}" / "topology" / name) for name in ("physical_package_id", "core_id")
        )
        first.setdefault((socket or 0, number if core is None else core), number)
    sockets = sorted({socket for socket, _ in first})
    return Topology(
        sockets=tuple(tuple(sorted(cpu for (own, _), cpu in first.items() if own == one)) for one in sockets)
    )


def _powers(most: int) -> list[int]:
    """1, 2, 4, ... and `most` itself."""
    return sorted({most, *(1 << k for k in range(most.bit_length()))})


def _bound(topology: Topology, free: HostThreads) -> Iterator[HostThreads]:
    """The same setting with cores of its own for each process; nothing where a process fits on no socket."""
    threads = free.processes[0].threads
    places = [
        socket[first : first + threads]
        for socket in topology.sockets
        for first in range(0, len(socket) - threads + 1, threads)
    ]
    if len(places) >= len(free.processes):
        each = len(places) // len(free.processes)
        taken = places[::each][: len(free.processes)]
        yield HostThreads(
            processes=tuple(replace(one, cores=own) for one, own in zip(free.processes, taken, strict=True))
        )


def _order(one: HostThreads) -> tuple[int, int, bool]:
    return len(one.processes), one.processes[0].threads, bool(one.processes[0].cores)


def _process(threads: int, sockets: int, cores: tuple[int, ...]) -> ProcessThreads:
    return ProcessThreads(
        threads=threads, inter_op=sockets, data_workers=max(1, threads // CORES_OF_A_WORKER), cores=cores
    )


def _told(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _ranges(numbers: tuple[int, ...]) -> str:
    """`0-5, 12`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
