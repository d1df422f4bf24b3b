"""Crossover: of two plans a third that has parts of both.

joined      the stages of one up to a block, those of the other from there on: runs of blocks stay runs; a device
            that both name stays with the first, a stage that loses all of its own gets some that nobody uses
inherited   the stages of one, each with the recompute, the sharding and, of equal degree, the layout of the stage
            of the other that has its middle block
settings    the stages of one with the schedule and the microbatches of the other
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from random import Random

from placer.plans.plan import Plan, Stage
from placer.strategies.moves.neighbourhood import Neighbourhood, devices_of, everywhere, is_graph, loops, units
from placer.strategies.moves.repair import repaired


def crossed(around: Neighbourhood, one: Plan, other: Plan, rng: Random) -> Plan | None:
    """A child of two plans of one neighbourhood, repaired; None where they have none of the kind that is drawn."""
    kind = rng.choice((joined, inherited, settings))
    child = kind(around, around.known(one), around.known(other), rng)
    return None if child is None else repaired(around, child)


def joined(around: Neighbourhood, one: Plan, other: Plan, rng: Random) -> Plan | None:
    """The stages of `one` up to a block, those of `other` from there on."""
    blocks = len(one.graph.blocks)
    if _shared(one) or _shared(other) or blocks < 2:
        return None
    cut = rng.randrange(1, blocks)
    before = [s if s.last <= cut else replace(s, last=cut) for s in one.stages if s.first < cut]
    after = [s if s.first >= cut else replace(s, first=cut) for s in other.stages if s.last > cut]
    used = set(chain.from_iterable(stage.devices for stage in before))
    found: list[Stage] = []
    for stage in after:
        own = [unit for unit in units(stage) if used.isdisjoint(unit)]
        if not own:
            spare = (unit for unit in around.groups(stage.degree) if used.isdisjoint(unit))
            own = [unit for unit, _ in zip(spare, range(stage.replicas), strict=False)]
        if not own:
            return None
        used.update(chain.from_iterable(own))
        found.append(_on(stage, own))
    stages = (*before, *found)
    wanted = around.problem.pins.pipeline
    return replace(one, stages=stages) if wanted in (None, len(stages)) else None


def inherited(around: Neighbourhood, one: Plan, other: Plan, rng: Random) -> Plan | None:
    """The stages of `one`, doing as those of `other` do."""

    def like(stage: Stage) -> Stage:
        middle = (stage.first + stage.last) // 2
        model = next(s for s in other.stages if s.first <= middle < s.last)
        layout = model.layout if model.degree == stage.degree and not _shared(one) else stage.layout
        return replace(stage, recompute=model.recompute, recomputed=None, sharding=model.sharding, layout=layout)

    return everywhere(one, like)


def settings(around: Neighbourhood, one: Plan, other: Plan, rng: Random) -> Plan | None:
    """The stages of `one` under the schedule and with the microbatches of `other`."""
    schedule = one.schedule if _shared(one) or _shared(other) else other.schedule
    return replace(one, schedule=schedule, microbatches=other.microbatches, bucket_bytes=other.bucket_bytes)


def _shared(plan: Plan) -> bool:
    """Whether stages share positions, whose devices and layout they have in common, or may do so."""
    return loops(plan) or is_graph(plan)


def _on(stage: Stage, own: list[tuple[int, ...]]) -> Stage:
    devices = devices_of(own)
    return stage if devices == stage.devices else replace(stage, devices=devices, shares=())
