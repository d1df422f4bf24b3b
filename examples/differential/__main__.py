"""Random models x random legal plans against one device, on ranks that are started once per batch of models.

python -m examples.differential --cases 3000 --seed 0 --ranks 8     all of them (hours)
python -m examples.differential --seed 0 --case 17                  one of them, with its plan and what differed

A case that differs, fails or hangs is named with the command that repeats it. Nothing is skipped: plans that break a
rule are drawn again and counted by the rule, legal plans that the runtime refuses are counted with what it said.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator

from examples.differential.cases import PLANS, Prepared, Refused, forget, prepare, run
from placer.errors import PlacerError
from placer.runtime.pool import RankPool

# Models captured before ranks are forked, which then know them.
MODELS = 20
CASE_SECONDS = 120.0


def main(argv: list[str] | None = None) -> int:
    """Run the cases and print a line for each that is not equal; 0 where all are."""
    options = _options(argv)
    numbers = [options.case] if options.case is not None else range(options.first, options.first + options.cases)
    counts: Counter[str] = Counter()
    redrawn: Counter[str] = Counter()
    began = time.perf_counter()
    for case, verdict, line in outcomes(options.seed, numbers, options.ranks):
        counts[verdict] += 1
        redrawn += case.redrawn
        if verdict != "equal" or options.all or options.case is not None:
            print(f"{verdict:8} {case}: {line}", flush=True)
        if verdict not in ("equal", "refused"):
            print(f"         again: {_command(options, case)}", flush=True)
        if sum(counts.values()) % 50 == 0:
            print(f"{sum(counts.values())} cases, {_listed(counts)}, {time.perf_counter() - began:.0f} s", flush=True)
    print(f"{_listed(counts)}; plans drawn again: {_listed(redrawn) or 'none'}; {time.perf_counter() - began:.0f} s")
    return 0 if set(counts) <= {"equal", "refused"} else 1


def outcomes(seed: int, numbers: range | list[int], ranks: int) -> Iterator[tuple[Prepared, str, str]]:
    """Each case with its verdict (equal, DIFFERS, FAILS or refused) and what to say of it."""
    for first in range(0, len(numbers), MODELS * PLANS):
        forget()
        cases = [prepare(seed, number, ranks) for number in numbers[first : first + MODELS * PLANS]]
        with RankPool(max(case.plan.world_size for case in cases)) as pool:
            for case in cases:
                yield case, *_outcome(pool, case)


def _outcome(pool: RankPool, case: Prepared) -> tuple[str, str]:
    began = time.perf_counter()
    try:
        report = pool.run(case.plan.world_size, run, case.seed, case.number, case.plan, timeout=CASE_SECONDS)[0]
    except PlacerError as error:
        return "FAILS", str(error).strip()
    if isinstance(report, Refused):
        return "refused", report.why
    worst, seconds = report.worst, time.perf_counter() - began
    found = f"worst {worst.relative:.1e} of {report.tolerance:.0e} ({worst.quantity}, {worst.where}), {seconds:.1f} s"
    return ("equal", found) if report.passed else ("DIFFERS", f"{found}\n{report}")


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=60, help="how many cases")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--case", type=int, default=None, help="this case only")
    parser.add_argument("--seed", type=int, default=0, help="of models and plans")
    parser.add_argument("--ranks", type=int, default=8, help="plans of at most so many ranks")
    parser.add_argument("--all", action="store_true", help="print a line for equal cases too")
    return parser.parse_args(argv)


def _command(options: argparse.Namespace, case: Prepared) -> str:
    return f"python -m examples.differential --seed {options.seed} --ranks {options.ranks} --case {case.number}"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
