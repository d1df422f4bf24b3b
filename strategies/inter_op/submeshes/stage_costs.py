"""What a stage on a spot costs exactly, and whether it fits and may hand its values on to the next spot.

All from `Costs.stage_cost`, `steptime.terms` and `placer.costs.memory.peak`, as the estimate of a plan has it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from placer.costs.memory.in_flight import microbatches_in_flight
from placer.costs.memory.peak import position_memory, stage_memory
from placer.costs.timing.step import StageCost, Terms, terms
from placer.errors import UsageError
from placer.plans.plan import Layout
from placer.program.unsupported import indivisible
from placer.spmd.cross_mesh import Crossing, routes
from placer.spmd.parameter_layouts import layout_state
from placer.strategies.inter_op.submeshes.bounds import Floors, Pace
from placer.strategies.inter_op.submeshes.submesh import Shape, Spot
from placer.strategies.space.outline import recomputes


class Prices:
    """Prices of stages of plans of one pace; remembers those of spots that cost the same."""

    def __init__(self, floors: Floors, pace: Pace, layouts: tuple[Layout, ...]) -> None:
        self.floors = floors
        self.problem = floors.problem
        self.pace = pace
        self.layouts = layouts
        self.count = pace.count(self.problem.rows)
        self._kinds: dict[object, int] = {}
        self._costs: dict[object, StageCost] = {}
        self._sent: dict[object, StageCost] = {}
        self._fitting: dict[object, bool] = {}

    def stage(self, first: int, last: int, spot: Spot, lead: Spot, *, again: bool) -> StageCost:
        """The cost of a stage that sends nothing on."""
        key = self._run(spot.shape, first, last), self._kind(spot, lead), again
        if key not in self._costs:
            self._costs[key] = self._cost(first, last, spot, None, lead, again=again)
        return self._costs[key]

    def sending(self, made: StageCost, first: int, last: int, spot: Spot, following: Spot, lead: Spot) -> StageCost:
        """The same with what it sends to the next spot."""
        key = self._run(spot.shape, first, last), *self._ends(spot, following)
        if key not in self._sent:
            self._sent[key] = self._cost(first, last, spot, following, lead, again=recomputes(self.problem)[0])
        sent = self._sent[key]
        return replace(made, send_forward=sent.send_forward, send_backward=sent.send_backward)

    def terms(self, made: StageCost, positions: int) -> Terms:
        """What a stage adds to the step."""
        return terms(made, self.pace.schedule, positions=positions, microbatches=self.count)

    def fitting(self, first: int, last: int, spot: Spot, position: int, positions: int) -> tuple[bool, ...]:
        """The recompute choices with which a stage fits its devices."""
        return tuple(a for a in recomputes(self.problem) if self._fits(first, last, spot, position, positions, again=a))

    def crosses(self, cut: int, shape: Shape, following: Shape) -> bool:
        """Whether all that passes a cut can be divided anew between two shapes."""
        key = "crosses", cut, shape, following
        if key not in self._fitting:
            values = self._passing[cut]
            alike = (shape.replicas, shape.degree) == (following.replicas, following.degree)
            self._fitting[key] = (alike or self._indivisible.isdisjoint(values)) and (
                shape.layout == following.layout or all(self._routed(value, shape, following) for value in values)
            )
        return self._fitting[key]

    def _routed(self, value: str, shape: Shape, following: Shape) -> bool:
        graph = self.problem.graph
        have, want = (
            layout_state(graph, None if own.layout < 0 else self.layouts[own.layout], value)
            for own in (shape, following)
        )
        try:
            routes(Crossing(value, graph.value(value), have, want), shape.degree, following.degree)
        except UsageError:
            return False
        return True

    @cached_property
    def _passing(self) -> tuple[tuple[str, ...], ...]:
        """The values made before each cut and read after it."""
        spans = next(iter(self.floors.views.values())).costs.ranges
        return tuple(spans.leaving(0, cut) for cut in range(self.floors.blocks + 1))

    @cached_property
    def _indivisible(self) -> frozenset[str]:
        return indivisible(self.problem.graph)

    def _cost(self, first: int, last: int, spot: Spot, following: Spot | None, lead: Spot, *, again: bool) -> StageCost:
        return self.floors.costs(spot.shape).stage_cost(
            first, last, devices=spot.devices, following=() if following is None else following.mesh(self.layouts),
            leading=lead.mesh(self.layouts), rows=self.pace.rows,
            last_rows=self.problem.rows % self.pace.rows or self.pace.rows, sharding=self.pace.kept(spot.shape),
            recompute=again, bucket_bytes=self.problem.pins.bucket,
        )  # fmt: skip

    def _fits(self, first: int, last: int, spot: Spot, position: int, positions: int, *, again: bool) -> bool:
        own = microbatches_in_flight(self.pace.schedule, positions, positions, self.count)[position]
        room = self.floors.places.room(spot)
        key = self._run(spot.shape, first, last), spot.shape, room, own, again
        if key not in self._fitting:
            costs = self.floors.costs(spot.shape)
            held = stage_memory(
                costs.ranges.of(first, last), costs.numerics, costs.priced,
                rows=-(-self.pace.rows // spot.shape.replicas), recompute=again, sharding=self.pace.kept(spot.shape),
                replicas=spot.shape.replicas, accumulates=self.count > 1,
            )  # fmt: skip
            self._fitting[key] = position_memory((held,), own).total <= room
        return self._fitting[key]

    def _run(self, shape: Shape, first: int, last: int) -> int:
        return self.floors.views[shape.layout].number(first, last)

    def _kind(self, spot: Spot, lead: Spot) -> int:
        """Equal for spots at which stages cost the same."""
        tied = (spot.devices, lead.devices, lead.shape) if self.problem.graph.tied else ()
        return self._kinds.setdefault((self.floors.places.key(spot), tied), len(self._kinds))

    def _ends(self, spot: Spot, following: Spot) -> tuple[object, ...]:
        """What tells two spots from other ones as far as messages can see."""
        if len(self.problem.cluster.node_list) == 1:
            return spot.shape, following.shape
        return spot.shape, spot.devices, following.shape, following.devices
