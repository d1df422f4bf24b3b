"""Megatron's rule of thumb: the baseline of those who train transformers on many GPUs.

The fewest devices a replica that fit (Narayanan et al., arXiv:2104.04473, takeaways 1 to 3): tensor parallel up to the
size of a node, pipeline parallel beyond, data parallel on the rest; of microbatches the best. The layouts themselves
are those of `megatron_layouts`.
"""

from __future__ import annotations

from collections.abc import Iterator

from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.search.judge import broken_pins
from placer.search.problem import Problem
from placer.strategies.baselines.megatron_layouts import MegatronDegrees, MegatronLayouts
from placer.strategies.baselines.standard import Baseline
from placer.strategies.space.outline import divisors, powers_of_two, recomputes, schedules, shardings, whole_batch

# Rows of a microbatch on a replica that are tried: those of the paper's figures 7, 8 and 16.
MOST_ROWS = 8


class Megatron(Baseline):
    """Tensor inside the node as small as fits, pipeline across nodes, data on the rest."""

    name = "megatron"
    cuts_ops = True

    def candidates(self, problem: Problem) -> Iterator[tuple[Plan, ...]]:
        """By devices a replica, from few to many, without recompute first; microbatches of all sizes are one group."""
        made = MegatronLayouts(problem)
        for tensor, pipeline in _replicas(problem):
            for recompute in recomputes(problem):
                plans = _made(made, _degrees(problem, tensor, pipeline, recompute=recompute))
                kept = tuple(plan for plan in plans if not broken_pins(plan, problem.pins))
                if kept:
                    yield kept


def _replicas(problem: Problem) -> Iterator[tuple[int, int]]:
    """Tensor and pipeline degrees by the number of devices; the tensor degree fills the node first."""
    pins, size = problem.pins, min(node.size for node, _ in problem.cluster.groups)
    inside = divisors(size) if pins.tensor is None else (pins.tensor,)
    for tensor in inside:
        if pins.pipeline is not None:
            yield tensor, pins.pipeline
        elif tensor < inside[-1]:
            yield tensor, 1
        else:
            most = min(problem.cluster.size // tensor, len(problem.graph.blocks))
            yield from ((tensor, pipeline) for pipeline in powers_of_two(most))


def _degrees(problem: Problem, tensor: int, pipeline: int, *, recompute: bool) -> Iterator[MegatronDegrees]:
    """The layouts of given tensor and pipeline degrees, one for each size of microbatch."""
    rows = 1 if whole_batch(problem) else problem.rows
    data = problem.pins.data or min(problem.cluster.size // (tensor * pipeline), rows)
    if not data:
        return
    for schedule, virtual in schedules(problem, pipeline)[:1]:
        for sharding in shardings(problem.pins, data, schedule)[:1]:
            sizes = [problem.rows] if whole_batch(problem) else powers_of_two(min(MOST_ROWS, rows // data))
            if problem.pins.microbatches:
                sizes = [-(-rows // problem.pins.microbatches // data)]
            for each in sizes:
                yield MegatronDegrees(
                    tensor=tensor, pipeline=pipeline, data=data, virtual=virtual, rows=each, schedule=schedule,
                    recompute=recompute, sharding=sharding,
                )  # fmt: skip


def _made(layouts: MegatronLayouts, wanted: Iterator[MegatronDegrees]) -> Iterator[Plan]:
    """The plans that the model and the cluster allow."""
    for degrees in wanted:
        try:
            yield layouts.plan(degrees)
        except UsageError:  # more devices or stages than there are, or no op of that many pieces
            continue
