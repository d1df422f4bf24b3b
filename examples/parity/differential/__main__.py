"""Random models x random legal plans against one device, on ranks that are started once per batch of models.

python -m examples.parity.differential --cases 3000 --seed 0 --ranks 8     all of them (hours)
python -m examples.parity.differential --seed 0 --case 17                  one of them, with its plan and what differed

A case that differs, fails or hangs is named with the command that repeats it. Nothing is skipped: plans that break a
rule are drawn again and counted by the rule, legal plans that the runtime refuses are counted with what it said.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections import Counter
from functools import partial

from examples.parity.differential.cases import Prepared, run
from examples.parity.differential.running import outcomes
from placer.runtime.executor.compile import BACKENDS


def main(argv: list[str] | None = None) -> int:
    """Run the cases and print a line for each that is not equal; 0 where all are."""
    options = _options(argv)
    numbers = [options.case] if options.case is not None else range(options.first, options.first + options.cases)
    counts: Counter[str] = Counter()
    redrawn: Counter[str] = Counter()
    ways: set[tuple[str, str]] = set()
    began = time.perf_counter()
    for one in outcomes(options.seed, numbers, options.ranks, partial(run, compile=options.compile)):
        counts[one.verdict] += 1
        redrawn += one.case.redrawn
        ways |= one.case.ways
        if one.verdict != "equal" or options.all or options.case is not None:
            print(f"{one.verdict:8} {one.case}: {one.told}", flush=True)
        if one.verdict in ("DIFFERS", "FAILS"):
            print(f"         again: {_command(options, one.case)}", flush=True)
        if sum(counts.values()) % 50 == 0:
            print(f"{sum(counts.values())} cases: {_listed(counts)}; {_times(began)}", flush=True)
    print(f"{sum(counts.values())} cases of seed {options.seed}: {_listed(counts)}; {_times(began)}")
    print(f"plans drawn again: {_listed(redrawn) or 'none'}; {len(ways)} ways to cut {len({op for op, _ in ways})} ops")
    return 1 if counts["DIFFERS"] or counts["FAILS"] else 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=60, help="how many cases")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--case", type=int, default=None, help="this case only")
    parser.add_argument("--seed", type=int, default=0, help="of models and plans")
    parser.add_argument("--ranks", type=int, default=8, help="plans of at most so many ranks")
    parser.add_argument("--compile", choices=BACKENDS, default="", help="run the blocks by this backend")
    parser.add_argument("--all", action="store_true", help="print a line for equal cases too")
    return parser.parse_args(argv)


def _command(options: argparse.Namespace, case: Prepared) -> str:
    command = (
        f"python -m examples.parity.differential --seed {options.seed} --ranks {options.ranks} --case {case.number}"
    )
    return f"{command} --compile {options.compile}" if options.compile else command


def _times(began: float) -> str:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    processor = sum(one.ru_utime + one.ru_stime for one in spent)
    return f"{time.perf_counter() - began:.0f} s, {processor:.0f} s of processors"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
