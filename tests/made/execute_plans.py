"""Hand-made plans for tests of execution."""

from __future__ import annotations

from functools import cache

import torch

from examples.parity.processes import processes
from execute_models import LENGTH
from graphs import BlockSpec, chain_graph
from placer import tracer
from placer.graph import Graph
from placer.plans.plan import ModelRef, Plan, ScheduleName, Sharding, Stage
from placer.plans.settings import RunSettings
from placer.runtime.stages.captured_model import CapturedModel, captured
from placer.runtime.weights.meta_model import prepared_model


def two_rank_plan() -> Plan:
    """Two blocks on two processes, one microbatch."""
    return Plan(
        model=ModelRef(kind="module", reference="", fingerprint=""),
        graph=chain_graph((BlockSpec(), BlockSpec())),
        cluster=processes(2),
        settings=RunSettings(),
        stages=(Stage(first=0, last=1, devices=(0,)), Stage(first=1, last=2, devices=(1,))),
        schedule="1f1b",
        microbatches=(8,),
    )


def tiny_plan(
    devices: int, stages: int, *, schedule: ScheduleName = "1f1b", looped: int = 1, sharding: Sharding = "none",
    microbatches: tuple[int, ...] = (4, 4, 4, 4), model: str = "tied", recompute: bool = False,
    settings: RunSettings = RunSettings(),  # noqa: B008 - frozen
) -> Plan:  # fmt: skip
    """`execute_models` on `devices` processes: even stages, `looped` of them on each position, replicas on the rest."""
    reference, graph = _captured(model, sum(microbatches))
    replicas = devices // stages
    count, blocks = stages * looped, len(graph.blocks)
    return Plan(
        model=reference,
        graph=graph,
        cluster=processes(devices),
        settings=settings,
        stages=tuple(
            Stage(
                first=blocks * s // count,
                last=blocks * (s + 1) // count,
                devices=tuple(range(s % stages * replicas, (s % stages + 1) * replicas)),
                sharding=sharding,
                recompute=recompute,
            )
            for s in range(count)
        ),
        schedule=schedule,
        microbatches=microbatches,
    )


def capture_of(plan: Plan) -> CapturedModel:
    """The capture of a plan's model, made once in this process: it takes ranks longer than a run of six steps."""
    key = (plan.model.reference, plan.settings.precision, plan.rows)
    if key not in _CAPTURES:
        _CAPTURES[key] = captured(plan, prepared_model(plan, None, torch.device("cpu")))
    return _CAPTURES[key]


_CAPTURES: dict[tuple[str, str, int], CapturedModel] = {}


@cache
def _captured(model: str, rows: int) -> tuple[ModelRef, Graph]:
    resolved = tracer.resolve(f"execute_models:{model}")
    shape = (rows, LENGTH)
    return resolved.ref, tracer.capture(resolved, batch={"input_ids": shape, "labels": shape})
