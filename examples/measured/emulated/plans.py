"""sampled(...): random legal plans of every kind on a cluster, seeded; each kind once, in this order.

data, shares, sharded     replicas on all devices: equal, about by the devices' speed, sharded (FSDP2)
pipeline, cuts            all devices one after the other: even cuts, cuts about by speed
meshes                    two positions of different numbers of replicas, with shares of their own
axis                      replicas of two devices whose ops are cut, times what is left of the devices
fewer                     a device left out, the others as a pipeline or as replicas, in any order
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from random import Random

from examples.parity.splits import searched
from placer.costs.step_estimate import estimate
from placer.legality import check
from placer.plans.plan import Layout, Plan, ScheduleName, Sharding, Stage
from placer.search.problem import Problem

DRAWS = 40
# What the ops of a replica of several devices say to each other takes long here: they get a quarter of the blocks.
FEW_CUT = (1.0, 3.0)
# What unequal shares and cuts are off the devices' speeds by.
ABOUT = (0.75, 1.0, 1.25)
SCHEDULES: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "zero-bubble")
SHARDINGS: tuple[Sharding, ...] = ("gradients", "parameters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A kind of plan, and one of it with its prediction."""

    kind: str
    plan: Plan


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The problem and the dice."""

    dice: Random
    problem: Problem

    @property
    def devices(self) -> list[int]:
        """All devices."""
        return list(range(self.problem.cluster.size))

    @property
    def blocks(self) -> int:
        """Blocks of the model."""
        return len(self.problem.graph.blocks)

    def speeds(self, devices: Sequence[int]) -> list[float]:
        """The rate of each device."""
        return [self.problem.cluster.devices[device].rate("float32") for device in devices]

    def shares(self, devices: Sequence[int]) -> tuple[int, ...]:
        """Shares of the rows about by speed."""
        rates = self.speeds(devices)
        return tuple(round(4 * rate / min(rates) * self.dice.choice(ABOUT)) for rate in rates)

    def cuts(self, weights: Sequence[float]) -> list[int]:
        """Ends of the stages' blocks, as many as weights say and each at least one."""
        ends = [0, *(round(self.blocks * part / sum(weights)) for part in accumulate(weights))]
        for index in range(1, len(ends) - 1):
            ends[index] = min(max(ends[index], ends[index - 1] + 1), self.blocks - (len(weights) - index))
        return ends

    def plan(
        self,
        stages: Sequence[Stage],
        microbatches: int,
        layouts: Sequence[Layout] = (),
        schedule: ScheduleName = "1f1b",
    ) -> Plan:
        """The plan of these stages, its microbatches as equal as can be."""
        rows = self.problem.rows
        sizes = tuple(rows // microbatches + (index < rows % microbatches) for index in range(microbatches))
        return Plan(
            model=self.problem.model, graph=self.problem.graph, cluster=self.problem.cluster,
            settings=self.problem.settings, stages=tuple(stages), schedule=schedule, microbatches=sizes,
            layouts=tuple(layouts),
        )  # fmt: skip


def sampled(problem: Problem, seed: str, axis: str) -> list[Sample]:
    """A legal plan of each kind, with its estimate; `axis` is what replicas of several devices are cut along.

    Raises RuntimeError where the draws of a kind are all illegal.
    """
    draw = Draw(dice=Random(seed), problem=problem)
    return [Sample(kind=kind, plan=_legal(kind, draw, axis)) for kind in KINDS]


def _legal(kind: str, draw: Draw, axis: str) -> Plan:
    broken = ""
    for _ in range(DRAWS):
        plan = KINDS[kind](draw, axis)
        found = check(plan)
        if not found:
            return replace(plan, ledger=estimate(plan))
        broken = str(found[0])
    raise RuntimeError(f"no legal plan of the kind {kind} in {DRAWS} draws; the last: {broken}")


def _data(draw: Draw, _: str) -> Plan:
    return draw.plan([Stage(first=0, last=draw.blocks, devices=tuple(draw.devices))], draw.dice.choice((1, 2)))


def _shares(draw: Draw, _: str) -> Plan:
    devices = tuple(draw.devices)
    stage = Stage(first=0, last=draw.blocks, devices=devices, shares=draw.shares(devices))
    return draw.plan([stage], draw.dice.choice((1, 2)))


def _sharded(draw: Draw, _: str) -> Plan:
    devices, kind = tuple(draw.devices), draw.dice.choice(SHARDINGS)
    shares = draw.shares(devices) if draw.dice.random() < 0.5 else ()
    return draw.plan([Stage(first=0, last=draw.blocks, devices=devices, shares=shares, sharding=kind)], 1)


def _pipeline(draw: Draw, _: str) -> Plan:
    return _line(draw, draw.devices, [1.0] * len(draw.devices))


def _cuts(draw: Draw, _: str) -> Plan:
    devices = draw.devices
    draw.dice.shuffle(devices)
    return _line(draw, devices, [speed * draw.dice.choice(ABOUT) for speed in draw.speeds(devices)])


def _meshes(draw: Draw, _: str) -> Plan:
    devices = draw.devices
    draw.dice.shuffle(devices)
    cut = draw.dice.choice([count for count in range(1, len(devices)) if 2 * count != len(devices)])
    groups = (devices[:cut], devices[cut:])
    ends = draw.cuts([sum(draw.speeds(group)) for group in groups])
    stages = [
        Stage(first=first, last=last, devices=tuple(group), shares=draw.shares(group) if len(group) > 1 else ())
        for (first, last), group in zip(pairwise(ends), groups, strict=True)
    ]
    return draw.plan(stages, 4, schedule=draw.dice.choice(("1f1b", "gpipe")))


def _axis(draw: Draw, axis: str) -> Plan:
    problem, devices = draw.problem, draw.devices
    layout = draw.dice.choice(searched(problem.graph, problem.model, problem.rows, axis, 2))
    pair, rest = devices[:2], devices[2:]
    ends = draw.cuts(FEW_CUT)
    if layout.apart > 1:  # the stages beside it would need such a layout too
        return draw.plan([Stage(first=0, last=draw.blocks, devices=tuple(pair), degree=2, layout=0)], 2, [layout])
    first = Stage(first=0, last=ends[1], devices=tuple(pair), degree=2, layout=0)
    second = Stage(first=ends[1], last=ends[2], devices=tuple(rest), shares=draw.shares(rest) if len(rest) > 1 else ())
    return draw.plan([first, second], 4, [layout])


def _fewer(draw: Draw, _: str) -> Plan:
    devices = draw.devices
    devices.remove(draw.dice.choice(devices))
    draw.dice.shuffle(devices)
    if draw.dice.random() < 0.5:
        return _line(draw, devices, draw.speeds(devices))
    stage = Stage(first=0, last=draw.blocks, devices=tuple(devices), shares=draw.shares(devices))
    return draw.plan([stage], 1)


def _line(draw: Draw, devices: Sequence[int], weights: Sequence[float]) -> Plan:
    """One device per stage."""
    ends, again = draw.cuts(weights), draw.dice.random() < 0.3
    stages = [
        Stage(first=first, last=last, devices=(device,), recompute=again)
        for (first, last), device in zip(pairwise(ends), devices, strict=True)
    ]
    return draw.plan(stages, draw.dice.choice((2, 4, 8)), schedule=draw.dice.choice(SCHEDULES))


KINDS: dict[str, Callable[[Draw, str], Plan]] = {
    "data": _data, "shares": _shares, "sharded": _sharded, "pipeline": _pipeline, "cuts": _cuts, "meshes": _meshes,
    "axis": _axis, "fewer": _fewer,
}  # fmt: skip
