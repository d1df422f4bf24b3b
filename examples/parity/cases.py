"""Cases of `verify`: a tiny model, a layout, a schedule, a precision; made into plans and run by ranks that stay."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, zip_longest

from torch import nn

from examples.models import example_batch
from examples.parity.processes import processes
from examples.parity.splits import searched, widened
from placer import tracer
from placer.errors import PlacerError, UsageError
from placer.graph import Graph
from placer.plans.plan import Plan, Recompute, ScheduleName, Sharding, Stage
from placer.plans.settings import Precision, RunSettings
from placer.runtime import VerifyReport, verify
from placer.runtime.distributed.world import device_of
from placer.runtime.stages.captured_model import CapturedModel, captured
from placer.runtime.verify.judged import in_precision
from placer.runtime.weights.meta_model import prepared_model

ROWS = 8
KEPT = {"none": "DP", "optimizer": "ZeRO1-", "gradients": "ZeRO2-", "parameters": "FSDP"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`positions` x `replicas` ranks; `turns` stages per position. cut: blocks of the first stage (0: stages of equal
    numbers of blocks). shapes: of the batch by input (none: those of `examples.models`). degree: devices of a replica,
    over which its ops are cut along `axis` as a search does (`examples.parity.splits`); along two axes, `height x
    width`, as many along each."""

    model: str
    positions: int = 1
    replicas: int = 1
    schedule: ScheduleName = "1f1b"
    sharding: Sharding = "none"
    precision: Precision = "float64"
    microbatches: tuple[int, ...] = (3, 3, 2)
    shares: tuple[int, ...] = ()
    recompute: Recompute = False
    recomputed: int | None = None
    optimizer: str = "adamw"
    cut: int = 0
    turns: int = 1
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    axis: str = "tensor"
    degree: int = 1

    @property
    def ranks(self) -> int:
        """Ranks of the case."""
        return self.positions * self.replicas * self.degree ** len(self.axis.split(" x "))

    def __str__(self) -> str:
        layout = f"PP{self.positions}" if self.positions > 1 else ""
        if self.replicas > 1:
            layout += KEPT[self.sharding] + str(self.replicas)
        if self.degree > 1:
            layout += f" {self.axis}{self.degree}"
        words = [
            self.model.rpartition(":")[2],
            layout.strip() or "one",
            self.schedule if self.positions > 1 else "-",
            self.precision,
        ]
        words += [] if not self.recompute else ["recompute" if self.recompute is True else "selective recompute"]
        words += [f"of {self.recomputed}"] * (self.recomputed is not None) + [f"shares {self.shares}"] * bool(
            self.shares
        )
        words += [f"microbatches {self.microbatches}"] * (self.microbatches != (3, 3, 2))
        words += [f"cut {self.cut}"] * bool(self.cut) + [self.optimizer] * (self.optimizer != "adamw")
        return " ".join(words)


def plan_of(case: Case) -> Plan:
    """The plan of a case on as many CPU processes as it has ranks. Raises UsageError where nothing can be cut so."""
    plan = _plan_of(replace(case, degree=1))
    if case.degree == 1:
        return plan
    found = searched(plan.graph, plan.model, plan.rows, case.axis, case.degree)
    if not found:
        raise UsageError(f"{case.model} has nothing to cut along {case.axis} over {case.degree} devices")
    return widened(plan, found[0], processes(case.ranks))


def _plan_of(case: Case) -> Plan:
    graph = captured_graph(case.model, case.shapes)
    return Plan(
        model=tracer.resolve(case.model).ref,
        graph=graph,
        cluster=processes(case.ranks),
        settings=RunSettings(
            precision=case.precision,
            optimizer="sgd" if case.optimizer == "sgd" else "adamw",
            momentum=0.9,
            batch_norm="microbatch",
        ),
        stages=_stages(case, len(graph.blocks)),
        schedule=case.schedule,
        microbatches=case.microbatches,
    )


def run_case(plan: Plan, steps: int = 3, compile: str = "") -> VerifyReport:
    """What every rank calls; captures are kept from case to case. compile: see `placer.runtime.load`."""
    return verify(plan, steps, capture=captures_of(plan), compile=compile)


def prepare(plan: Plan, *, verified: bool = True) -> bool:
    """Capture the model of `plan` for a run in this process, from which ranks are forked; False where it is kept.

    verified: in the precisions that `verify` needs, not in the plan's own alone.
    """
    before = list(_KEPT.values())
    if verified:
        captures_of(plan)
    else:
        capture_of(plan)
    return any(now is not then for now, then in zip_longest(_KEPT.values(), before))


@cache
def captured_graph(model: str, shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()) -> Graph:
    """The planning capture of a model with ROWS rows."""
    return tracer.capture(model, batch=dict(shapes) or example_batch(_factory(model)(), ROWS))


_KEPT: dict[tuple[str, str], CapturedModel] = {}


def capture_of(plan: Plan) -> CapturedModel:
    """The capture of a plan's model in this process, made once."""
    key = (plan.model.reference, plan.settings.precision)
    if key not in _KEPT or _KEPT[key].graph != plan.graph:
        _KEPT[key] = captured(plan, prepared_model(plan, None, device_of(plan, 0)))
    return _KEPT[key]


def captures_of(plan: Plan) -> tuple[CapturedModel, ...]:
    """Those that `verify` needs: in float64, where the model can be captured so, and in the plan's own precision."""
    if plan.settings.precision == "float64":
        return (capture_of(plan),)
    with suppress(PlacerError):
        return (capture_of(in_precision(plan, "float64")), capture_of(plan))
    return (capture_of(plan),)


def _factory(model: str) -> Callable[[], nn.Module]:
    module, name = model.split(":")
    made: Callable[[], nn.Module] = getattr(importlib.import_module(module), name)
    return made


def _stages(case: Case, blocks: int) -> tuple[Stage, ...]:
    count = case.positions * case.turns
    ends = [round(index * blocks / count) for index in range(count + 1)]
    if case.cut:
        ends[1] = case.cut
    return tuple(
        Stage(
            first=first,
            last=last,
            devices=tuple(range(at * case.replicas, (at + 1) * case.replicas)),
            shares=case.shares,
            sharding=case.sharding,
            recompute=case.recompute,
            recomputed=case.recomputed,
        )
        for index, (first, last) in enumerate(pairwise(ends))
        for at in [index % case.positions]
    )
