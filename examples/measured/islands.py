"""One population of `genetic` beside islands within the same budget: how far each ends from the best that any finds.

    python -m examples.measured.islands                                        drawn problems, and models
    python -m examples.measured.islands --only bert --islands 1 4 --budgets 16000 --seeds 5

Of every problem and budget: the mean and the largest gap over the seeds, in percent of the best step time that any run
of this command found on the problem, and seconds of a search. Where there are cores, islands share those.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from placer.api import problem
from placer.search.asked import Budget
from placer.search.comparison import Case, searched
from placer.strategies.policy.drawn import LARGER, drawn_problem

MODELS = (
    ("gpt2 on h100x8", "examples.models:gpt2", "h100x8", "64x1024"),
    ("gpt2 on h100x4+a100x4", "examples.models:gpt2", "h100x4+a100x4", "64x1024"),
    ("bert_base on mixed_node.yaml", "examples.models:bert_base", "examples/mixed_node.yaml", "128x512"),
    ("bert_base on racks.yaml", "examples.models:bert_base", "examples/racks.yaml", "128x512"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a search of so many islands found, and what it took."""

    budget: int
    islands: int
    step_seconds: float
    search_seconds: float


def main() -> int:
    """Print a table for every problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drawn", type=int, default=4, help="so many drawn problems of 24 to 64 blocks")
    parser.add_argument("--only", default="", help="problems whose names have this in them")
    parser.add_argument("--islands", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--budgets", type=int, nargs="+", default=[1000, 4000])
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    print("| problem | evaluations | islands | mean gap | worst gap | seconds |\n|---|---|---|---|---|---|")
    for name in _names(asked.drawn, asked.only):
        case = _case(name)
        runs = [
            run
            for budget in asked.budgets
            for islands in asked.islands
            for run in _runs(case, budget, islands, range(asked.seeds))
        ]
        _print(case.name, runs)
    return 0


def _names(drawn: int, only: str) -> list[str]:
    names = [*(f"drawn {number}" for number in range(drawn)), *(name for name, *_ in MODELS)]
    return [name for name in names if only in name]


def _case(name: str) -> Case:
    found = {known: rest for known, *rest in MODELS}.get(name)
    if found is None:
        return Case(name=name, problem=drawn_problem(int(name.removeprefix("drawn ")), LARGER))
    model, cluster, batch = found
    with contextlib.redirect_stderr(io.StringIO()):  # what the capture assumed
        return Case(name=name, problem=problem(model, cluster, batch=batch))


def _runs(case: Case, budget: int, islands: int, seeds: Sequence[int]) -> Iterator[Run]:
    asked = replace(case, problem=replace(case.problem, islands=islands))
    for seed in seeds:
        outcome, _ = searched(asked, "genetic", seed, Budget(evaluations=budget))
        if outcome.step_time_seconds is None:
            print(f"{case.name}, {budget} evaluations, seed {seed}: {outcome.reason}", file=sys.stderr)
            continue
        found, took = outcome.step_time_seconds, outcome.search_time_seconds
        yield Run(budget=budget, islands=islands, step_seconds=found, search_seconds=took)


def _print(name: str, runs: Sequence[Run]) -> None:
    best = min((run.step_seconds for run in runs), default=0.0)
    for budget, islands in dict.fromkeys((run.budget, run.islands) for run in runs):
        own = [run for run in runs if (run.budget, run.islands) == (budget, islands)]
        gaps = [100 * (run.step_seconds / best - 1) for run in own]
        took = mean(run.search_seconds for run in own)
        print(f"| {name} | {budget} | {islands} | {mean(gaps):.1f}% | {max(gaps):.1f}% | {took:.1f} |", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
