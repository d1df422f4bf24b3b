"""Every model x layout x schedule against the reference run: the whole list of parity checks, as a table.

python -m examples.parity.matrix                  all of them (long)
python -m examples.parity.matrix --only gpt2      cases whose name holds a word
python -m examples.parity.matrix --products       only replicas of several devices times pipelines and data
python -m examples.parity.matrix --ranks 2        cases of at most so many ranks
python -m examples.parity.matrix --compile aot_eager    blocks run by that backend of torch.compile
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import get_args

from examples.parity.cases import Case, plan_of, prepare, run_case
from examples.parity.models import TEXT
from placer.errors import PlacerError
from placer.plans.plan import ScheduleName, Sharding
from placer.runtime.distributed.rank_pool import RankPool
from placer.runtime.executor.compile import BACKENDS

MODELS = (
    *(Case(model=f"examples.models:tiny_{name}") for name in ("gpt2", "llama", "t5", "bert", "vit", "resnet", "unet")),
    Case(model="examples.parity.models:words", shapes=TEXT),
)
# The product of sorted rows by their experts casts to float32.
EXPERTS = tuple(
    Case(model=f"examples.models:tiny_{name}", precision="float32") for name in ("mixtral", "qwen3_moe", "gpt_oss")
)
CASE_SECONDS = 1200.0
SCHEDULES: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "interleaved", "zero-bubble")


def cases() -> Iterator[Case]:
    """The list."""
    for base in MODELS:
        yield base
        yield replace(base, replicas=2)
        yield replace(base, replicas=2, sharding="optimizer")
        yield replace(base, replicas=2, sharding="gradients")
        yield replace(base, replicas=2, sharding="parameters")
        for schedule in SCHEDULES:
            turns = 2 if schedule == "interleaved" else 1
            yield replace(base, positions=2, schedule=schedule, turns=turns)
            yield replace(base, positions=2, replicas=2, schedule=schedule, turns=turns)
        yield replace(base, positions=3)
        yield replace(base, positions=2, recompute=True)
        yield replace(base, replicas=4, sharding="parameters", microbatches=(4, 4))
        yield replace(base, positions=2, replicas=2, sharding="parameters")
        yield replace(base, positions=2, replicas=2, microbatches=(4, 3, 1))
        yield replace(base, positions=2, replicas=2, microbatches=(4, 3, 1), sharding="parameters")
        yield replace(base, positions=4)
        yield replace(base, positions=4, replicas=2)
        for precision in ("float32", "bfloat16-autocast"):
            yield replace(base, positions=2, precision=precision)
            yield replace(base, replicas=2, precision=precision)
    yield from _special()
    yield from products()


def products() -> Iterator[Case]:
    """Replicas of several devices, alone and times pipelines and data; unequal shares times pipelines."""
    for base in (*MODELS, *EXPERTS):
        yield from _cut(replace(base, degree=2))
        yield replace(base, degree=4)
        yield replace(base, degree=2, positions=2, replicas=2)
        yield replace(base, positions=2, replicas=2, shares=(3, 1), microbatches=(4, 4))
        yield replace(base, degree=2, positions=2, replicas=2, shares=(3, 1), microbatches=(4, 3, 1))
    for base in EXPERTS:
        own = replace(base, axis="expert", microbatches=(4, 4))
        yield from (replace(own, degree=degree) for degree in (2, 4))
        for sharding in get_args(Sharding):
            yield replace(own, degree=2, replicas=2, sharding=sharding)
        yield replace(own, degree=2, positions=2)
        yield replace(own, degree=2, positions=2, replicas=2, recompute=True)
    for base in (base for base in MODELS if base.model.endswith(("gpt2", "llama", "bert"))):
        for positions, replicas in ((1, 1), (1, 2), (2, 1), (2, 2)):
            yield replace(base, axis="sequence", degree=2, positions=positions, replicas=replicas)
    for base in MODELS:
        for axis in ("height", "width") if base.model.endswith(("resnet", "unet")) else ():
            yield from _cut(replace(base, axis=axis, degree=2))
            yield replace(base, axis=axis, degree=4)
            yield replace(base, axis=axis, degree=2, positions=2, replicas=2)
    yield from _two_axes()


def _two_axes() -> Iterator[Case]:
    """Replicas of two axes, alone and times pipelines or data."""
    pairs = {"height x width": ("resnet", "unet"), "sequence x tensor": ("gpt2", "llama", "bert")}
    bases = [replace(one, axis=axis) for axis, ends in pairs.items() for one in MODELS if one.model.endswith(ends)]
    bases += [replace(one, axis="expert x tensor", microbatches=(4, 4)) for one in EXPERTS]
    for base in (replace(one, degree=2) for one in bases):
        yield base
        yield replace(base, positions=2, recompute=True)
        yield replace(base, replicas=2)
        yield replace(base, replicas=2, sharding="parameters")


def _cut(base: Case) -> Iterator[Case]:
    """Replicas of several devices times one other way."""
    yield base
    yield replace(base, recompute=True)
    yield replace(base, replicas=2)
    yield replace(base, replicas=2, sharding="gradients")
    yield replace(base, replicas=2, sharding="parameters")
    yield replace(base, replicas=2, shares=(3, 1), microbatches=(4, 4))
    for schedule in SCHEDULES:
        yield replace(base, positions=2, schedule=schedule, turns=2 if schedule == "interleaved" else 1)


def _special() -> Iterator[Case]:
    dropping = Case(model="examples.parity.models:dropping_gpt2")
    yield replace(dropping, replicas=2)
    yield replace(dropping, positions=2)
    yield replace(dropping, positions=2, replicas=2, recompute=True)
    gpt2 = Case(model="examples.models:tiny_gpt2")
    yield replace(gpt2, positions=2, cut=1)
    yield replace(gpt2, replicas=2, shares=(3, 1), microbatches=(4, 4))
    yield replace(gpt2, replicas=2, microbatches=(5, 3))
    yield replace(gpt2, positions=2, microbatches=(4, 3, 1))
    yield replace(gpt2, replicas=2, optimizer="sgd")
    yield replace(gpt2, positions=2, precision="bfloat16")
    yield replace(gpt2, positions=2, schedule="zero-bubble", recompute=True)


def main(argv: list[str] | None = None) -> int:
    """Run the cases and print a line for each; 0 where all pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--products", action="store_true", help="only replicas of several devices, and their products")
    parser.add_argument("--ranks", type=int, default=8, help="cases of at most so many ranks")
    parser.add_argument("--steps", type=int, default=3, help="training steps of each case")
    parser.add_argument("--compile", choices=BACKENDS, default="", help="run the blocks by this backend")
    options = parser.parse_args(argv)
    every = products() if options.products else cases()
    chosen = sorted(
        (case for case in every if options.only in str(case) and case.ranks <= options.ranks), key=lambda one: one.model
    )
    if not chosen:
        parser.error(f"no case of at most {options.ranks} ranks holds {options.only!r}")
    failed = 0
    with RankPool(max((case.ranks for case in chosen), default=1)) as pool:
        for _, group in groupby(chosen, key=lambda case: case.model):
            for passed, line in _lines(pool, tuple(group), options.steps, options.compile):
                failed += not passed
                print(line, flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} cases equal the reference run")
    return 1 if failed else 0


def _lines(pool: RankPool, group: tuple[Case, ...], steps: int, compile: str) -> Iterator[tuple[bool, str]]:
    """The lines of one model's cases. It is captured once in each precision, before ranks are forked."""
    pool.close()
    for case in {case.precision: case for case in group}.values():
        prepare(plan_of(case))
    for case in group:
        yield _line(pool, case, steps, compile)


def _line(pool: RankPool, case: Case, steps: int, compile: str) -> tuple[bool, str]:
    began = time.perf_counter()
    try:
        report = pool.run(case.ranks, run_case, plan_of(case), steps, compile, timeout=CASE_SECONDS)[0]
    except PlacerError as error:
        return False, f"FAIL  {case}: {str(error).strip().splitlines()[-1]}"
    seconds = time.perf_counter() - began
    worst = report.worst
    found = f"worst {worst.relative:.1e} ({worst.quantity}, step {worst.step}) of {report.tolerance:.0e}"
    return report.passed, f"{'ok  ' if report.passed else 'FAIL'}  {case}: {found}, {seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
