"""Plans made by hand for tests of schedules, programs, legality and simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusters import INSIDE, SLOW, cluster
from graphs import BlockSpec, chain_graph
from placer.cluster.cluster import Cluster
from placer.graph import Graph
from placer.plans.plan import ModelRef, Plan, ScheduleName, Sharding, Stage
from placer.plans.settings import RunSettings

SETTINGS = RunSettings(clip_norm=1.0)


def even_cuts(blocks: int, stages: int) -> tuple[int, ...]:
    """The edges of `stages` stages of about equally many blocks."""
    return tuple(round(index * blocks / stages) for index in range(stages + 1))


def pipeline_plan(
    graph: Graph,
    *,
    positions: int = 1,
    turns: int = 1,
    replicas: int = 1,
    microbatches: int | Sequence[int] = 1,
    schedule: ScheduleName = "1f1b",
    sharding: Sharding = "none",
    recompute: bool = False,
    cuts: Sequence[int] | None = None,
    machines: Cluster | None = None,
    settings: RunSettings = SETTINGS,
) -> Plan:
    """`positions` * `turns` stages with `replicas` devices each, devices in order; two rows per replica by default."""
    stages = positions * turns
    edges = tuple(cuts) if cuts is not None else even_cuts(len(graph.blocks), stages)
    rows = (2 * replicas,) * microbatches if isinstance(microbatches, int) else tuple(microbatches)
    return Plan(
        model=ModelRef(kind="factory", reference="tests:chain", fingerprint="model"),
        graph=graph,
        cluster=machines or cluster(per_node=positions * replicas, device=SLOW, inside=INSIDE),
        settings=settings,
        stages=tuple(
            Stage(
                first=edges[s],
                last=edges[s + 1],
                devices=tuple(range(s % positions * replicas, (s % positions + 1) * replicas)),
                sharding=sharding,
                recompute=recompute,
            )
            for s in range(stages)
        ),
        schedule=schedule,
        microbatches=rows,
    )


def chain(blocks: int = 8, *, skips: Sequence[tuple[int, int]] = (), tied: Sequence[tuple[int, int]] = ()) -> Graph:
    """Equal blocks in a row."""
    return chain_graph([BlockSpec()] * blocks, skips=skips, tied=tied)


def changed_stage(plan: Plan, index: int, **changes: object) -> Plan:
    """The plan with some fields of one stage replaced."""
    stages = list(plan.stages)
    stages[index] = replace(stages[index], **changes)  # type: ignore[arg-type]
    return replace(plan, stages=tuple(stages))
