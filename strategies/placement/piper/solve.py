"""What `placer place` does with a Piper graph: solves it, judges the plan by the evaluator, and words the answer."""

from __future__ import annotations

from collections import Counter

from placer.errors import Infeasible, InfeasibleError, StrategyError, UsageError
from placer.placement.answers import ROUNDING, PlaceAnswer, PlacedStage
from placer.placement.formats import FileProblem, PlaceRequest
from placer.placement.published_planners.piper import PiperProblem, PiperStage, value_of
from placer.strategies.placement.piper.search import solve_piper

UNIT = "file's time"
KIND = "largest stage time per microbatch, data x tensor x pipeline x recompute"


def solve(problem: FileProblem, request: PlaceRequest) -> PlaceAnswer:
    """The best plan. Raises InfeasibleError with what binds."""
    if not isinstance(problem, PiperProblem):
        raise UsageError(f"a {problem.format!r} problem was given to Piper's solver; give it a Piper graph")
    found = solve_piper(problem, seconds=request.seconds)
    if isinstance(found, Infeasible):
        raise InfeasibleError(found)
    value = value_of(problem, found.stages)
    if found.bound > value.value * (1 + ROUNDING):
        raise StrategyError(f"a solver proved {found.bound!r}, its own plan reaches {value.value!r}")
    return PlaceAnswer(
        objective=value.value,
        unit=UNIT,
        kind=KIND,
        bound=found.bound,
        seconds=found.seconds,
        assignment=tuple((str(node), f"stage {i}") for i, stage in enumerate(found.stages) for node in stage.nodes),
        stages=tuple(_stage(i, stage, value.times[i], value.memory_bytes[i]) for i, stage in enumerate(found.stages)),
    )


def _stage(number: int, stage: PiperStage, time: float, memory: float) -> PlacedStage:
    """A stage in the words of an answer."""
    variants = ", ".join(f"{count} {name}" for name, count in sorted(Counter(stage.variants).items()))
    return PlacedStage(
        device=f"stage {number}",
        nodes=tuple(str(node) for node in stage.nodes),
        load=time,
        memory_bytes=memory,
        detail=f"data {stage.data} x tensor {stage.tensor}, {variants}:",
        data=stage.data,
        tensor=stage.tensor,
        variants=stage.variants,
    )
