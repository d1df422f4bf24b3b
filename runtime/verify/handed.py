"""The judge of a plan: the model with its weights, and what it is handed from outside."""

from __future__ import annotations

from torch import nn

from placer.plans.plan import Plan
from placer.runtime.data_parallel.given_parameters import GivenParameters, OptimizerFactory
from placer.runtime.stages.captured_model import CapturedModel, loss_function
from placer.runtime.verify.accepted import norm_rows
from placer.runtime.verify.eager.run import EagerRun
from placer.runtime.verify.keyed_masks import KeyedDraws, KeyedMasks


def eager_run(
    plan: Plan, model: nn.Module, capture: CapturedModel, optimizer: OptimizerFactory | None = None
) -> EagerRun:
    """The steps of `model`, real and in the precision of the plan's settings, as one device does them."""
    cut = capture.cut(plan, model)
    dropped, drawn = cut.rewrites.dropped, tuple(0 if one.batched else None for one in cut.rewrites.drawn)
    masks = KeyedMasks(seed=plan.seed, rows=plan.rows, dims=dropped) if dropped else None
    draws = KeyedDraws(seed=plan.seed, rows=plan.rows, dims=drawn) if drawn else None
    make = None if optimizer is None else lambda named: optimizer(GivenParameters(named))
    return EagerRun(
        model, plan.settings, loss_fn=loss_function(plan), optimizer=make, masks=masks, draws=draws,
        norms=norm_rows(plan, cut),
    )  # fmt: skip
