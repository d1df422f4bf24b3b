"""What the ranks of the record tests run: `python -m record_ranks FILE [CASE ...]`; FILE says what differed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from execute_plans import tiny_plan
from placer import runtime
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.program.instructions import Collective, Message
from placer.program.lowering import lower
from placer.runtime.distributed.world import joined
from placer.runtime.measuring.communication_record import Recorder, compare
from placer.runtime.stages.captured_model import CapturedModel, captured
from placer.runtime.weights.meta_model import prepared_model
from placer.tracer import random_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One rank of one case."""

    count: int
    differences: tuple[str, ...] = ()


CAPTURES: dict[str, CapturedModel] = {}
OUTCOMES = TypeAdapter(dict[str, list[Outcome]])
STEPS_BEFORE = 2  # DDP fills its buckets anew in the second step
SMALL_BUCKETS = 4096
NO_CLIPPING = RunSettings(clip_norm=None)
NO_OVERLAP = RunSettings(overlap=False)

# By number of ranks; made when they are run, as each needs a capture.
CASES: dict[int, dict[str, Callable[[], Plan]]] = {
    2: {
        "ddp": lambda: tiny_plan(2, 1),
        "ddp, small buckets": lambda: replace(tiny_plan(2, 1, model="untied"), bucket_bytes=SMALL_BUCKETS),
        "ddp, no clipping, one microbatch": lambda: tiny_plan(2, 1, settings=NO_CLIPPING, microbatches=(8,)),
        "fsdp parameters": lambda: tiny_plan(2, 1, sharding="parameters"),
        "fsdp gradients": lambda: tiny_plan(2, 1, sharding="gradients"),
        "divided update": lambda: tiny_plan(2, 1, sharding="optimizer"),
        "fsdp parameters, one microbatch": lambda: tiny_plan(2, 1, sharding="parameters", microbatches=(8,)),
        "fsdp parameters, recompute": lambda: tiny_plan(2, 1, sharding="parameters", recompute=True),
        "gpipe": lambda: tiny_plan(2, 2, schedule="gpipe"),
        "1f1b, small last microbatch": lambda: tiny_plan(2, 2, microbatches=(4, 4, 4, 2)),
        "ddp, a rank without rows": lambda: tiny_plan(2, 1, microbatches=(4, 1)),
        "fsdp parameters, a rank without rows": lambda: tiny_plan(2, 1, sharding="parameters", microbatches=(4, 1)),
        "zero-bubble": lambda: tiny_plan(2, 2, schedule="zero-bubble", model="untied"),
        "interleaved": lambda: tiny_plan(2, 2, schedule="interleaved", looped=2),
    },
    4: {
        "gpipe x data": lambda: tiny_plan(4, 2, schedule="gpipe"),
        "1f1b x data, small buckets": lambda: replace(tiny_plan(4, 2), bucket_bytes=SMALL_BUCKETS),
        "data, buckets after the backward": lambda: replace(
            tiny_plan(4, 1, settings=NO_OVERLAP, model="untied"), bucket_bytes=SMALL_BUCKETS
        ),
        "1f1b x data, a rank without rows": lambda: tiny_plan(4, 2, microbatches=(4, 4, 1)),
        "1f1b x fsdp parameters, a rank without rows": lambda: tiny_plan(
            4, 2, sharding="parameters", microbatches=(4, 4, 1)
        ),
        "zero-bubble x data": lambda: tiny_plan(4, 2, schedule="zero-bubble"),
        "zero-bubble x divided update": lambda: tiny_plan(4, 2, schedule="zero-bubble", sharding="optimizer"),
        "interleaved x data": lambda: tiny_plan(4, 2, schedule="interleaved", looped=2),
        "1f1b x fsdp parameters": lambda: tiny_plan(4, 2, sharding="parameters"),
        "gpipe x fsdp gradients": lambda: tiny_plan(4, 2, schedule="gpipe", sharding="gradients"),
        "interleaved x fsdp parameters": lambda: tiny_plan(
            4, 2, schedule="interleaved", looped=2, sharding="parameters", model="untied"
        ),
    },
}


def main() -> None:
    found: dict[str, list[Outcome]] = {}
    cases = CASES[int(os.environ["WORLD_SIZE"])]
    chosen = {name: make for name, make in cases.items() if not sys.argv[2:] or name in sys.argv[2:]}
    with joined(next(iter(chosen.values()))(), timeout_seconds=300) as world:
        for name, make in chosen.items():
            every: list[Outcome] = [Outcome(count=0)] * world.size
            dist.all_gather_object(every, one(make(), world.rank))
            found[name] = every
            if world.first:
                print(f"{name}: {sum(len(outcome.differences) for outcome in every)} differences", flush=True)
                Path(sys.argv[1]).write_bytes(OUTCOMES.dump_json(found))


def one(plan: Plan, rank: int) -> Outcome:
    """How many communications the program of this rank has, and what a recorded step did otherwise."""
    program = lower(plan)[rank]
    # One capture serves every case of a model.
    key = plan.model.reference
    if key not in CAPTURES:
        CAPTURES[key] = captured(plan, prepared_model(plan, None, torch.device("cpu")))
    executor = runtime.load(plan, capture=CAPTURES[key])
    for step in range(STEPS_BEFORE):
        executor.step(random_batch(plan.graph, plan.rows, step))
    with Recorder() as recorder:
        executor.step(random_batch(plan.graph, plan.rows, STEPS_BEFORE))
    count = sum(isinstance(entry, Message | Collective) for entry in program.instructions)
    return Outcome(count=count, differences=compare(program, recorder.records))


if __name__ == "__main__":
    main()
