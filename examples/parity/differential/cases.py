"""A case: model number i // PLANS of a seed under its plan number i; what ranks do with it, and what came of it."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from functools import cache
from random import Random

import torch
from torch import nn

from examples.parity.differential.models import Made, random_model
from examples.parity.differential.plans import random_plan
from placer import tracer
from placer.errors import ExecutionError, IllegalPlanError, UsageError
from placer.plans.plan import Plan, recompute_word
from placer.runtime import VerifyReport, verify
from placer.runtime.stages.captured_model import CapturedModel, made_ready

PLANS = 5
STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A case that can be run by ranks forked from this process. redrawn: rules that plans drawn before broke. unruly:
    what its model does beside its layers."""

    seed: int
    number: int
    plan: Plan
    redrawn: Counter[str]
    unruly: str = ""

    @property
    def ways(self) -> set[tuple[str, str]]:
        """The ops that the plan cuts, each with how."""
        classes = self.plan.graph.classes
        splits = (pair for layout in self.plan.layouts for pair in zip(classes, layout.splits, strict=True))
        return {
            (op.target, name) for kind, one in splits if one for op, name in zip(kind.ops, one.choices, strict=True)
        }

    def __str__(self) -> str:
        return f"{self.number:>4}  {told(self.plan)}{' unruly: ' * bool(self.unruly)}{self.unruly}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What the runtime said of a plan that is legal, before any training."""

    why: str


@cache
def prepare(seed: int, number: int, ranks: int) -> Prepared:
    """Draw the case and capture its model: in the process that ranks are forked from, which then know both."""
    made, traced = _traced(seed, number // PLANS)
    draw = Random(f"plan {seed}/{number}")
    drawn = random_plan(draw, traced.graph, tracer.resolve(made.model).ref, ranks)
    _captured(seed, number // PLANS, drawn.plan)
    return Prepared(seed=seed, number=number, plan=drawn.plan, redrawn=drawn.redrawn, unruly=made.unruly)


def run(seed: int, number: int, ranks: int, compile: str = "") -> VerifyReport | Refused:
    """What every rank of a case calls. It was legal when it was drawn. compile: see `placer.runtime.load`."""
    plan, model = prepare(seed, number, ranks).plan, number // PLANS
    capture, made = _captured(seed, model, plan), _traced(seed, model)[0]
    try:
        return verify(plan, STEPS, model=_copied(made.model, {}), capture=capture, checked=True, compile=compile)
    except (ExecutionError, IllegalPlanError, UsageError) as error:
        return Refused(why=str(error))


def told(plan: Plan) -> str:
    """A plan in a line."""
    stage = plan.stages[0]
    sizes = dict.fromkeys(f"DP{mesh.replicas} x{mesh.degree}" for mesh in plan.meshes)
    words = [plan.graph.name, f"PP{plan.positions} {' '.join(sizes)}"]
    words += [plan.schedule] * (plan.positions > 1) + [f"microbatches {plan.microbatches}"]
    words += [f"shares {stage.shares}"] * bool(stage.shares)
    words += sorted({one.sharding for one in plan.stages} - {"none"})
    words += [f"recompute {word}" for word in sorted({recompute_word(one.again) for one in plan.stages} - {"no"})]
    words += [f"axis {layout.axis}" for layout in plan.layouts[:1]]
    return " ".join(words)


def _copied(model: nn.Module, known: dict[torch.Tensor | None, torch.Tensor | None]) -> nn.Module:
    """The model with tensors of its own, tied as they were: `copy.deepcopy` also copies many dicts without hooks.

    known: the tensors so far with their copies.
    """
    for parameter in model._parameters.values():
        if parameter is not None and parameter not in known:
            known[parameter] = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
    for buffer in model._buffers.values():
        if buffer is not None and buffer not in known:
            known[buffer] = buffer.clone()
    made: nn.Module = object.__new__(type(model))
    vars(made).update(
        vars(model),
        _parameters={name: known.get(one) for name, one in model._parameters.items()},
        _buffers={name: known.get(one) for name, one in model._buffers.items()},
        _modules={name: None if one is None else _copied(one, known) for name, one in model._modules.items()},
    )
    return made


@cache
def _traced(seed: int, model: int) -> tuple[Made, tracer.Traced]:
    made = random_model(f"model {seed}/{model}")
    return made, tracer.trace(copy.deepcopy(made.model), made.batch)


_KEPT: dict[tuple[int, int], CapturedModel] = {}


def _captured(seed: int, model: int, plan: Plan) -> CapturedModel:
    if (seed, model) not in _KEPT:
        found = made_ready(plan, _traced(seed, model)[1])
        _KEPT[seed, model] = found
    return _KEPT[seed, model]


def forget() -> None:
    """Let go of the captures made so far."""
    prepare.cache_clear()
    _traced.cache_clear()
    _KEPT.clear()
