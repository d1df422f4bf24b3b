"""outcomes(...): cases one after the other on ranks that are started once for `MODELS` models, each with a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from examples.parity.differential.cases import PLANS, Prepared, Refused, forget, prepare, run
from placer.errors import PlacerError
from placer.runtime import VerifyReport
from placer.runtime.distributed.rank_pool import RankPool

# Models captured before ranks are forked, which then know them.
MODELS = 12
CASE_SECONDS = 1200.0

Verdict = Literal["equal", "refused", "DIFFERS", "FAILS"]
Run = Callable[[int, int, int], VerifyReport | Refused]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a case: refused by the runtime before training, failed or hung, different, or equal."""

    case: Prepared
    verdict: Verdict
    told: str


def outcomes(
    seed: int, numbers: Sequence[int], ranks: int, function: Run = run, timeout: float = CASE_SECONDS
) -> Iterator[Outcome]:
    """The outcomes of the cases `numbers` of a seed on at most `ranks` processes, which run `function`."""
    for first in range(0, len(numbers), MODELS * PLANS):
        forget()
        cases = [prepare(seed, number, ranks) for number in numbers[first : first + MODELS * PLANS]]
        with RankPool(max(case.plan.world_size for case in cases)) as pool:
            for case in cases:
                yield _outcome(pool, case, ranks, function, timeout)


def _outcome(pool: RankPool, case: Prepared, ranks: int, function: Run, timeout: float) -> Outcome:
    began = time.perf_counter()
    try:
        report = pool.run(case.plan.world_size, function, case.seed, case.number, ranks, timeout=timeout)[0]
    except PlacerError as error:
        return Outcome(case=case, verdict="FAILS", told=str(error).strip())
    if isinstance(report, Refused):
        return Outcome(case=case, verdict="refused", told=report.why)
    worst, seconds = report.worst, time.perf_counter() - began
    told = f"worst {worst.relative:.1e} of {report.tolerance:.0e} ({worst.quantity} {worst.where}), {seconds:.1f} s"
    if report.passed:
        return Outcome(case=case, verdict="equal", told=told)
    return Outcome(case=case, verdict="DIFFERS", told=f"{told}\n{report}")
