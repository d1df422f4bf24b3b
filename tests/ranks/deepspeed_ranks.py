"""Plans on DeepSpeed's engine under torchrun: `python -m deepspeed_ranks FOLDER` leaves in FOLDER what they gave.

The engine keeps its process groups for the life of a process: all plans run in one group of ranks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from execute_models import LENGTH, VOCABULARY
from execute_plans import capture_of, tiny_plan
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.runtime.deepspeed.load import load
from placer.runtime.distributed.world import joined
from placer.runtime.verify.handed import eager_run
from placer.runtime.weights.meta_model import prepared_model

STEPS = 3
# Where a gradient is nothing but rounding AdamW steps by its sign; this epsilon is above that.
SETTINGS = RunSettings(epsilon=1e-4)
ON_HOST = replace(SETTINGS, offload="optimizer")
# What its step is follows the clipped norm, which AdamW divides out again.
CLIPPED = RunSettings(optimizer="sgd", learning_rate=0.1, momentum=0.9, clip_norm=0.1)
PLANS: dict[str, Callable[[], Plan]] = {
    "ZeRO 0": lambda: tiny_plan(4, 1, settings=SETTINGS),
    "ZeRO 1, on the host": lambda: tiny_plan(4, 1, sharding="optimizer", settings=ON_HOST),
    "ZeRO 2, an uneven last microbatch": lambda: tiny_plan(
        4, 1, sharding="gradients", microbatches=(8, 4), settings=SETTINGS
    ),
    "ZeRO 2, a replica without rows": lambda: tiny_plan(
        4, 1, sharding="gradients", microbatches=(8, 3), settings=SETTINGS
    ),
    "ZeRO 3, on the host": lambda: tiny_plan(4, 1, sharding="parameters", settings=ON_HOST),
    "ZeRO 3, recompute": lambda: tiny_plan(4, 1, sharding="parameters", recompute=True, settings=SETTINGS),
    "ZeRO 3, weights of the first block alone": lambda: tiny_plan(
        4, 1, model="untied", sharding="parameters", settings=SETTINGS
    ),
    "ZeRO 3, clipped": lambda: tiny_plan(4, 1, sharding="parameters", settings=CLIPPED),
    "pipeline": lambda: tiny_plan(4, 4, model="untied", settings=SETTINGS),
    "pipeline x ZeRO 1, an uneven last microbatch": lambda: tiny_plan(
        4, 2, model="untied", sharding="optimizer", microbatches=(8, 4), settings=SETTINGS
    ),
    "pipeline, clipped": lambda: tiny_plan(4, 4, model="untied", settings=CLIPPED),
    "pipeline x ZeRO 0, clipped": lambda: tiny_plan(4, 2, model="untied", settings=CLIPPED),
    "pipeline x ZeRO 1, clipped": lambda: tiny_plan(4, 2, model="untied", sharding="optimizer", settings=CLIPPED),
}


def main() -> None:
    folder = Path(sys.argv[1])
    with joined(PLANS["ZeRO 0"]()) as world:
        for name, made in PLANS.items():
            plan = made()
            run = load(plan, capture=None if name == "ZeRO 0" else capture_of(plan))
            losses = [run.step(batch) for batch in batches(plan)]
            state, held_out = run.full_state_dict(), run.evaluate(next(batches(plan)))
            if world.first:
                expected, weights = one_device(plan)
                (folder / f"{name}.json").write_text(
                    json.dumps([losses, expected, held_out, difference(state, weights), len(state), len(weights)])
                )


def one_device(plan: Plan) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of the same steps on one device."""
    model = prepared_model(plan, None, torch.device("cpu"))
    judge = eager_run(plan, model, capture_of(plan))
    losses = [judge.step(batch).loss for batch in batches(plan)]
    return losses, {name: parameter.detach() for name, parameter in model.named_parameters()}


def difference(state: dict[str, torch.Tensor], weights: dict[str, torch.Tensor]) -> float:
    """The largest, relative to a tensor's largest element."""
    return max(float((state[n] - w).abs().max() / w.abs().max()) for n, w in weights.items())


def batches(plan: Plan) -> Iterator[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        ids = torch.randint(0, VOCABULARY, (plan.rows, LENGTH), generator=generator)
        yield {"input_ids": ids, "labels": ids}


if __name__ == "__main__":
    main()
