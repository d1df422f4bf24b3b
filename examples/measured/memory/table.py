"""Peak memory by category beside the ledger, for every model x parallelism: is the prediction within ten per cent?

python -m examples.measured.memory.table                 all of them, on fake tensors (which count as a real run does)
python -m examples.measured.memory.table --only "gpt2 "  cases whose name holds a word
python -m examples.measured.memory.table --real          on processes, one per rank
python -m examples.measured.memory.table --precision bfloat16-autocast

A line per case and position, of its fullest rank: measured / predicted of each category that a processor can tell
apart, and of what was alive at once against the sum of all predicted categories but the device's overhead. Categories
are each at their own peak. What a block keeps while it runs again in backward is seen at once only, not among
activations. tests/training/test_dry_run.py holds both ways of measuring to the same numbers, and to torch's memory
tracker.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import get_args

import torch

from examples.parity.cases import Case, capture_of, plan_of, prepare
from placer import runtime
from placer.costs.step_estimate import estimate
from placer.errors import PlacerError
from placer.plans.ledger import MemoryBytes
from placer.plans.plan import Plan, Sharding
from placer.plans.settings import Precision
from placer.plans.transfers import position_of
from placer.runtime.checkpoint.training_state import TrainingState
from placer.runtime.distributed.rank_pool import RankPool
from placer.runtime.dry import DryRuns, rank_classes
from placer.runtime.measuring.measurement import WATCHED_STEP, Measurement
from placer.runtime.stages.captured_model import captured
from placer.runtime.weights.meta_model import prepared_model
from placer.tracer import random_batch

# Of `examples.measured.memory.models`, with the shapes of 8 rows (none: the model's own).
TEXT = (("input_ids", (8, 128)),)
MODELS: dict[str, tuple[tuple[str, tuple[int, ...]], ...]] = {
    **dict.fromkeys(("gpt2", "gpt2_dropout", "llama", "bert", "t5", "mixtral", "qwen3_moe"), TEXT),
    "vit": (),
    "resnet": (("pixel_values", (8, 3, 64, 64)),),
    "unet": (),
}
EXPERTS, IMAGES = ("mixtral", "qwen3_moe"), ("resnet", "unet")
# Buffers of messages and collectives, and temporaries, are told apart by no processor: they count at once.
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "buffers")
CLOSE = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one rank held: by category, and at once."""

    memory: MemoryBytes
    allocated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One rank of a case beside what was predicted for it."""

    case: Case
    rank: int
    measured: Measured
    predicted: MemoryBytes

    @property
    def ratios(self) -> dict[str, float]:
        """Measured over predicted of each category that both have, and of all that is alive at once."""
        seen = [name for name in CATEGORIES if name != "activations" or not self.case.recompute]
        pairs = {name: (getattr(self.measured.memory, name), getattr(self.predicted, name)) for name in seen}
        pairs["at once"] = self.measured.allocated, self.predicted.total - self.predicted.overhead
        return {name: found / wanted for name, (found, wanted) in pairs.items() if found and wanted}

    @property
    def far(self) -> tuple[str, ...]:
        """The categories that are off by more than CLOSE."""
        return tuple(name for name, ratio in self.ratios.items() if abs(ratio - 1) > CLOSE)

    def __str__(self) -> str:
        told = ", ".join(f"{name} {ratio:.2f}" for name, ratio in self.ratios.items())
        return f"{'FAR ' if self.far else 'ok  '} {self.case}, rank {self.rank}: {told}"


def cases(precision: Precision = "float32") -> Iterator[Case]:
    """Each model on one device, under data, sharded, pipeline and recompute, with its ops cut, with unequal shares."""
    for model, shapes in MODELS.items():
        yield from cases_of(Case(
            model=f"examples.measured.memory.models:{model}", precision=precision, shapes=shapes, microbatches=(4, 4)
        ))  # fmt: skip


def cases_of(base: Case) -> Iterator[Case]:
    """The parallelisms of one model."""
    for count in ((4, 4), (8,)):
        own = replace(base, microbatches=count)
        yield own
        yield replace(own, recompute=True)
        yield replace(own, recompute="selective")
        yield from (replace(own, replicas=2, sharding=sharding) for sharding in get_args(Sharding))
    yield replace(base, replicas=2, shares=(3, 1))
    yield replace(base, positions=2)
    yield replace(base, positions=2, schedule="gpipe", recompute=True)
    yield replace(base, positions=2, schedule="gpipe", recompute="selective")
    yield replace(base, positions=2, schedule="zero-bubble", microbatches=(2, 2, 2, 2))
    yield replace(base, positions=2, schedule="zero-bubble", microbatches=(2, 2, 2, 2), recompute="selective")
    yield replace(base, positions=2, schedule="interleaved", turns=2, microbatches=(2, 2, 2, 2))
    yield replace(base, positions=2, replicas=2)
    yield replace(base, positions=2, replicas=2, sharding="parameters")
    name = base.model.rpartition(":")[2]
    axes = (
        ("height",)
        if name in IMAGES
        else ("tensor", "sequence", "expert")
        if name in EXPERTS
        else ("tensor", "sequence")
    )
    yield from (replace(base, degree=2, axis=axis) for axis in axes)


def main(argv: list[str] | None = None) -> int:
    """Print a line per rank and how many are close; 1 where some are not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--real", action="store_true", help="measure on processes")
    parser.add_argument("--precision", choices=get_args(Precision), default="float32", help="of all cases")
    options = parser.parse_args(argv)
    chosen = [case for case in cases(options.precision) if options.only in str(case)]
    if not chosen:
        parser.error(f"no case holds {options.only!r}")
    lines: list[Line] = []
    refused = 0
    for case in chosen:
        try:
            for line in table_lines(case, real=options.real):
                lines.append(line)
                print(line, flush=True)
        except PlacerError as error:
            refused += 1
            print(f"none {case}: {error}", flush=True)
    return _told(lines, refused)


def _told(lines: list[Line], refused: int) -> int:
    """Say how far off the sums are; 1 where one is by more than CLOSE."""
    off = [abs(line.ratios["at once"] - 1) for line in lines] or [0.0]
    close = sum(error <= CLOSE for error in off)
    print(
        f"{close} of {len(lines)} ranks hold at once what is predicted within {CLOSE:.0%} "
        f"(median {median(off):.1%}, most {max(off):.1%}); every category of "
        f"{sum(not line.far for line in lines)} is as close; {refused} cases refused"
    )
    return 0 if close == len(lines) else 1


def table_lines(case: Case, *, real: bool = False) -> Iterator[Line]:
    """The lines of a case."""
    plan = plan_of(case)
    predicted, positions = estimate(plan).memory, position_of(plan)
    fullest: dict[int, Line] = {}
    for rank, measured in (_real(plan) if real else _dry(plan)).items():
        at = positions[next(index for index, one in enumerate(plan.stages) if plan.ranks[rank] in one.devices)]
        line = Line(case=case, rank=rank, measured=measured, predicted=predicted[at])
        if at not in fullest or measured.allocated > fullest[at].measured.allocated:
            fullest[at] = line
    yield from fullest.values()


def _dry(plan: Plan) -> dict[int, Measured]:
    runs = DryRuns(plan, capture=capture_of(plan))
    ranks = [ranks[0] for ranks in rank_classes(plan)]
    done = {rank: runs.of(rank) for rank in ranks}
    return {rank: Measured(memory=one.memory, allocated=one.allocated_bytes) for rank, one in done.items()}


def _real(plan: Plan) -> dict[int, Measured]:
    prepare(plan)
    with RankPool(plan.world_size) as pool:
        return dict(enumerate(pool.run(plan.world_size, measured_rank, plan, timeout=600.0)))


def measured_rank(plan: Plan) -> Measured:
    """What every rank calls: some steps, the last of them watched."""
    executor = runtime.load(plan, capture=captured(plan, prepared_model(plan, None, torch.device("cpu"))))
    executor.relay.target = measurement = Measurement(plan, executor.device, executor.rank)
    for step in range(WATCHED_STEP + 1):
        with measurement.step(step, TrainingState(executor)):
            executor.step(random_batch(plan.graph, plan.rows, step))
    return Measured(memory=measurement.memory, allocated=measurement.allocated)


if __name__ == "__main__":
    sys.exit(main())
