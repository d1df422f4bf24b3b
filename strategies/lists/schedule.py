"""A schedule while it is made, task by task in an order in which each comes behind what it reads.

A device may take a task where it can run the whole group and has room for it, where the group does not stand elsewhere
already, and where, if devices must not wait for each other in a cycle, that makes none: of the devices behind this one
none feeds the task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from placer.errors import Infeasible
from placer.strategies.lists.task_graph import TaskGraph

# Sums of sizes are exact to far less than this share of a memory.
MEMORY_ROUNDING = 1e-12


@dataclass
class Schedule:
    """`place` and `end` of the tasks so far; `busy` are the (begin, end) of a device's tasks in order of time."""

    tasks: TaskGraph
    place: dict[int, int] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tasks = self.tasks
        self.busy: list[list[tuple[float, float]]] = [[] for _ in tasks.devices]
        self._room = [memory * (1 + MEMORY_ROUNDING) for memory in tasks.memory]
        self._home: dict[int, int] = {}
        # Of each device those that come after it; of each task on a lone device those it comes after.
        self._after: list[set[int]] = [set() for _ in tasks.devices]
        self._before: dict[int, set[int]] = {}

    def free(self, device: int) -> float:
        """When a device has done all that it has."""
        return self.busy[device][-1][1] if self.busy[device] else 0.0

    def load(self, device: int) -> float:
        """Seconds of a device's tasks."""
        return math.fsum(end - begin for begin, end in self.busy[device])

    def ready(self, task: int, device: int) -> float:
        """When what a task reads has come to a device."""
        tasks = self.tasks
        return max(
            (self.end[e.source] + tasks.transfer(e, self.place[e.source], device) for e in tasks.reads[task]),
            default=0.0,
        )

    def begin(self, task: int, device: int, *, between: bool = False) -> float:
        """When a device can begin a task: behind all it has, or also `between` where there is a gap long enough."""
        ready = self.ready(task, device)
        if not between:
            return max(ready, self.free(device))
        seconds, at = self.tasks.seconds[task][device], ready
        for begin, end in self.busy[device]:
            if at + seconds <= begin:
                break
            at = max(at, end)
        return at

    def put(self, task: int, device: int, begin: float) -> None:
        """Run a task there and then."""
        end = begin + self.tasks.seconds[task][device]
        self.place[task], self.end[task] = device, end
        self.busy[device].append((begin, end))
        if len(self.busy[device]) > 1 and self.busy[device][-2][1] > begin:
            self.busy[device].sort()
        group = self.tasks.group[task]
        if group not in self._home:
            self._home[group] = device
            self._room[device] -= self._size(group)
        if self.tasks.contiguous:
            self._link(task, device)

    def devices(self, task: int) -> list[int]:
        """The devices that may take a task."""
        group = self.tasks.group[task]
        if group in self._home:
            found = [self._home[group]]
        else:
            size = self._size(group)
            found = [d for d in self.tasks.devices if size <= self._room[d] and self._runs(group, d)]
        return [d for d in found if self._acyclic(task, d)] if self.tasks.contiguous else found

    def stuck(self, task: int) -> Infeasible:
        """Why no device may take a task."""
        tasks = self.tasks
        group = tasks.group[task]
        more = f" with the {len(tasks.groups[group]) - 1} that share its device" if len(tasks.groups[group]) > 1 else ""
        rooms = ", ".join(f"{max(0.0, room):.0f}" for room in self._room[:8])
        order = ", in an order in which no device waits for another in a cycle" if tasks.contiguous else ""
        return Infeasible(
            binding=f"memory: {tasks.names[task]}{more} holds {self._size(group):.0f} bytes and no device that may run "
            f"it has them left behind {len(self.place)} tasks{order} (left: {rooms})",
            advice="A list scheduler takes nothing back; another strategy, more memory or more devices may do",
        )

    def placement(self) -> tuple[int, ...]:
        """The device of every task."""
        return tuple(self.place[task] for task in range(self.tasks.count))

    def _size(self, group: int) -> float:
        return math.fsum(self.tasks.size[task] for task in self.tasks.groups[group])

    def _runs(self, group: int, device: int) -> bool:
        return all(math.isfinite(self.tasks.seconds[task][device]) for task in self.tasks.groups[group])

    def _feeding(self, task: int) -> tuple[set[int], set[int]]:
        """The devices a task reads of, and those that come before the lone tasks it reads of."""
        direct: set[int] = set()
        through: set[int] = set()
        for edge in self.tasks.reads[task]:
            if edge.source in self._before:
                through |= self._before[edge.source]
            else:
                direct.add(self.place[edge.source])
        return direct, through

    def _acyclic(self, task: int, device: int) -> bool:
        if device in self.tasks.lone:
            return True
        direct, through = self._feeding(task)
        behind = self._behind(device)
        return device not in through and not behind & ((direct | through) - {device})

    def _behind(self, device: int) -> set[int]:
        """All devices that come after one, however far."""
        found, left = set[int](), [device]
        while left:
            new = self._after[left.pop()] - found
            found |= new
            left += new
        return found

    def _link(self, task: int, device: int) -> None:
        direct, through = self._feeding(task)
        if device in self.tasks.lone:
            self._before[task] = direct | through
            return
        for other in (direct | through) - {device}:
            self._after[other].add(device)
