"""Steps of whole models on one GPU: seconds and bytes as predicted beside those measured.

    python -m examples.measured.calibrated.one_gpu                  every model in every precision
    python -m examples.measured.calibrated.one_gpu --only resnet    cases whose name holds this; again for more
    python -m examples.measured.calibrated.one_gpu --jobs 8         so many planned at once (four); run one by one
    python -m examples.measured.calibrated.one_gpu --catalogue h200x1 -o cases.jsonl
    python -m examples.measured.calibrated.one_gpu --from FILE --catalogue h200x1   beside what was measured before

Each is predicted for this GPU as `placer calibrate` measured it and, with --catalogue, as the catalogue describes it
(nothing of this machine is in that), then runs as the plan says, without another GPU's communication: what the cost
model says of kernels, launches, the optimizer and memory is all there is. Products of float32 are made in
TensorFloat-32 where a case says `tf32`; torch's convolutions are by default. `results/h200-steps.jsonl` is one H200's
(torch 2.11, 28 November 2026), `results/h200.yaml` what `placer calibrate` found there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median

import torch

from examples.measured.calibrated import models
from placer import api, runtime
from placer.cluster.calibrate import local_cluster
from placer.cluster.catalogue import load_cluster
from placer.cluster.cluster import Cluster
from placer.errors import PlacerError, UsageError
from placer.plans.ledger import Ledger
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.runtime.stages.batch_values import Batch
from placer.tracer import random_batch

THIS = "examples.measured.calibrated.one_gpu"
PRECISIONS = {
    "float32": RunSettings(precision="float32", batch_norm="microbatch"),
    "tf32": RunSettings(precision="float32", tf32=True, batch_norm="microbatch"),
    "bfloat16": RunSettings(precision="bfloat16", batch_norm="microbatch"),
    "autocast": RunSettings(precision="bfloat16-autocast", batch_norm="microbatch"),
}
# One microbatch, nothing recomputed: what a person's own loop does first.
PINS = ("microbatches=1", "recompute=none")
WARM, STEPS, BATCHES = 4, 12, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model in a precision."""

    model: str
    precision: str

    def __str__(self) -> str:
        return f"{self.model} {self.precision}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Seconds of a step and bytes of the device; those predicted from calibrating, and from the catalogue if asked."""

    case: str
    measured_seconds: float
    measured_bytes: int
    predicted_seconds: tuple[float, ...]
    predicted_bytes: tuple[int, ...]

    def __str__(self) -> str:
        seconds = ", ".join(f"{1e3 * own:.1f} ms ({own / self.measured_seconds:.2f})" for own in self.predicted_seconds)
        size = ", ".join(f"{own / 2**30:.2f} GiB ({own / self.measured_bytes:.2f})" for own in self.predicted_bytes)
        measured = f"{1e3 * self.measured_seconds:.1f} ms and {self.measured_bytes / 2**30:.2f} GiB"
        return f"{self.case}: measured {measured}; predicted {seconds}; {size}"


def cases(words: Sequence[str]) -> tuple[Case, ...]:
    """Those whose name holds one of the words, all where there are none. Raises UsageError where none does."""
    every = tuple(Case(model=model, precision=precision) for model in models.ON_GPU for precision in PRECISIONS)
    found = tuple(case for case in every if not words or any(word in str(case) for word in words))
    if not found:
        raise UsageError(f"--only is {' '.join(words)}; cases are {', '.join(map(str, every))}")
    return found


def planned(case: Case, cluster: Cluster) -> Plan:
    """A case laid out on a machine's one device."""
    reference, batch = f"{models.__name__}:{case.model}", models.ON_GPU[case.model]
    return api.plan(reference, cluster, batch=batch, settings=PRECISIONS[case.precision], pins=PINS)


def kept(path: Path, cluster: Cluster) -> Iterator[Outcome]:
    """What was measured before, beside what is predicted for `cluster` now."""
    for line in path.read_text().splitlines():
        found = json.loads(line)
        model, precision = found["case"].split()
        ledger = planned(Case(model=model, precision=precision), cluster).ledger
        assert isinstance(ledger, Ledger)
        yield Outcome(
            case=found["case"], measured_seconds=found["measured_seconds"], measured_bytes=found["measured_bytes"],
            predicted_seconds=(ledger.step_seconds,), predicted_bytes=(ledger.peak_memory,),
        )  # fmt: skip


def outcome(case: Case, clusters: Sequence[Cluster], lock: AbstractContextManager[bool]) -> Outcome:
    """Predicted for each cluster, then measured while nobody else measures."""
    settings, plans = PRECISIONS[case.precision], [planned(case, one) for one in clusters]
    ledgers = [plan.ledger for plan in plans if isinstance(plan.ledger, Ledger)]
    plan = plans[0]
    with lock:  # nothing of this process lies on the GPU before
        torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
        executor = runtime.load(plan)
        batches = [_pinned(random_batch(plan.graph, plan.rows, step)) for step in range(BATCHES)]
        given = [batches[step % BATCHES] for step in range(WARM + STEPS)]
        seconds = [_seconds(executor.step, one) for one in given]
        free, total = torch.cuda.mem_get_info()
        return Outcome(
            case=str(case),
            measured_seconds=median(seconds[WARM:]),
            measured_bytes=total - free,
            predicted_seconds=tuple(own.step_seconds for own in ledgers),
            predicted_bytes=tuple(own.peak_memory for own in ledgers),
        )


def _pinned(batch: Batch) -> Batch:
    """As a loader gives it that feeds a GPU."""
    return {name: tensor.pin_memory() for name, tensor in batch.items()}


def _seconds(step: Callable[[Batch], float], batch: Batch) -> float:
    """Of a step, which ends when its loss is known; whatever the GPU still has to do counts for the next one."""
    begun = time.perf_counter()
    step(batch)
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def summary(found: Sequence[Outcome], names: Sequence[str]) -> Iterator[str]:
    """The mean error of each way of predicting."""
    for number, name in enumerate(names):
        of_seconds = fmean(abs(one.predicted_seconds[number] / one.measured_seconds - 1) for one in found)
        of_bytes = fmean(abs(one.predicted_bytes[number] / one.measured_bytes - 1) for one in found)
        yield f"{name}: mean absolute error of {len(found)} steps {of_seconds:.1%} of seconds, {of_bytes:.1%} of bytes"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the GPU, predict, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="cases whose name holds this; repeat for more")
    parser.add_argument("--jobs", type=int, default=4, help="cases planned at once")
    parser.add_argument("--catalogue", default="", help="predict for this description, too")
    parser.add_argument("--from", dest="kept", default="", help="measure nothing: take the cases of this file")
    parser.add_argument("-o", "--output", default="", help="append a JSON line per case here")
    options = parser.parse_args(argv)
    try:
        if options.kept:
            again = list(kept(Path(options.kept), load_cluster(options.catalogue)))
            print("\n".join([*map(str, again), *summary(again, (options.catalogue,))]))
            return 0
        chosen = cases(options.only)
        if not torch.cuda.is_available():
            raise UsageError("this measures a GPU, and torch sees none here")
        clusters = [local_cluster(1), *([load_cluster(options.catalogue)] if options.catalogue else [])]
    except PlacerError as error:
        print(f"{THIS}: {error}", file=sys.stderr)
        return error.exit_code
    found = list(_outcomes(chosen, clusters, options.jobs, options.output))
    print("\n".join(summary(found, ("calibrated", options.catalogue)[: len(clusters)])))
    return 0


def _outcomes(chosen: Sequence[Case], clusters: Sequence[Cluster], jobs: int, output: str) -> Iterator[Outcome]:
    """Told as they come; each case in a process of its own, which leaves nothing on the GPU."""
    context = get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(jobs, context, max_tasks_per_child=1) as pool:
        lock = manager.Lock()
        for future in [pool.submit(outcome, case, clusters, lock) for case in chosen]:
            one = future.result()
            print(one, flush=True)
            if output:
                with Path(output).open("a") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
            yield one


if __name__ == "__main__":
    sys.exit(main())
