"""The longest way first: tasks in the order of their ways to the end, each where it does best.

HEFT (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002): ways with mean seconds of tasks and edges; the device on which
it ends first, in a gap between others where one is long enough.
Critical path (HLFET: Adam, Chandy and Dickson, CACM 17(12), 1974): ways of tasks alone; the device that begins it
first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placer.errors import Infeasible
from placer.strategies.lists.schedule import Schedule
from placer.strategies.lists.task_graph import TaskGraph


def heft(tasks: TaskGraph, *, between: bool = True) -> tuple[int, ...] | Infeasible:
    """Each task where it ends first; without `between` behind what its device has already."""
    schedule = Schedule(tasks)

    def ends(task: int, device: int) -> tuple[float, float]:
        begin = schedule.begin(task, device, between=between)
        return begin + tasks.seconds[task][device], 0.0

    return _scheduled(schedule, tasks.ranks(communication=True), ends, between=between)


def critical_path(tasks: TaskGraph) -> tuple[int, ...] | Infeasible:
    """Each task where it begins first, on the faster device where two begin it at once."""
    schedule = Schedule(tasks)
    return _scheduled(
        schedule,
        tasks.ranks(communication=False),
        lambda task, device: (schedule.begin(task, device), tasks.seconds[task][device]),
        between=False,
    )


def _scheduled(
    schedule: Schedule, ranks: Sequence[float], worth: Callable[[int, int], tuple[float, float]], *, between: bool
) -> tuple[int, ...] | Infeasible:
    """Every task, the highest rank first, on the device where it is worth least."""
    number = {task: index for index, task in enumerate(schedule.tasks.order)}
    for task in sorted(number, key=lambda t: (-ranks[t], number[t])):
        allowed = schedule.devices(task)
        if not allowed:
            return schedule.stuck(task)
        chosen = min(allowed, key=lambda device: (worth(task, device), device))
        schedule.put(task, chosen, schedule.begin(task, chosen, between=between))
    return schedule.placement()
