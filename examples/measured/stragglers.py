"""Ranks whose steps take now more and now less time: predicted seconds beside measured ones, for every synchrony.

    python -m examples.measured.stragglers                              the cases, about three minutes
    python -m examples.measured.stragglers --plot stragglers.svg        and a picture (needs placer-planner[plot])

Ranks are gloo processes that train a tiny model by placer's runtime and sleep before each step for drawn seconds: what
a slower device would compute. Every synchrony of a case gets the same draws. Cases:

    published     a CPU worker with 32 rows beside GPU workers with 96 that are told together: their three batches each
                  (`cpu_beside_gpus.yaml`), 20 times as fast; also with the rows that `placer stragglers` finds best
    four alike    a lognormal of 80 ms and a deviation of 32 ms on each of four ranks

Columns: predicted by `placer.costs.variability` from the distributions; from these draws, the same recurrences played
with what was drawn, so that only the runtime is left in between; measured, to the end of the last rank. The step of the
model itself, measured likewise without sleeping, is added to the first two. Without --own-loss (`execute`'s default)
ranks sum the loss in every step: then local training waits as the synchronous one does.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from examples.parity import models as parity_models
from examples.parity.cases import Case, capture_of, plan_of, prepare
from placer import tracer
from placer.costs.variability.rank_file import read_unsteady_ranks
from placer.costs.variability.ranks import Kinds, RankKind, best_division, crowd_of, given_rows
from placer.costs.variability.staleness import stale_steps, summed_at
from placer.costs.variability.step_times import Array, FittedTimes, MeasuredTimes
from placer.costs.variability.waiting import Crowd, expected_maximum
from placer.errors import require_extra
from placer.plans.plan import Plan
from placer.runtime import load
from placer.runtime.data_parallel.synchrony import SYNCHRONOUS, Synchrony
from placer.runtime.distributed.rank_pool import RankPool

FASTER = 20
STEPS = 96
SEED = 0
LOCAL = Synchrony(kind="local", average_every=8, own_loss=True)
KEPT = (
    SYNCHRONOUS,
    replace(LOCAL, average_every=2),
    LOCAL,
    replace(LOCAL, own_loss=False),
    *(Synchrony(kind="stale", staleness=late, own_loss=True) for late in (1, 4)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """Ranks that sleep: their kinds, and the rows of each kind."""

    name: str
    kinds: Kinds
    rows: tuple[int, ...]

    @property
    def crowd(self) -> Crowd:
        """Distributions, and of how many ranks each."""
        return crowd_of(self.kinds, self.rows)

    @property
    def ranks(self) -> int:
        """How many."""
        return sum(kind.count for kind in self.kinds)

    def drawn(self, steps: int) -> Array:
        """Seconds (steps x ranks)."""
        generator = np.random.default_rng(SEED)
        return np.hstack([times.drawn(generator, (steps, ranks)) for times, ranks in self.crowd])


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """Seconds of a step: predicted, from the draws, measured."""

    case: str
    training: str
    predicted: float
    replayed: float
    measured: float

    def __str__(self) -> str:
        off = self.measured / self.predicted - 1
        numbers = (self.predicted, self.replayed, self.measured)
        return f"{self.training:34s}" + "".join(f"{1e3 * one:14.1f}" for one in numbers) + f"{off:10.1%}"


def emulations() -> tuple[Emulation, ...]:
    """The cases."""
    published = read_unsteady_ranks(str(Path(__file__).with_name("cpu_beside_gpus.yaml"))).kinds
    faster = tuple(
        replace(kind, times=MeasuredTimes(atoms=tuple(one / FASTER for one in kind.times.atoms))) for kind in published
    )
    alike = (RankKind(name="rank", times=FittedTimes(family="lognormal", mean=0.08, deviation=0.032), count=4),)
    return (
        Emulation(name="published", kinds=faster, rows=given_rows(faster)),
        Emulation(name="published, best rows", kinds=faster, rows=best_division(faster).rows),
        Emulation(name="four alike", kinds=alike, rows=given_rows(alike)),
    )


def predicted(crowd: Crowd, kept: Synchrony) -> float:
    """Seconds of a step without those of the model."""
    if kept.staleness is not None:
        return stale_steps(crowd, kept.staleness).seconds
    every = kept.average_every if kept.average_every and kept.own_loss else 1
    return expected_maximum(crowd, every) / every


def replayed(drawn: Array, kept: Synchrony) -> float:
    """The same of these draws: the mean over them, until the last rank has ended."""
    if kept.staleness is not None:
        return list(summed_at(drawn, kept.staleness))[-1] / len(drawn)
    every = kept.average_every if kept.average_every and kept.own_loss else 1
    sums = np.add.reduceat(drawn, np.arange(0, len(drawn), every), axis=0)
    return float(sums.max(axis=1).sum() / len(drawn))


def plan_for(ranks: int) -> Plan:
    """Replicas of a model that computes and sends next to nothing."""
    case = Case(
        model="examples.parity.models:words", shapes=parity_models.TEXT, replicas=ranks, optimizer="sgd",
        microbatches=(8,),
    )  # fmt: skip
    return plan_of(case)


def slept(plan: Plan, kept: Synchrony, drawn: Array) -> float:
    """What a rank does: steps, before each of which it sleeps; its seconds for all of them."""
    executor = load(plan, capture=capture_of(plan), synchrony=kept)
    batch = tracer.random_batch(plan.graph, plan.rows, SEED)
    for _ in range(2 * (kept.average_every or 1)):  # kernels, connections, the first sums
        executor.step(batch)
    executor.consolidate()
    began = time.perf_counter()
    for seconds in drawn[:, executor.rank]:
        time.sleep(float(seconds))
        executor.step(batch)
    return time.perf_counter() - began


def measured(case: Emulation, steps: int, synchronies: Sequence[Synchrony] = KEPT) -> list[MeasuredStep]:
    """The case under each synchrony."""
    plan, drawn = plan_for(case.ranks), case.drawn(steps)
    prepare(plan)
    with RankPool(case.ranks) as pool:

        def step(kept: Synchrony, seconds: Array) -> float:
            return max(pool.run(case.ranks, slept, plan, kept, seconds)) / len(seconds)

        def row(kept: Synchrony) -> MeasuredStep:
            own = step(kept, np.zeros_like(drawn))
            return MeasuredStep(
                case=case.name,
                training=_told(kept),
                predicted=predicted(case.crowd, kept) + own,
                replayed=replayed(drawn, kept) + own,
                measured=step(kept, drawn),
            )

        return [row(kept) for kept in synchronies]


def _told(kept: Synchrony) -> str:
    if kept.staleness is not None:
        return f"stale, {kept.staleness} late"
    if kept.average_every is None:
        return "synchronous"
    return f"local, every {kept.average_every}{'' if kept.own_loss else ', loss of all'}"


def draw(found: Sequence[MeasuredStep], path: Path) -> None:
    """Bars of predicted and measured steps, a picture for each case. Raises UsageError where matplotlib is missing."""
    require_extra("plot", "matplotlib")
    from matplotlib.figure import Figure

    cases = list(dict.fromkeys(one.case for one in found))
    figure = Figure(figsize=(4.5 * len(cases), 4.5), layout="constrained")
    for axes, case in zip(figure.subplots(1, len(cases), squeeze=False, sharey=True)[0], cases, strict=True):
        rows = [one for one in found if one.case == case]
        places = np.arange(len(rows))
        axes.bar(places - 0.27, [one.predicted for one in rows], 0.27, label="predicted")
        axes.bar(places, [one.replayed for one in rows], 0.27, label="from these draws")
        axes.bar(places + 0.27, [one.measured for one in rows], 0.27, label="measured")
        axes.set_xticks(places, [one.training for one in rows], rotation=40, ha="right")
        axes.set_title(case)
    figure.axes[0].set_ylabel("seconds of a step")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Predict, measure, print, draw where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each measurement; a multiple of 8")
    parser.add_argument("--plot", type=Path, help="file to draw into: .svg, .png or .pdf")
    options = parser.parse_args(argv)
    found: list[MeasuredStep] = []
    for case in emulations():
        taken = (f"{kind.name} {rows} rows" for kind, rows in zip(case.kinds, case.rows, strict=True))
        print(f"{case.name}: {', '.join(taken)}")
        print(f"{'ms of a step':34s}{'predicted':>14s}{'of these draws':>14s}{'measured':>14s}{'off':>10s}")
        rows = measured(case, options.steps)
        print(*rows, sep="\n", flush=True)
        found += rows
    if options.plot:
        draw(found, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
