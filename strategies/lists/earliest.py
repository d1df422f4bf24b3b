"""The earliest start first, within memory: m-ETF and m-SCT (Jeon et al., "Baechi", SoCC 2020, section 3).

m-ETF (earliest task first: Hwang et al., SIAM J. Computing 18(2), 1989): of all ready tasks on all devices that have
room for them, the pair that can begin first; of equal ones the task with the longest way to the end.

m-SCT (small communication times: Hanen and Munier, 1995): every task has at most one favourite child, that should run
where it ran (`favourites`). A device whose last task has such a child that is not placed waits for it as long as that
child's input would take to another device; any other task begins there after that.
"""

from __future__ import annotations

from placer.errors import Infeasible
from placer.strategies.lists.favourites import favourites
from placer.strategies.lists.schedule import Schedule
from placer.strategies.lists.task_graph import Edge, TaskGraph


def etf(tasks: TaskGraph) -> tuple[int, ...] | Infeasible:
    """The placement of m-ETF."""
    return _earliest(tasks, {})


def sct(tasks: TaskGraph) -> tuple[int, ...] | Infeasible:
    """The placement of m-SCT."""
    return _earliest(tasks, favourites(tasks))


def _earliest(tasks: TaskGraph, favourite: dict[int, Edge]) -> tuple[int, ...] | Infeasible:
    """The pair of a ready task and a device that begins first, until all are placed."""
    schedule, ranks = Schedule(tasks), tasks.ranks(communication=False)
    waiting = [len({edge.source for edge in before}) for before in tasks.reads]
    ready = [task for task in tasks.order if not waiting[task]]
    arrived: dict[tuple[int, int], float] = {}
    last: dict[int, int] = {}

    def begins(task: int, device: int) -> float:
        if (task, device) not in arrived:
            arrived[task, device] = schedule.ready(task, device)
        return max(arrived[task, device], schedule.free(device), _asleep(task, device))

    def _asleep(task: int, device: int) -> float:
        """Until when a device waits for the favourite of its last task."""
        edge = favourite.get(last.get(device, -1))
        if edge is None or edge.target == task or edge.target in schedule.place:
            return 0.0
        return schedule.end[edge.source] + tasks.mean_transfer(edge)

    while ready:
        pairs = [(begins(task, d), -ranks[task], task, d) for task in ready for d in schedule.devices(task)]
        if not pairs:
            return schedule.stuck(ready[0])
        begin, _, task, device = min(pairs)
        schedule.put(task, device, begin)
        last[device] = task
        ready.remove(task)
        for reader in sorted({edge.target for edge in tasks.feeds[task]}):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return schedule.placement()
