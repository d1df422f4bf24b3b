"""Published graphs with given costs, by every strategy of `placer place`: how near each comes to what is known.

    python -m examples.measured.given_costs --data FOLDER                 60 s a search
    python -m examples.measured.given_costs --data FOLDER --seconds 10 --only genetic,min_cut

FOLDER holds `dnn-partitioning/` and `doppler/`. Of the throughput inputs: the value, and by how much it is above the
contiguous optimum; of DOPPLER's graphs, placed for the finish time: the value, the bound, the best known. A list
scheduler may end without a placement: then it says why. `policy` is asked with five seeds, and its median counts. Exits
1 where `min_cut` misses an optimum, `local` or `genetic` are more than 2% above one or no better than the human expert,
`policy` is more than 10% above one or no better than `greedy`, or a finish time is longer than the best known.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from placer.errors import InfeasibleError
from placer.placement.answers import PlaceAnswer
from placer.placement.benchmark import PublishedResult, published
from placer.placement.formats import EXACT, PlaceRequest, read_problem
from placer.placement.legality import Form
from placer.placement.solvers import place

LISTS = ("heft", "etf", "sct", "critical_path", "greedy", "metis", "single")
THROUGHPUT = ("min_cut", "local", "genetic", "policy", *LISTS)
MAKESPAN = (EXACT, *LISTS)
# What may be above the optimum: of a proof rounding alone, of a search without one 2%.
ALLOWED = {"min_cut": 1e-9, "local": 0.02, "genetic": 0.02, "policy": 0.1}
SEEDS = 5
# Best known values are told to five figures.
FIGURES = 1e-4


def main() -> int:
    """Print every line; how many claims failed decides the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", default=",".join(dict.fromkeys((*THROUGHPUT, *MAKESPAN))))
    asked = parser.parse_args()
    names = asked.only.split(",")
    failed = 0
    for path, form in _cases(asked.data):
        family = "doppler" if form == "makespan" else "dnn-partitioning"
        known = published(family, path.stem, form) or PublishedResult()
        for name in [name for name in (MAKESPAN if form == "makespan" else THROUGHPUT) if name in names]:
            answer, words = (_median if name == "policy" else _placed)(path, name, asked.seconds)
            wrong = _wrong(name, answer, known) or _no_better(path, name, answer)
            failed += bool(wrong)
            print(f"{path.stem:32} {name:14} {words}{_beside(answer, known)}{wrong}", flush=True)
    print(f"{failed} claims failed")
    return int(failed > 0)


def _cases(data: Path) -> Iterator[tuple[Path, Form]]:
    yield from ((path, "contiguous") for path in sorted(data.glob("dnn-partitioning/throughput-inputs/*/*.json")))
    yield from ((path, "makespan") for path in sorted(data.glob("doppler/*.txt")))


def _median(path: Path, name: str, seconds: float) -> tuple[PlaceAnswer | None, str]:
    """The median of the answers with several seeds, and all values in words; or why one has none."""
    found = [_placed(path, name, seconds, seed) for seed in range(SEEDS)]
    answers = [answer for answer, _ in found if answer is not None]
    if len(answers) < SEEDS:
        return None, next(words for answer, words in found if answer is None)
    answers.sort(key=lambda answer: answer.objective)
    return answers[SEEDS // 2], f"{', '.join(f'{answer.objective:.10g}' for answer in answers)} {answers[0].unit}"


def _no_better(path: Path, name: str, answer: PlaceAnswer | None) -> str:
    """Whether the policy is no better than greedy, in words."""
    if name != "policy" or answer is None:
        return ""
    greedy, _ = _placed(path, "greedy", 1.0)
    return ": FAILED, no better than greedy" if greedy is not None and answer.objective >= greedy.objective else ""


def _placed(path: Path, name: str, seconds: float, seed: int = 0) -> tuple[PlaceAnswer | None, str]:
    """The answer and its value in words, or why there is none."""
    request = PlaceRequest(strategy=name, seconds=seconds, seed=seed)
    try:
        answer = place(read_problem(path, request), request)
    except InfeasibleError as error:
        return None, str(error)
    return answer, f"{answer.objective:.10g} {answer.unit} in {answer.seconds:.2f} s"


def _beside(answer: PlaceAnswer | None, known: PublishedResult) -> str:
    """How far the value is from what is known, and what is proved."""
    best, kind = known.known
    if answer is None or best is None:
        return ""
    proved = f", bound {answer.bound:.10g}" if answer.bound else ""
    return f", {answer.objective / best - 1:+.3%} of the {kind} {best:.10g}{proved}"


def _wrong(name: str, answer: PlaceAnswer | None, known: PublishedResult) -> str:
    """The claim that fails, if any."""
    best, kind = known.known
    if best is None or name not in (*ALLOWED, EXACT):
        return ""
    if answer is None:
        return ": FAILED, no placement"
    if name == EXACT:
        return ": FAILED, longer than the best known" if answer.objective > best * (1 + FIGURES) else ""
    expert = None if name == "policy" else known.systems.get("human expert", (None,))[0]
    if kind == "optimum" and answer.objective > best * (1 + ALLOWED[name]):
        return ": FAILED, too far from the optimum"
    return ": FAILED, no better than the expert" if expert is not None and answer.objective >= expert else ""


if __name__ == "__main__":
    sys.exit(main())
