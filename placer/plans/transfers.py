"""What the stages of a plan read of each other, where they sit, and the graph that they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from placer.graph import Graph
from placer.io.memo import of_last
from placer.plans.plan import Plan, Stage
from placer.plans.schedule import BRANCHED
from placer.plans.stage_graph import StageGraph, chain, of_reads

# What `made_by` remembers: the values between the blocks of some models.
REMEMBERED = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What stage `source` sends to stage `target` for every microbatch: block outputs, in the order they are made.

    `differentiable` are those of `values` whose gradients come back; it may be empty.
    """

    source: int
    target: int
    values: tuple[str, ...]
    differentiable: tuple[str, ...]


def position_of(plan: Plan) -> tuple[int, ...]:
    """The pipeline position of each stage: the rank of its device set by first use."""
    order: dict[tuple[int, ...], int] = {}
    return tuple(order.setdefault(stage.devices, len(order)) for stage in plan.stages)


@of_last
def transfers(plan: Plan) -> tuple[Transfer, ...]:
    """One transfer for every pair of stages at different positions where the later reads what the earlier makes.

    Values go directly from where they are made to every reader, also over stages between. Inputs and the prologue are
    never sent. Ordered by source, then target.
    """
    graph, positions = plan.graph, position_of(plan)
    crossing: dict[tuple[int, int], set[str]] = {}
    for reference, source, target in _reads(plan):
        if positions[source] != positions[target]:
            crossing.setdefault((source, target), set()).add(reference)
    return tuple(_transfer(graph, *pair, found) for pair, found in sorted(crossing.items()))


def _transfer(graph: Graph, source: int, target: int, found: set[str]) -> Transfer:
    values = tuple(sorted(found, key=made_by))
    differentiable = tuple([value for value in values if value in graph.differentiable])
    return Transfer(source=source, target=target, values=values, differentiable=differentiable)


@lru_cache(maxsize=REMEMBERED)
def made_by(reference: str) -> tuple[int, int]:
    """Block and output number of a block output `b7.0`; (-1, k) for the prologue's."""
    block, output = reference[1:].split(".")
    return int(block), int(output)


def stage_of_block(plan: Plan) -> dict[int, int]:
    """The stage of each block."""
    home: dict[int, int] = {}
    for number, stage in enumerate(plan.stages):
        home.update(dict.fromkeys(range(stage.first, stage.last), number))
    return home


@of_last
def _reads(plan: Plan) -> list[tuple[str, int, int]]:
    """(value, stage that makes it, later stage that reads it)."""
    home = stage_of_block(plan)
    return [
        (reference, source, target)
        for reference, maker, reader in plan.graph.reads
        if (source := home[maker]) < (target := home[reader])
    ]


def stage_graph(plan: Plan) -> StageGraph:
    """What waits for what: what the stages read of each other, which makes most pipelines a chain.

    Stages of a pipeline count as of the same work.
    """
    return chain(len(plan.stages), plan.positions) if is_chain(plan) else read_graph(plan)


@of_last
def read_graph(plan: Plan) -> StageGraph:
    """What the stages read of each other, be they a chain or not."""
    differentiable = plan.graph.differentiable
    reads = {(source, target, value in differentiable) for value, source, target in _reads(plan)}
    branched = plan.schedule in BRANCHED
    work = [_work(plan, stage) if branched else 1.0 for stage in plan.stages]
    return of_reads(position_of(plan), reads, work)


def skipping(plan: Plan) -> tuple[Transfer, ...]:
    """What goes from a stage to others than the one behind it."""
    if len(plan.stages) < 3 or not plan.graph.skips:
        return ()
    return tuple(transfer for transfer in transfers(plan) if transfer.target > transfer.source + 1)


def is_chain(plan: Plan) -> bool:
    """Whether each stage waits for the one before it, and that one for its gradients; not asked under `branched`."""
    if plan.schedule in BRANCHED:
        return False
    follows = plan.graph.follows
    if all(follows[stage.first] for stage in plan.stages[1:]):
        return True
    waited = {
        (source, target)
        for value, source, target in _reads(plan)
        if target == source + 1 and value in plan.graph.differentiable
    }
    return len(waited) == len(plan.stages) - 1


def _work(plan: Plan, stage: Stage) -> float:
    """Seconds of a stage's forward at the peak of its slowest device: enough to order stages by."""
    before, rows = plan.graph.flops_before, plan.rows
    flops = before[stage.last].at(rows) - before[stage.first].at(rows)
    dtype = "float32" if plan.settings.precision == "bfloat16-autocast" else plan.settings.precision
    slowest = min(plan.cluster.devices[device].rate(dtype) for device in stage.devices)
    return (1 + flops) / (len(stage.devices) * slowest)
