"""Galvatron's problem solved: tensor degree of layers and vocabulary, sharding and recomputation of each layer, exact.

    minimise  n C + max(0, S - C),   C = sum_i c(x_i) + vocabulary,  S = sum_i s(x_i)   subject to  sum_i m(x_i) <= room

Layers are alike and resharding between tensor degrees is not in the published value, so only counts of choices matter
once the layers share a degree: every way to divide the layers over the four choices of a degree is tried, at once. The
space is that of one pipeline stage with one tensor degree for all layers; each answer is the best of it.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import numpy as np

from placer.errors import Infeasible
from placer.placement.published_planners.galvatron import (
    GalvatronPlan,
    GalvatronProblem,
    LayerChoice,
    buffer_MB,
    layer_MB,
    layer_ms,
    value_of,
    vocabulary_MB,
    vocabulary_ms,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GalvatronSolution:
    """The best plan, its throughput by the evaluator (samples/s), a bound of any plan's, the seconds it took."""

    plan: GalvatronPlan
    throughput: float
    bound: float
    seconds: float


def solve_galvatron(problem: GalvatronProblem, *, per_layer: bool) -> GalvatronSolution | Infeasible:
    """The best plan; with `per_layer` false all layers choose alike, and the vocabulary as they do."""
    started = time.perf_counter()
    degrees = [t for t in (1, 2, 4, 8, 16) if problem.devices % t == 0 and problem.samples(t) >= 1]
    found = [
        best
        for tensor, vocabulary, sharded in itertools.product(degrees, degrees, (False, True))
        if per_layer or vocabulary == tensor
        for best in _best(problem, tensor, vocabulary, sharded=sharded, per_layer=per_layer)
    ]
    if not found:
        return Infeasible(binding=f"no layers fit {problem.room_MB} MB a device", advice="give more memory or devices")
    _, plan = min(found, key=lambda stepped: stepped[0])
    value = value_of(problem, plan)
    return GalvatronSolution(
        plan=plan, throughput=value.throughput, bound=value.throughput, seconds=time.perf_counter() - started
    )


def _best(
    problem: GalvatronProblem, tensor: int, vocabulary: int, *, sharded: bool, per_layer: bool
) -> list[tuple[float, GalvatronPlan]]:
    """The best plan at these degrees and the milliseconds of its step, or none where nothing fits."""
    choices = [
        LayerChoice(tensor=tensor, sharded=s, recompute=r)
        for r, s in itertools.product((True, False), repeat=2)
        if per_layer or s == sharded
    ]
    alike = np.eye(len(choices), dtype=np.int64) * problem.layers
    counts = _divisions(problem.layers, len(choices)) if per_layer else alike
    times = np.array([layer_ms(problem, choice) for choice in choices])
    used = counts @ np.array([layer_MB(problem, choice) for choice in choices])
    used = used + vocabulary_MB(problem, vocabulary, sharded=sharded) + buffer_MB(problem, max(tensor, vocabulary))
    plain = counts @ times[:, 0] + vocabulary_ms(problem, vocabulary, sharded=sharded)
    step = problem.chunks * plain + np.maximum(0.0, counts @ times[:, 1] - plain)
    step = np.where(used <= problem.room_MB, step, np.inf)
    at = int(step.argmin())
    if not np.isfinite(step[at]):
        return []
    layers = tuple(choice for count, choice in zip(counts[at], choices, strict=True) for _ in range(count))
    plan = GalvatronPlan(layers=layers, vocabulary_tensor=vocabulary, vocabulary_sharded=sharded)
    return [(float(step[at]), plan)]


def _divisions(total: int, parts: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Every way to write `total` as a sum of `parts` counts, a row each."""
    rows = [c for c in itertools.product(range(total + 1), repeat=parts - 1) if sum(c) <= total]
    found = np.array([(*c, total - sum(c)) for c in rows], dtype=np.int64)
    return found.reshape(-1, parts)
