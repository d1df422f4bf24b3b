"""A program as people have: a Hub model trained by DeepSpeed or accelerate, configured by the file that was exported.

`torchrun ... -m exported_ranks deepspeed FOLDER`, `accelerate launch --config_file F -m exported_ranks accelerate
FOLDER`: FOLDER holds plan.json, the model's weights, data, and of DeepSpeed its configuration; rank 0 leaves losses
there. Rows of a step are the plan's; which replica has which does not matter to the mean of equal shares.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import torch
from torch import distributed
from transformers import AutoModelForCausalLM, PreTrainedModel

from placer.plans.plan import Plan
from placer.runtime.data import open_data

STEPS = 2
Batch = dict[str, torch.Tensor]


def main() -> None:
    engine, folder = sys.argv[1], Path(sys.argv[2])
    plan = Plan.load(folder / "plan.json")
    model = AutoModelForCausalLM.from_pretrained(folder / "weights", dtype=torch.float32)
    losses = {"deepspeed": by_deepspeed, "accelerate": by_accelerate}[engine](plan, model, folder)
    if distributed.get_rank() == 0:
        (folder / f"{engine}.json").write_text(json.dumps(losses))
    distributed.barrier()
    # Groups that DeepSpeed made and never ends abort some interpreters that are taken apart over them.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def by_deepspeed(plan: Plan, model: PreTrainedModel, folder: Path) -> list[float]:
    """Everything, the optimizer too, is what the configuration says."""
    deepspeed = import_module("deepspeed")
    # Without it DeepSpeed compiles collectives over shared memory first: a minute, and a compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=str(folder / "ds.json")
    )
    losses = []
    for parts in steps(plan, folder, engine.gradient_accumulation_steps()):
        found = []
        for part in parts:
            loss = engine(**part).loss
            engine.backward(loss)
            engine.step()
            found.append(loss.detach())
        losses.append(mean(found))
    return losses


def by_accelerate(plan: Plan, model: PreTrainedModel, folder: Path) -> list[float]:
    """The layout is what the configuration says; batches and optimizer are the program's, as in the file's notes."""
    settings, count = plan.settings, len(plan.microbatches)
    accelerator = import_module("accelerate").Accelerator(gradient_accumulation_steps=count)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=settings.betas, eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )  # fmt: skip
    model, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for parts in steps(plan, folder, count):
        found = []
        for part in parts:
            with accelerator.accumulate(model):
                loss = model(**part).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients and settings.clip_norm is not None:
                    accelerator.clip_grad_norm_(model.parameters(), settings.clip_norm)
                optimizer.step()
                optimizer.zero_grad()
            found.append(loss.detach())
        losses.append(mean(found))
    return losses


def steps(plan: Plan, folder: Path, microbatches: int) -> Iterator[list[Batch]]:
    """Of each step the rows of this rank, in so many microbatches."""
    data = open_data(str(folder / "data"), plan.graph, rows=plan.rows, seed=0)
    rank, world = distributed.get_rank(), distributed.get_world_size()
    for number in range(STEPS):
        own = {name: value.chunk(world)[rank] for name, value in data.batch(number).items()}
        cut = {name: value.chunk(microbatches) for name, value in own.items()}
        yield [{name: parts[m] for name, parts in cut.items()} for m in range(microbatches)]


def mean(losses: list[torch.Tensor]) -> float:
    """Over microbatches and ranks."""
    total = torch.stack(losses).mean()
    distributed.all_reduce(total)
    return float(total) / distributed.get_world_size()


if __name__ == "__main__":
    main()
