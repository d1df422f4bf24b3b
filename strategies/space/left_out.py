"""What a plan may say and no exact search tries: the choices of which a bound and a gap say nothing.

In: a Problem. Out: the kinds of plans outside of the space that `outline` states, in words; of these only such as the
problem has. A plan that is faster than the bound of a finished search is of one of them
(tests/search/test_strategies_strangers.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from placer.search.problem import Problem
from placer.strategies.space.block_graph import BlockGraph
from placer.strategies.space.device_orders import SMALL_NODE
from placer.strategies.space.outline import MANY_DEVICES, MANY_ROWS, whole_batch

# `estimate` prices the largest and the last microbatch only.
MICROBATCHES = "microbatches of unlike rows, but for a smaller last one"
ROWS = "other rows of a microbatch than likely ones"
STAGES = "shardings and shares of their own for single stages, other shares than likely ones"
DEVICES = "devices in other orders than kind by kind"
REPLICAS = "other numbers of replicas than likely ones"
SPLITS = "other splits of ops than the best few of each axis and degree"
DEGREES = "replicas of other numbers of devices than powers of two and what divides a node"
NODES = "replicas of devices of several nodes, but for such that have rows of their own"
BRANCHES = "stages that are a graph (branches on devices of their own, pipelines whose stages do not wait in turn)"
LENGTHS = "interleaved stages of uneven lengths"
BUCKETS = "other sizes of buckets"
PARTS = "stages of which only some blocks recompute"


def left_out(problem: Problem) -> tuple[str, ...]:
    """The kinds of plans of a problem that no exact search tries; empty where it tries every plan."""
    return tuple(_kinds(problem)) if problem.cluster.size > 1 else (*_of_rows(problem), *_of_recompute(problem))


def _kinds(problem: Problem) -> Iterator[str]:
    pins, several = problem.pins, len(problem.graph.blocks) > 1
    yield from _of_rows(problem)
    if not whole_batch(problem):
        yield STAGES
        if pins.bucket is None:
            yield BUCKETS
        if problem.cluster.size > MANY_DEVICES and pins.data is None:
            yield REPLICAS
    if _differ(problem):
        yield DEVICES
    yield SPLITS
    if max(node.size for node, _ in problem.cluster.groups) > SMALL_NODE:
        yield DEGREES
    if len(problem.cluster.nodes) > 1:
        yield NODES
    if pins.schedule is None and BlockGraph.of(problem.graph).branches:
        yield BRANCHES
    yield from _of_recompute(problem)
    if several and pins.schedule in (None, "interleaved"):
        yield LENGTHS


def _of_rows(problem: Problem) -> Iterator[str]:
    if whole_batch(problem) or problem.pins.microbatches == 1:
        return
    if problem.rows > 2:
        yield MICROBATCHES
    if problem.rows > MANY_ROWS and problem.pins.microbatches is None:
        yield ROWS


def _of_recompute(problem: Problem) -> Iterator[str]:
    if len(problem.graph.blocks) > 2 and problem.settings.recompute == "auto" and problem.pins.recompute is None:
        yield PARTS


def _differ(problem: Problem) -> bool:
    """Whether devices, or what joins them, differ, so that their order matters."""
    return len(problem.cluster.nodes) > 1 or len(set(problem.cluster.devices)) > 1
