"""What a placed stage costs exactly, and whether it fits and may hand its values on to the next placement.

All from `Costs.stage_cost`, `timing.step.terms` and `placer.costs.memory.peak`, as the estimate of a plan has it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import islice

from placer.costs.communication.network import TransferSeconds
from placer.costs.memory.in_flight import microbatches_in_flight
from placer.costs.memory.peak import StageMemory, position_memory, stage_memory
from placer.costs.timing.step import StageCost, Terms, terms
from placer.errors import UsageError
from placer.io.memo import once, remembered
from placer.plans.plan import Layout, Recompute, Stage
from placer.program.unsupported import indivisible
from placer.spmd.cross_mesh import Crossing, routes
from placer.spmd.parameter_layouts import layout_state
from placer.strategies.inter_op.bounds.schedule import ScheduleTerms
from placer.strategies.inter_op.submeshes.bounds import StageBounds
from placer.strategies.inter_op.submeshes.submesh import PlacedSubmesh, Submesh
from placer.strategies.space.outline import recomputes


class SubmeshCosts:
    """Costs of stages of plans of one schedule's terms; remembers those of placements that cost the same."""

    def __init__(self, bounds: StageBounds, schedule: ScheduleTerms, layouts: tuple[Layout, ...]) -> None:
        self.bounds = bounds
        self.problem = bounds.problem
        self.schedule = schedule
        self.layouts = layouts
        self.count = schedule.count
        self._classes: dict[object, int] = {}
        self._costs: dict[object, StageCost] = {}
        self._terms: dict[tuple[int, int, int], Terms] = {}
        self._fitting: dict[object, bool] = {}

    def stage(
        self, first: int, last: int, placed: PlacedSubmesh, lead: PlacedSubmesh, *, again: Recompute
    ) -> StageCost:
        """The cost of a stage that sends nothing on."""
        key = self._range(placed, first, last), self._class(placed, lead), again
        return once(self._costs, key, self._cost, first, last, placed, lead, again=again)

    def sending(
        self, made: StageCost, first: int, last: int, placed: PlacedSubmesh, following: PlacedSubmesh, *,
        positions: int,
    ) -> Terms:  # fmt: skip
        """What the stage that was `made` adds to the step with what it sends to the next placement."""
        key = self._range(placed, first, last), self.schedule.rows, *self._ends(placed, following)
        sent = once(self.bounds.sent, key, self._sent, first, last, placed, following)
        # Both are kept, so that their ids stay their own.
        return once(self._terms, (id(made), id(sent), positions), self._sending, made, sent, positions)

    def _sending(self, made: StageCost, sent: TransferSeconds, positions: int) -> Terms:
        return self._added(replace(made, send_forward=sent.forward, send_backward=sent.backward), positions)

    def terms(self, made: StageCost, positions: int) -> Terms:
        """What a stage that was made here adds to the step, messages apart."""
        return once(self._terms, (id(made), 0, positions), self._added, made, positions)

    def _added(self, made: StageCost, positions: int) -> Terms:
        return terms(made, self.schedule.schedule, positions=positions, microbatches=self.count)

    def fitting(
        self, first: int, last: int, placed: PlacedSubmesh, position: int, positions: int
    ) -> tuple[Recompute, ...]:
        """The recompute choice with which a stage fits its devices; of several the one of fewest seconds, for no other
        is better in anything then."""
        in_flight = microbatches_in_flight(self.schedule.schedule, positions, positions, self.count)[position]
        number, room = self._range(placed, first, last), self.bounds.places.room(placed)

        def fits(again: Recompute) -> bool:
            return position_memory((self._held(number, first, last, placed.submesh, again),), in_flight).total <= room

        key = number, placed.submesh, room, in_flight
        fitting = (again for again in recomputes(self.problem) if once(self._fitting, (*key, again), fits, again))
        return tuple(islice(fitting, 1))

    def _held(self, number: int, first: int, last: int, submesh: Submesh, again: Recompute) -> StageMemory:
        """What a stage holds, whatever is in flight; asked once under all schedules."""
        costs, replicas, many = self.bounds.costs(submesh), submesh.replicas, self.count > 1
        rows, sharding = -(-self.schedule.rows // replicas), self.schedule.kept(replicas)
        key = number, submesh.layout, rows, again, sharding, replicas, many
        return once(
            self.bounds.held, key, stage_memory, costs.ranges.of(first, last), costs.numerics, costs.priced,
            rows=rows, recompute=again, sharding=sharding, replicas=replicas, accumulates=many,
        )  # fmt: skip

    @remembered
    def crosses(self, cut: int, own: Submesh, following: Submesh) -> bool:
        """Whether all that passes a cut can be divided anew between two submeshes."""
        values = self._passing[cut]
        alike = (own.replicas, own.degree) == (following.replicas, following.degree)
        return (alike or self._indivisible.isdisjoint(values)) and (
            own.layout == following.layout or all(self._routed(value, own, following) for value in values)
        )

    def _routed(self, value: str, own: Submesh, following: Submesh) -> bool:
        graph = self.problem.graph
        have, want = (
            layout_state(graph, None if each.layout < 0 else self.layouts[each.layout], value)
            for each in (own, following)
        )
        try:
            routes(Crossing(value, graph.value(value), have, want), own.degree, following.degree)
        except UsageError:
            return False
        return True

    @cached_property
    def _passing(self) -> tuple[tuple[str, ...], ...]:
        """The values made before each cut and read after it."""
        crossing = next(iter(self.bounds.views.values())).costs.ranges.crossing
        return tuple(crossing.leaving(0, cut) for cut in range(self.bounds.blocks + 1))

    @cached_property
    def _indivisible(self) -> frozenset[str]:
        return indivisible(self.problem.graph)

    def _cost(
        self, first: int, last: int, placed: PlacedSubmesh, lead: PlacedSubmesh, *, again: Recompute
    ) -> StageCost:
        costs = self.bounds.costs(placed.submesh)
        return costs.stage_cost(
            self._stage(first, last, placed, again=again), following=(), leading=lead.mesh(self.layouts),
            rows=self.schedule.rows, last_rows=self.schedule.last_rows, bucket_bytes=self.problem.pins.bucket,
        )  # fmt: skip

    def _sent(self, first: int, last: int, placed: PlacedSubmesh, following: PlacedSubmesh) -> TransferSeconds:
        """What a stage sends on, and gets back: the same under all schedules, shardings and recompute."""
        stage = self._stage(first, last, placed, again=False)
        return self.bounds.costs(placed.submesh).messages.after(stage, following.mesh(self.layouts), self.schedule.rows)

    def _stage(self, first: int, last: int, placed: PlacedSubmesh, *, again: Recompute) -> Stage:
        return Stage(
            first=first, last=last, devices=placed.devices, sharding=self.schedule.kept(placed.submesh.replicas),
            recompute=again, degree=self.bounds.costs(placed.submesh).degree,
        )  # fmt: skip

    def _range(self, placed: PlacedSubmesh, first: int, last: int) -> int:
        return self.bounds.views[placed.submesh.layout].number(first, last)

    def _class(self, placed: PlacedSubmesh, lead: PlacedSubmesh) -> int:
        """Equal for placements at which stages cost the same."""
        tied = (placed.devices, lead.devices, lead.submesh) if self.problem.graph.tied else ()
        return self._classes.setdefault((self.bounds.places.key(placed), tied), len(self._classes))

    def _ends(self, placed: PlacedSubmesh, following: PlacedSubmesh) -> tuple[object, ...]:
        """What tells two placements from other ones as far as messages can see."""
        if len(self.problem.cluster.nodes) == 1:
            return placed.submesh, following.submesh
        return placed.submesh, placed.devices, following.submesh, following.devices
