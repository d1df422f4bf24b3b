"""`check` for searches, which ask about plan after plan of few differences: a rule is asked again only where what it
reads is new.

In: plans of one graph, cluster and settings. Out: exactly what `legality.check(plan, costs, lowered=False)` finds
(tests/strategies/test_evaluator.py compares the two). `READS` says of each rule what of a plan it reads; a rule that is
not among them is asked every time. Meshes that are all alike have nothing to convert, wherever the model is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple, TypeAlias

from placer.costs.costs import Costs
from placer.legality.judge import CROSSING, Rules, Tightest, Violation, over_full
from placer.legality.structure import STRUCTURE
from placer.plans.plan import Again, Plan
from placer.plans.transfers import position_of

_Found: TypeAlias = tuple[Violation, ...]


class Read(NamedTuple):
    """What rules read of a plan. Numbers stand for what may be long: devices of all stages, rows of all microbatches;
    meshes for devices, shares, degree and layout of all stages, pattern for the same but which devices they are: how
    many, and which stages share them. parts: how many microbatches there are."""

    spans: tuple[tuple[int, int], ...]
    states: tuple[str, ...]
    reductions: tuple[str, ...]
    again: tuple[Again, ...]
    schedule: str
    layouts: tuple[int, ...]
    devices: int
    meshes: int
    pattern: int
    rows: int
    parts: int
    alike: bool


READS: Mapping[str, Callable[[Read], Hashable]] = {
    "blocks": lambda read: read.spans,
    "devices": lambda read: read.devices,
    "layouts": lambda read: (read.meshes, read.layouts),
    "kinds": lambda read: (read.meshes, read.states),
    "replicas": lambda read: read.pattern,
    "rows": lambda read: (read.pattern, read.layouts, read.rows),
    "schedule": lambda read: (read.schedule, read.devices),
    "sharding": lambda read: (read.schedule, read.states, read.spans, read.pattern),
    "reductions": lambda read: (read.meshes, read.states, read.reductions),
    "recompute": lambda read: (read.again, read.spans),
    "loss": lambda read: (read.parts, read.pattern),
    "meshes": lambda read: (None if read.alike else read.spans, read.pattern, read.layouts),
}


class KnownRules:
    """Verdicts on plans of the graph, cluster and settings of `costs`; remembers each rule's."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._known: dict[tuple[str, Hashable], _Found] = {}
        self._numbers: dict[Hashable, int] = {}
        self._kept: dict[int, object] = {}

    def broken(self, plan: Plan) -> _Found:
        """What of its shape and of what crosses between its stages breaks a rule: `check` without memory."""
        read = self._read(plan)
        return self._asked(STRUCTURE, plan, read) or self._asked(CROSSING, plan, read)

    def over_full(self, plan: Plan, held_by: Tightest) -> _Found:
        """The devices that hold too much; `held_by` is `tightest(costs, plan)`."""
        return tuple(Violation(rule="memory", message=told) for told in over_full(plan, self._costs, held_by))

    def _asked(self, rules: Rules, plan: Plan, read: Read) -> _Found:
        found: _Found = ()
        for name, rule in rules.items():
            reads = READS.get(name)
            key = (name, read if reads is None else reads(read))
            known = None if reads is None else self._known.get(key)
            if known is None:
                known = tuple(Violation(rule=name, message=message) for message in rule(plan))
                self._known[key] = known
            found += known
        return found

    def _read(self, plan: Plan) -> Read:
        stages = plan.stages
        devices = tuple(stage.devices for stage in stages)
        meshes = tuple((stage.degree, stage.layout, stage.shares) for stage in stages)
        number = self._number(devices)
        return Read(
            spans=tuple((stage.first, stage.last) for stage in stages),
            states=tuple(stage.sharding for stage in stages),
            reductions=tuple(stage.reduction for stage in stages),
            again=tuple(stage.again for stage in stages),
            schedule=plan.schedule,
            layouts=tuple(self._identity(layout) for layout in plan.layouts),
            devices=number,
            meshes=self._number((number, meshes)),
            pattern=self._number((position_of(plan), tuple(map(len, devices)), meshes)),
            rows=self._number(plan.microbatches),
            parts=len(plan.microbatches),
            alike=len(set(meshes)) == len(set(map(len, devices))) == 1,
        )

    def _number(self, value: Hashable) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def _identity(self, layout: object) -> int:
        """Layouts are long, and a search has few: told by identity, and kept, so that none leaves its to another."""
        self._kept.setdefault(id(layout), layout)
        return id(layout)
