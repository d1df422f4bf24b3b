"""By seconds alone, blind to edges: greedy by load (Graham, 1969), and the best single device."""

from __future__ import annotations

import math

from placer.errors import Infeasible
from placer.strategies.lists.schedule import Schedule
from placer.strategies.lists.task_graph import TaskGraph


def greedy(tasks: TaskGraph) -> tuple[int, ...] | Infeasible:
    """In order, each task to the device that is then least loaded; where devices must not wait for each other in a
    cycle, one device after the other until it has its share."""
    schedule, loads = Schedule(tasks), [0.0 for _ in tasks.devices]
    shares = _shares(tasks)
    for task in tasks.order:
        allowed = schedule.devices(task)
        if not allowed:
            return schedule.stuck(task)
        own = tasks.seconds[task]
        begun = [d for d in allowed if tasks.contiguous and loads[d] + own[d] / 2 <= shares[d]]
        chosen = begun[0] if begun else min(allowed, key=lambda device: (loads[device] + own[device], device))
        loads[chosen] += own[chosen]
        schedule.put(task, chosen, schedule.begin(task, chosen))
    return schedule.placement()


def single(tasks: TaskGraph) -> tuple[int, ...] | Infeasible:
    """Every task on the device that does them all in the least time."""
    total = math.fsum(tasks.size)
    whole = {d: math.fsum(own[d] for own in tasks.seconds) for d in tasks.devices}
    fits = [d for d in tasks.devices if math.isfinite(whole[d]) and total <= tasks.memory[d]]
    if not fits:
        most = max(tasks.memory)
        return Infeasible(
            binding=f"memory: all tasks hold {total:.0f} bytes together, the largest device has {most:.0f}, or there "
            "is none that may run them all",
            advice="Place them on several devices",
        )
    return (min(fits, key=lambda device: (whole[device], device)),) * tasks.count


def _shares(tasks: TaskGraph) -> list[float]:
    """The seconds after which all devices are done together, were tasks as fine as sand."""
    rates = speeds(tasks)
    whole = math.fsum(min(own) for own in tasks.seconds)
    fastest = max(rates)
    return [whole * fastest / math.fsum(rates) if rate else 0.0 for rate in rates]


def speeds(tasks: TaskGraph) -> list[float]:
    """Of each device the tasks a second, of those it may run; 0 where it runs none."""
    found = []
    for device in tasks.devices:
        own = [row[device] for row in tasks.seconds if math.isfinite(row[device])]
        whole = math.fsum(own)
        found.append(len(own) / whole if whole else 0.0)
    return found if any(found) else [1.0 for _ in found]
