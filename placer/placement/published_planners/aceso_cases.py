"""The three small cases that Aceso's authors publish: four V100, 12,000 MB, their predicted and measured seconds.

Source: README of the artifact of "Aceso", EuroSys 2024 ("functionality check with small-scale experiments"): global
batch 512 for GPT-1.3B and T5-770M, 768 for Wide-ResNet-1B; the microbatches and the limit are those of its scripts.

The plans were not published, their figures were. Those in `published/aceso_plans.json` are reconstructed: of the plans
that the published search can reach (equal degrees in a stage, recompute by its rule, one round of its fine tuning for
ResNet) they have the published prediction and memory of a stage to every digit given. For T5 the cuts 228, 229 and 231
of the second stage all do; 229 is kept. One GPT plan does, and one ResNet plan of those its fine tuning can make.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TypedDict

from pydantic import TypeAdapter

from placer.errors import UsageError
from placer.placement.published_planners.aceso import AcesoPlan, AcesoProblem, AcesoStage
from placer.placement.published_planners.aceso_profile import read_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class AcesoCase:
    """A published case: predicted and measured milliseconds, seconds of the search, samples/s of the systems."""

    name: str
    family: str
    layers: int
    global_batch: int
    microbatches: tuple[int, ...]
    predicted_ms: float
    measured_ms: float
    search_seconds: float
    throughput: tuple[tuple[str, float], ...]


PUBLISHED = files("placer.placement") / "published"
CASES = TypeAdapter(tuple[AcesoCase, ...]).validate_json((PUBLISHED / "aceso_cases.json").read_text())
DEVICES, MEMORY_MB = 4, 12000.0


def case_problem(case: AcesoCase, folder: Path) -> AcesoProblem:
    """The problem of a case; `folder` holds the profiles (`profiled-time-miniset`)."""
    profile = read_profile(folder, case.name)
    return AcesoProblem(
        family=case.family,
        ops=full_ops(case.family, profile.ops, case.layers),
        profile=profile,
        devices=DEVICES,
        devices_per_node=DEVICES,
        memory_MB=MEMORY_MB,
        global_batch=case.global_batch,
        microbatches=case.microbatches,
    )


def full_ops(family: str, ops: tuple[str, ...], layers: int) -> tuple[str, ...]:
    """The ops of the whole model from the profile, which holds one layer of each kind. Raises UsageError otherwise."""
    if family == "gpt":
        return ops[:1] + ops[1:14] * layers + ops[14:]
    if family == "t5":
        return ops[:1] + ops[1:14] * layers + ops[14:16] + ops[16:37] * layers + ops[37:]
    if family == "resnet":
        return ops
    raise UsageError(f"no model family {family!r} among Aceso's; known: gpt, resnet, t5")


def published_plan(case: AcesoCase) -> AcesoPlan:
    """The plan whose figures were published, reconstructed as the module says."""
    plans: dict[str, _Plan] = json.loads((PUBLISHED / "aceso_plans.json").read_text())
    plan = plans[case.name]
    return AcesoPlan(microbatch=plan["microbatch"], stages=tuple(_stage(stage) for stage in plan["stages"]))


# Runs of [how many ops, value].
_Runs = list[list[int]]


class _Plan(TypedDict):
    """A plan in the file; a stage has runs of tensor, data, algo and recompute."""

    microbatch: int
    stages: list[dict[str, _Runs]]


def _stage(stage: dict[str, _Runs]) -> AcesoStage:
    """The runs written out."""
    return AcesoStage(
        tensor=_spelled(stage["tensor"]),
        data=_spelled(stage["data"]),
        algo=_spelled(stage["algo"]),
        recompute=tuple(value == 1 for value in _spelled(stage["recompute"])),
    )


def _spelled(runs: _Runs) -> tuple[int, ...]:
    """One value per op."""
    return tuple(value for count, value in runs for _ in range(count))
