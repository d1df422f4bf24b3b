"""Which solver takes which format of placement file: one table, name -> where it lies."""

from __future__ import annotations

import importlib
from typing import Protocol

from placer.errors import UsageError
from placer.placement.answers import PlaceAnswer
from placer.placement.formats import EXACT, FileProblem, PlaceRequest

# format of a placement file -> where it is solved
PLACERS = {
    "dnn-partitioning": "placer.strategies.placement.solve:solve",
    "pipedream": "placer.strategies.placement.solve:solve",
    "doppler": "placer.strategies.placement.solve:solve",
    "piper": "placer.strategies.placement.piper.search:solve",
}
# strategy -> where graphs of nodes with one cost each are placed by it; every other is a list scheduler.
NAMED = {
    "min_cut": "placer.strategies.placement.solve:solve",
    "local": "placer.strategies.placement.orders.answer:solve",
    "genetic": "placer.strategies.placement.orders.answer:solve",
    "policy": "placer.strategies.policy.orders.answer:solve",
}
LISTED = "placer.strategies.lists.from_file:solve"


class Placer(Protocol):
    """Solves the problems of one file format; its answer is judged by `placer.placement`, never by itself."""

    def __call__(self, problem: FileProblem, request: PlaceRequest) -> PlaceAnswer:
        """The best placement it finds. Raises InfeasibleError with what binds."""
        ...


def place(problem: FileProblem, request: PlaceRequest) -> PlaceAnswer:
    """The placement of a problem that came as a file. Raises InfeasibleError with what binds, UsageError for misuse."""
    if problem.format not in PLACERS:
        raise UsageError(f"no solver takes a {problem.format!r} problem; known: {', '.join(PLACERS)}")
    named = NAMED.get(request.strategy, LISTED)
    module, attribute = (PLACERS[problem.format] if request.strategy == EXACT else named).split(":")
    placer: Placer = getattr(importlib.import_module(module), attribute)
    return placer(problem, request)
