"""A training loop of your own around a plan: placer computes the step, the rest is yours.

placer plan examples.gpt:build --cluster localx2 --batch 8x128 -o plan.json
torchrun --nproc-per-node 2 examples/own_loop.py plan.json
"""

from __future__ import annotations

import sys

import torch

import placer


def main(path: str, steps: int = 3) -> None:
    """Train for some steps on random bytes; every rank is given the same global batch and takes its own rows."""
    plan = placer.Plan.load(path)
    executor = placer.runtime.load(plan)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        tokens = torch.randint(256, (plan.rows, 128), generator=generator)
        loss = executor.step({"input_ids": tokens, "labels": tokens})
        if executor.rank == 0:  # the loss is the same on every rank
            print(f"step {step} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: torchrun --nproc-per-node 2 examples/own_loop.py plan.json")
    main(sys.argv[1])
