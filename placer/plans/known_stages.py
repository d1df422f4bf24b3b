"""Stages of plans by identity: of all equal ones with the same layout one object, so that what was worked out for one
is found by where it is, not by comparing all its devices.

In: plan after plan of one search. A plan that was moved has most stages in common with the plan before it, as the very
same objects: of these nothing is compared at all. Numbers stand for what is long and shared by stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from placer.plans.plan import Again, Layout, Plan, Stage

# Objects by whose identity stages are known; with more they are compared anew. Those of a plan are some dozens.
MOST = 200_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnownStage:
    """A stage with its layout (None too where its plan has none of that number).

    devices: the number of its devices; shape: of how many they are, its degree, layout and shares; mesh: of both.
    """

    stage: Stage
    layout: Layout | None
    span: tuple[int, int]
    again: Again
    devices: int
    shape: int
    mesh: int


class Microbatches(NamedTuple):
    """Sizes of the microbatches of a plan: their number among those known, rows of the largest and of the last, whether
    there are several; and how many there are of each size, in the order of the first of them."""

    number: int
    largest: int
    last: int
    several: bool
    sizes: tuple[tuple[int, int], ...]


class KnownStages:
    """The stages and microbatches of all plans that were asked for."""

    def __init__(self) -> None:
        self._stages: dict[tuple[Stage, int], KnownStage] = {}
        self._numbers: dict[Hashable, int] = {}
        self._microbatches: dict[tuple[int, ...], Microbatches] = {}
        self._positions: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {}
        self._last: tuple[Plan, tuple[KnownStage, ...], Microbatches] | None = None
        # By identity, and what has it, so that it does not leave it to another.
        self._same: dict[int, dict[int, KnownStage]] = {}
        self._of_layouts: dict[int, int] = {}
        self._layouts: dict[int, Layout] = {}
        self._rows: dict[int, Microbatches] = {}
        self._kept: list[object] = []

    def of(self, plan: Plan) -> tuple[KnownStage, ...]:
        """The stages of a plan."""
        return self._asked(plan)[1]

    def microbatches(self, plan: Plan) -> Microbatches:
        """The microbatches of a plan."""
        return self._asked(plan)[2]

    def positions(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """The numbers of the stages of each position (`Plan.stages_at`)."""
        devices = tuple([known.devices for known in self.of(plan)])
        found = self._positions.get(devices)
        if found is None:
            at: dict[int, list[int]] = {}
            for number, own in enumerate(devices):
                at.setdefault(own, []).append(number)
            found = self._positions[devices] = tuple(map(tuple, at.values()))
        return found

    def layouts(self, plan: Plan) -> int:
        """The number of the layouts of a plan, which are long and few: told by identity, and kept."""
        found = self._of_layouts.get(id(plan.layouts))
        if found is None:
            self._layouts.update((id(layout), layout) for layout in plan.layouts)
            found = self._of_layouts[id(plan.layouts)] = self.number(("layouts", *map(id, plan.layouts)))
            self._kept.append(plan.layouts)
        return found

    def number(self, value: Hashable) -> int:
        """A number that equal values share."""
        return self._numbers.setdefault(value, len(self._numbers))

    def _asked(self, plan: Plan) -> tuple[Plan, tuple[KnownStage, ...], Microbatches]:
        last = self._last
        if last is None or last[0] is not plan:
            last = self._last = plan, self._found(plan), self._sizes(plan.microbatches)
        return last

    def _found(self, plan: Plan) -> tuple[KnownStage, ...]:
        if len(self._kept) >= MOST:
            self._same, self._rows, self._of_layouts, self._kept = {}, {}, {}, []
        known = self._same.get(id(plan.layouts))
        if known is None:
            known = self._same[id(plan.layouts)] = {}
            self._kept.append(plan.layouts)
        found = [known.get(id(stage)) for stage in plan.stages]
        if None in found:
            found = [self._known(plan, stage, known) for stage in plan.stages]
        return tuple(found)  # type: ignore[arg-type]

    def _known(self, plan: Plan, stage: Stage, known: dict[int, KnownStage]) -> KnownStage:
        found = known.get(id(stage))
        if found is None:
            layout = _layout(plan, stage)
            found = self._stages.get((stage, id(layout)))
            if found is None:
                found = self._stages[stage, id(layout)] = self._made(stage, layout)
            known[id(stage)] = found
            self._kept.append(stage)
        return found

    def _made(self, stage: Stage, layout: Layout | None) -> KnownStage:
        like, devices = (stage.degree, stage.layout, id(layout), stage.shares), self.number(stage.devices)
        return KnownStage(
            stage=stage,
            layout=layout,
            span=(stage.first, stage.last),
            again=stage.again,
            devices=devices,
            shape=self.number(("shape", len(stage.devices), *like)),
            mesh=self.number(("mesh", devices, *like)),
        )

    def _sizes(self, microbatches: tuple[int, ...]) -> Microbatches:
        found = self._rows.get(id(microbatches))
        if found is None:
            found = self._microbatches.get(microbatches)
            if found is None:
                found = self._microbatches[microbatches] = _sized(microbatches, len(self._microbatches))
            self._rows[id(microbatches)] = found
            self._kept.append(microbatches)
        return found


def _layout(plan: Plan, stage: Stage) -> Layout | None:
    known = stage.layout is not None and 0 <= stage.layout < len(plan.layouts)
    return plan.layouts[stage.layout] if known and stage.layout is not None else None


def _sized(microbatches: tuple[int, ...], number: int) -> Microbatches:
    return Microbatches(
        number=number,
        largest=max(microbatches, default=0),
        last=microbatches[-1] if microbatches else 0,
        several=len(microbatches) > 1,
        sizes=tuple(Counter(microbatches).items()),
    )
