"""Plans whose stages lie on meshes of different shapes, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from hypothesis import strategies as st

from clusters import INSIDE, SLOW, cluster
from graphs import chain_graphs
from pipeline_plans import pipeline_plan
from placer.cluster.cluster import Cluster, Link
from placer.graph import Graph
from placer.plans.plan import Plan, ScheduleName, Sharding

SCHEDULES: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "zero-bubble")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One position: its replicas, their shares, how they shard their state."""

    replicas: int = 1
    shares: tuple[int, ...] = ()
    sharding: Sharding = "none"


def mesh_plan(
    graph: Graph,
    sides: Sequence[Side | int],
    *,
    microbatches: int | Sequence[int] = 4,
    schedule: ScheduleName = "1f1b",
    machines: Cluster | None = None,
) -> Plan:
    """A stage for each of `sides` (numbers are of replicas), on devices in order; 12 rows a microbatch by default."""
    given = [Side(replicas=side) if isinstance(side, int) else side for side in sides]
    ends = list(accumulate((side.replicas for side in given), initial=0))
    rows = (12,) * microbatches if isinstance(microbatches, int) else tuple(microbatches)
    made = pipeline_plan(
        graph,
        positions=len(given),
        microbatches=rows,
        schedule=schedule,
        machines=machines or cluster(per_node=ends[-1], device=SLOW, inside=INSIDE),
    )
    stages = (
        replace(stage, devices=tuple(range(first, last)), shares=side.shares, sharding=side.sharding)
        for stage, side, first, last in zip(made.stages, given, ends, ends[1:], strict=False)
    )
    return replace(made, stages=tuple(stages))


@st.composite
def sides(draw: st.DrawFn) -> Side:
    """A position of one to four replicas, of equal or of other shares."""
    replicas = draw(st.integers(1, 4))
    shares = tuple(draw(st.integers(1, 3)) for _ in range(replicas)) if draw(st.booleans()) else ()
    return Side(replicas=replicas, shares=shares)


@st.composite
def mesh_plans(draw: st.DrawFn) -> Plan:
    """Random chains on two to four positions of random shapes, nodes of two devices, slow or fast links."""
    given = draw(st.lists(sides(), min_size=2, max_size=4))
    wire = Link(
        name="wire", latency_seconds=draw(st.sampled_from([1e-6, 1e-3])), bandwidth=10.0 ** draw(st.integers(6, 11))
    )
    return mesh_plan(
        draw(chain_graphs(least=4, most=8)),
        given,
        microbatches=(12, *(draw(st.integers(1, 12)) for _ in range(draw(st.integers(0, 4))))),
        schedule=draw(st.sampled_from(SCHEDULES)),
        machines=cluster(nodes=8, per_node=2, device=SLOW, inside=wire, out=wire),
    )
