"""The judge of one precision: the model made, its types known, a first pass tried."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.plans.settings import Precision
from placer.runtime.data_parallel.given_parameters import OptimizerFactory
from placer.runtime.distributed.world import device_of
from placer.runtime.stages.batch_values import Batch
from placer.runtime.stages.captured_model import CapturedModel
from placer.runtime.verify.compressed import summing_rounding
from placer.runtime.verify.eager.rounding import values_of
from placer.runtime.verify.handed import eager_run
from placer.runtime.verify.held import Judge
from placer.runtime.verify.verdict import CAST, EXACT, UNITS
from placer.runtime.weights.meta_model import prepared_model

# Half of what separates 1 from the next number.
_UNIT: dict[Precision, float] = {
    "float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "bfloat16-autocast": 2.0**-8, "float16": 2.0**-11,
}  # fmt: skip
_NARROW: tuple[Precision, ...] = ("bfloat16", "float16", "float32")
_SIXTEEN = ("bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The plan in the precision it is run in, and its model captured so."""

    plan: Plan
    capture: CapturedModel

    @property
    def precision(self) -> Precision:
        """That of the run."""
        return self.plan.settings.precision

    @property
    def label(self) -> str:
        """That with the type in which replicas sum gradients, where that is another: `float32/bfloat16`."""
        return f"{self.precision}/{self.plan.settings.gradient_compression}" if self.plan.compresses else self.precision

    @property
    def casts(self) -> dict[Precision, tuple[str, ...]]:
        """Where the model itself computes in narrower types than the run's, the narrowest first."""
        units = {name: unit for name, unit in _UNIT.items() if name in _NARROW and unit > _UNIT[self.precision]}
        found = {name: self.capture.casts_to(getattr(torch, name)) for name in _NARROW if name in units}
        return {name: places for name, places in found.items() if places}


def in_precision(plan: Plan, precision: Precision) -> Plan:
    """The plan with its steps in another precision."""
    return replace(plan, settings=replace(plan.settings, precision=precision))


def uncompressed(plan: Plan) -> Plan:
    """The plan with gradients that replicas sum as they are."""
    return replace(plan, settings=replace(plan.settings, gradient_compression="none"))


def judge_of(
    subject: Subject,
    model: nn.Module | None,
    optimizer: OptimizerFactory | None,
    exact: tuple[Subject, nn.Module | None] | None,
) -> Judge:
    """The judge of a subject; exact: the same in float64, where that is another and can be. Models are taken as their
    own."""
    plan = subject.plan
    device = device_of(plan, 0)
    source = prepared_model(plan, model, device)
    wide = None
    if exact is not None:
        wide = eager_run(exact[0].plan, prepared_model(exact[0].plan, exact[1], device), exact[0].capture, optimizer)
    narrowest = next(iter(subject.casts), subject.precision)
    run = eager_run(plan, source, subject.capture, optimizer)
    return Judge(
        run=run,
        exact=wide,
        precision=subject.precision,
        label=subject.label,
        summing=summing_rounding(plan),
        relative=_relative(subject.precision, narrowest),
        of_weights=_of_weights(subject.precision),
        unit=max(_UNIT[narrowest], _UNIT[subject.precision]),
        first=_first_names(source),
        start=run.state(),
    )


def tried(judge: Judge, batch: Batch) -> str:
    """Why one device cannot do a step; "" where it can."""
    try:
        with judge.run.undone():
            values_of(judge.run, batch)
    except UsageError as error:
        return str(error)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
        return f"one device cannot do a step of the model in {judge.precision}: {str(error).strip().splitlines()[0]}"
    return ""


def _relative(precision: Precision, narrowest: Precision) -> float:
    if precision != "float64":
        return UNITS * max(_UNIT[precision], _UNIT[narrowest])
    if narrowest == "float64":
        return EXACT
    return CAST if narrowest == "float32" else UNITS * _UNIT[narrowest]


def _of_weights(precision: Precision) -> float:
    if precision in _SIXTEEN:
        return 4 * _UNIT[precision]  # the next number, or the one after it
    return EXACT if precision == "float64" else UNITS * _UNIT["float32"]


def _first_names(model: nn.Module) -> dict[str, str]:
    """For every name of a parameter the one its gradient has: a tied parameter has several."""
    first: dict[nn.Parameter, str] = {}
    return {name: first.setdefault(one, name) for name, one in model.named_parameters(remove_duplicate=False)}
