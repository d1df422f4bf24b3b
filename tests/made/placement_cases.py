"""Small random placement problems and their optimum by trying every placement, judged by the evaluator alone."""

from __future__ import annotations

import itertools
import math

from hypothesis import strategies as st

from placer.placement.answers import objective_of
from placer.placement.legality import Form, classes, violations
from placer.placement.problem import Placement, PlacementNode, PlacementProblem

MOST_PLACEMENTS = 3000


@st.composite
def problems(draw: st.DrawFn, *, training: bool = True, largest: int = 6) -> PlacementProblem:
    """Unequal nodes, colours, backward nodes, unsupported nodes, tight memory, 0 to 3 accelerators, 0 to 2 CPUs."""
    count = draw(st.integers(1, largest))
    backward_from = draw(st.integers(1, count)) if training else count
    nodes = tuple(_node(draw, index, backward=index >= backward_from) for index in range(count))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    edges = tuple(pair for pair in pairs if draw(st.integers(0, 2)) == 0)
    accelerators, cpus = draw(st.sampled_from([(1, 0), (2, 0), (3, 0), (0, 1), (0, 2), (1, 1), (2, 1), (3, 1), (2, 2)]))
    memory = draw(st.sampled_from([math.inf, 12.0, 6.0, 3.0]))
    return PlacementProblem(nodes=nodes, edges=edges, accelerators=accelerators, cpus=cpus, memory=memory)


def _node(draw: st.DrawFn, index: int, *, backward: bool) -> PlacementNode:
    empty = draw(st.integers(0, 3)) == 0
    return PlacementNode(
        name=f"n{index}",
        accelerator=0.0 if empty else draw(st.integers(0, 8)) / 4,
        host=0.0 if empty else draw(st.integers(0, 24)) / 4,
        size=float(draw(st.integers(0, 4))),
        send=draw(st.integers(0, 6)) / 4,
        supported=draw(st.integers(0, 7)) > 0,
        backward=backward,
        colour=draw(st.sampled_from([None, None, None, 0, 1])),
    )


def placements(problem: PlacementProblem) -> list[Placement]:
    """Every placement that keeps colours together."""
    labels = classes(problem)
    devices = range(problem.devices)
    return [tuple(choice[label] for label in labels) for choice in itertools.product(devices, repeat=max(labels) + 1)]


def optimum(problem: PlacementProblem, form: Form) -> float:
    """The least objective of a legal placement; infinite where there is none."""
    legal = (placement for placement in placements(problem) if not violations(problem, placement, form))
    return min((objective_of(problem, placement, form) for placement in legal), default=math.inf)


def small_enough(problem: PlacementProblem) -> bool:
    """Whether trying every placement takes a moment only."""
    choices: int = problem.devices ** (max(classes(problem)) + 1)
    return choices <= MOST_PLACEMENTS
