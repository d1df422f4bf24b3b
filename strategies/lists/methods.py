"""The table of list schedulers and partitioners: name -> the function from tasks to a device for each."""

from __future__ import annotations

from typing import Protocol

from placer.errors import Infeasible, UsageError
from placer.strategies.lists.earliest import etf, sct
from placer.strategies.lists.loads import greedy, single
from placer.strategies.lists.metis import metis
from placer.strategies.lists.ranked import critical_path, heft
from placer.strategies.lists.task_graph import TaskGraph


class Method(Protocol):
    """Places tasks on devices."""

    def __call__(self, tasks: TaskGraph) -> tuple[int, ...] | Infeasible:
        """A device for every task, or why it finds none."""
        ...


METHODS: dict[str, Method] = {
    "heft": heft,
    "etf": etf,
    "sct": sct,
    "critical_path": critical_path,
    "greedy": greedy,
    "metis": metis,
    "single": single,
}


def method(name: str) -> Method:
    """The one called `name`. Raises UsageError listing the known ones."""
    if name not in METHODS:
        raise UsageError(
            f"there is no list scheduler or partitioner {name!r}; known: {', '.join(METHODS)}, "
            "and exact, min_cut, local, genetic and policy where a file is placed"
        )
    return METHODS[name]
