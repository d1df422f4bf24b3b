"""Plans whose replicas are several devices, with the layouts that a search finds where communication costs next to
nothing, so that it cuts what can be cut."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from placer.cluster.cluster import Cluster, Curve, Device, Link, Node
from placer.costs.costs import Costs
from placer.graph import Graph
from placer.plans.plan import Layout, ModelRef, Plan
from placer.plans.settings import RunSettings
from placer.search.problem import Pins, Problem
from placer.strategies.intra_op.layouts import layouts


def fast_links(devices: int) -> Cluster:
    """Slow processes that reach each other at once."""
    slow = Device(
        name="process", backend="cpu", memory_bytes=2**33, memory_bandwidth=1e7, rates=(("float32", 1e7),),
        launch_seconds=1e-9, curve=Curve(points=((1.0, 1.0),)),
    )  # fmt: skip
    link = Link(name="link", latency_seconds=1e-9, bandwidth=1e13)
    return Cluster(name="processes", groups=((Node(name="here", devices=((slow, devices),), link=link), 1),))


@cache
def searched(
    graph: Graph, model: ModelRef, rows: int, axis: str, degree: int, loads: tuple[float, ...] = ()
) -> tuple[Layout, ...]:
    """The layouts of `graph` over `degree` devices along `axis`; none where the model has nothing to cut so.

    Along two axes, `height x width`, there are `degree` devices along each.
    """
    axes = axis.split(" x ")
    cluster, settings = fast_links(degree ** len(axes)), RunSettings(expert_loads=loads)
    pins = replace(Pins(), **dict.fromkeys(axes, degree))  # type: ignore[arg-type]  # an axis is a field of Pins
    problem = Problem(model=model, graph=graph, cluster=cluster, settings=settings, rows=rows, pins=pins)
    return layouts(problem, Costs(graph, cluster, settings))


def widened(plan: Plan, layout: Layout, cluster: Cluster) -> Plan:
    """The plan with `layout.degree` devices of `cluster` for each of its own."""

    def devices(own: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(device * layout.degree + inner for device in own for inner in range(layout.degree))

    stages = tuple(
        replace(stage, devices=devices(stage.devices), layout=0, degree=layout.degree) for stage in plan.stages
    )
    return replace(plan, cluster=cluster, layouts=(layout,), stages=stages)
