"""What prices depend on beside devices: a graph as one device of a replica has it, its types, and the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from placer.cluster.cluster import Backend
from placer.costs.precision import Numerics
from placer.graph import Affine, Graph, Parameter
from placer.plans.plan import Layout
from placer.plans.settings import BALANCED, RunSettings
from placer.spmd.device_graph import LocalClasses, local_graph
from placer.spmd.parameter_layouts import kept_whole


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """What prices depend on beside devices: the graph of one of the `degree` devices of a replica, and the settings.

    Sizes of the graph count rows of which a replica has `apart` times as many. `whole` is the graph of all devices of a
    replica, `layout` how it is cut; replicas begin at devices whose numbers leave the remainder `offset` when they are
    divided by the degree. Of the parameters in `kept_whole` every device of a replica holds that, whatever its blocks
    read. `inner` devices are along the second axis of a replica, where there are two.
    """

    graph: Graph
    whole: Graph
    numerics: Numerics
    settings: RunSettings
    layout: Layout | None = None
    offset: int = 0
    degree: int = 1
    inner: int = 1
    apart: int = 1
    kept_whole: Mapping[str, Parameter] = field(default_factory=dict)

    def per_row(self, size: Affine) -> Affine:
        """A size in the graph's rows as one in rows of a replica, rounded up."""
        return Affine(size.fixed, -(-size.per_row // self.apart))


def workload(
    graph: Graph, settings: RunSettings, layout: Layout | None, offset: int, backend: Backend, known: LocalClasses
) -> Workload:
    """What is priced of a graph, cut as a layout says where there is one, on devices of a `backend`; `known`: classes
    of other layouts of the same graph and settings."""
    balanced, loads = settings.stack in BALANCED, settings.expert_loads
    local = graph if layout is None else local_graph(graph, layout, loads, balanced=balanced, known=known)
    numerics = Numerics.of(local, settings, backend)
    if layout is None:
        return Workload(graph=graph, whole=graph, numerics=numerics, settings=settings)
    return Workload(
        graph=local, whole=graph, numerics=numerics, settings=settings, layout=layout, offset=offset,
        degree=layout.degree, inner=layout.inner, apart=layout.apart, kept_whole=kept_whole(graph, layout),
    )  # fmt: skip
