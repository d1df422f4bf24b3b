"""`check` for searches, which ask about plan after plan of few differences: a rule is asked again only where what it
reads is new.

In: plans of one graph, cluster and settings. Out: exactly what `legality.check(plan, costs, lowered=False)` finds
(tests/strategies/test_evaluator.py compares the two). `READS` says of each rule what of a plan it reads; a rule that is
not among them is asked every time. Meshes that are all alike have nothing to convert, wherever the model is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from placer.costs.costs import Costs
from placer.graph import Graph
from placer.legality.judge import CROSSING, Rule, Rules, Tightest, Violation, over_full
from placer.legality.structure import STRUCTURE
from placer.plans.known_stages import KnownStage
from placer.plans.plan import BY_FSDP, Again, Plan
from placer.plans.transfers import made_by
from placer.program.unsupported import indivisible

_Found: TypeAlias = tuple[Violation, ...]


class Read(NamedTuple):
    """What rules read of a plan. positions: the numbers of the stages of each. Numbers stand for what may be long:
    devices of all stages, layouts of the plan, rows of all microbatches; meshes for devices, shares, degree and layout
    of all stages, pattern for the same but which devices they are: how many, and which stages share them. parts: how
    many microbatches there are. divided: all that rules ask about parameters in shards, where there are any."""

    stages: tuple[KnownStage, ...]
    spans: tuple[tuple[int, int], ...]
    states: tuple[str, ...]
    reductions: tuple[str, ...]
    again: tuple[Again, ...]
    schedule: str
    positions: tuple[tuple[int, ...], ...]
    layouts: int
    devices: int
    meshes: int
    pattern: int
    rows: int
    parts: int
    alike: bool
    divided: Hashable


READS: Mapping[str, Callable[[Read], Hashable]] = {
    "blocks": lambda read: read.spans,
    "devices": lambda read: read.devices,
    "layouts": lambda read: (read.meshes, read.layouts),
    "kinds": lambda read: (read.meshes, read.states),
    "replicas": lambda read: read.pattern,
    "rows": lambda read: (read.pattern, read.layouts, read.rows),
    "schedule": lambda read: (read.schedule, read.positions),
    "sharding": lambda read: (read.schedule, read.states, read.divided, read.pattern),
    "reductions": lambda read: (read.meshes, read.states, read.reductions),
    "recompute": lambda read: (read.again, read.spans),
    "loss": lambda read: (read.parts, read.pattern),
    "meshes": lambda read: (None if read.alike else read.spans, read.pattern, read.layouts),
}

# Rules that ask each stage by itself: what they read of it, and of the plan. A plan whose stages all were in plans that
# keep the rule keeps it too.
READS_OF_STAGE: Mapping[str, Callable[[Read, KnownStage], Hashable]] = {
    "layouts": lambda read, one: (one.mesh, read.layouts),
    "kinds": lambda read, one: (one.mesh, one.stage.sharding),
    "rows": lambda read, one: (one.shape, read.layouts, read.rows),
    "reductions": lambda read, one: (one.mesh, one.stage.sharding, one.stage.reduction),
    "recompute": lambda read, one: (one.again, one.span),
    "loss": lambda read, one: (one.shape, read.parts),
    "sharding": lambda read, one: (one.shape, read.schedule, one.stage.sharding, read.divided),
}
# The same of rules that ask what crosses from a stage to the next: what they read of both, which differ in shape, and a
# number of the values that cross. Of graphs alone whose values are read by none but the next block.
READS_OF_CUT: Mapping[str, Callable[[KnownStage, KnownStage, int], Hashable]] = {
    "meshes": lambda one, after, values: (one.shape, after.shape, values, one.devices == after.devices),
}


class KnownRules:
    """Verdicts on plans of the graph, cluster and settings of `costs`; remembers each rule's."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._stages = costs.known
        self._known: dict[tuple[str, Hashable], _Found] = {}
        self._sound: dict[str, set[Hashable]] = {name: set() for name in (*READS_OF_STAGE, *READS_OF_CUT)}
        self._values = _values_before(costs.graph)

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
                known = self._known[key] = self._verdict(name, rule, plan, read)
            if known:
                found += known
        return found

    def _verdict(self, name: str, rule: Rule, plan: Plan, read: Read) -> _Found:
        parts = self._parts(name, read)
        if parts is not None and parts <= self._sound[name]:
            return ()
        found = tuple([Violation(rule=name, message=message) for message in rule(plan)])
        if parts is not None and not found:
            self._sound[name] |= parts
        return found

    def _parts(self, name: str, read: Read) -> set[Hashable] | None:
        """What a rule asks one by one; None of others."""
        stage, cut, stages, values = READS_OF_STAGE.get(name), READS_OF_CUT.get(name), read.stages, self._values
        if stage is not None:
            return {stage(read, one) for one in stages}
        if cut is None or not values:
            return None
        pairs = (pair for pair in pairwise(stages) if pair[0].shape != pair[1].shape)
        return {cut(one, after, values[after.span[0]]) for one, after in pairs}

    def _read(self, plan: Plan) -> Read:
        known, positions, number = self._stages.of(plan), self._stages.positions(plan), self._stages.number
        stages = [one.stage for one in known]
        shapes, spans = tuple([one.shape for one in known]), tuple([one.span for one in known])
        states, pattern = tuple([stage.sharding for stage in stages]), number(("pattern", positions, shapes))
        return Read(
            stages=known,
            spans=spans,
            states=states,
            reductions=tuple([stage.reduction for stage in stages]),
            again=tuple([one.again for one in known]),
            schedule=plan.schedule,
            positions=positions,
            layouts=self._stages.layouts(plan),
            devices=number(("devices", *[one.devices for one in known])),
            meshes=number(("meshes", *[one.mesh for one in known])),
            pattern=pattern,
            rows=self._stages.microbatches(plan).number,
            parts=len(plan.microbatches),
            alike=len(set(shapes)) == 1,
            divided=None if BY_FSDP.isdisjoint(states) else (states, spans, pattern),
        )


def _values_before(graph: Graph) -> tuple[int, ...]:
    """A number of what each block reads of the one before it, equal for values that are alike wherever they are made:
    outputs of blocks of one class, which rows divide or do not. Empty where a block reads of others too."""
    if any(reader != maker + 1 for _, maker, reader in graph.reads):
        return ()
    read: list[list[Hashable]] = [[] for _ in graph.blocks]
    whole = indivisible(graph)
    for value, maker, reader in graph.reads:
        read[reader].append((graph.blocks[maker].kind, made_by(value)[1], value in whole))
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(tuple(values), len(numbers)) for values in read)
