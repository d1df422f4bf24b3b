"""Plans on this machine after `placer calibrate`: seconds of a step as predicted beside those measured.

    python -m examples.measured.calibrated                    every model under every layout
    python -m examples.measured.calibrated --only "gpt "      cases whose name holds this; again for more
    python -m examples.measured.calibrated --rounds 5         so many turns (three)

Four small models of the transformers library, each on two processes (replicas, sharded replicas, a pipeline, cut ops)
and on four (replicas, two pipelines); what a layout leaves open is the search's choice. The machine is measured as two
devices and as four (which renews the calibration that is kept), then every plan runs under torchrun in turns, as
`placer compare --measure` runs them. `over predicted` is measured over predicted, with the interval of the turns; a
calibration is one moment's, so that another load since then shows in all of them. A layout that no plan has is named.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from examples.measured.calibrated import models
from placer import api
from placer.cluster.calibrate import calibrate
from placer.cluster.cluster import Cluster
from placer.errors import InfeasibleError, PlacerError, UsageError
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.report.printing import show
from placer.report.strategies.measured import MeasuredPlan, measured_view
from placer.runtime.bench import measured_in_turns

STEPS = 12
THIS = "examples.measured.calibrated"


LAYOUTS = (
    (2, ("data=2", "shard=none")),
    (2, ("data=2", "shard=parameters")),
    (2, ("pipeline=2",)),
    (2, ("tensor=2",)),
    (4, ("data=4", "shard=none")),
    (4, ("pipeline=2", "data=2", "shard=none")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model under pins on so many processes."""

    model: str
    processes: int
    pins: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.model} {self.processes} {' '.join(self.pins)}"

    def plan(self, machine: Cluster) -> Plan:
        """The fastest plan of the model that has the pins. Raises InfeasibleError where there is none."""
        # Pieces of a batch are normalised each by itself, as data-parallel training does elsewhere.
        settings = RunSettings(batch_norm="microbatch")
        return api.plan(
            f"{models.__name__}:{self.model}",
            machine,
            batch=models.ON_PROCESSES[self.model],
            settings=settings,
            pins=self.pins,
        )


def chosen_cases(words: Sequence[str]) -> tuple[Case, ...]:
    """Those whose name holds one of the words, all where there are none. Raises UsageError where none does."""
    every = tuple(
        Case(model=model, processes=count, pins=pins) for model in models.ON_PROCESSES for count, pins in LAYOUTS
    )
    found = tuple(case for case in every if not words or any(word in str(case) for word in words))
    if not found:
        raise UsageError(f"--only is {' '.join(words)}; cases are {', '.join(map(str, every))}")
    return found


def planned(cases: Sequence[Case]) -> dict[str, Plan]:
    """Plans by the name of their case, on this machine as it is measured now; of a case without one the reason is
    printed."""
    machines, plans = {count: _machine(count) for count in dict.fromkeys(case.processes for case in cases)}, {}
    for case in cases:
        try:
            plans[str(case)] = case.plan(machines[case.processes])
        except InfeasibleError as error:
            print(f"{case}: {str(error).splitlines()[0]}")
    return plans


def _machine(processes: int) -> Cluster:
    found = calibrate(processes, progress=lambda line: print(f"  {line}", file=sys.stderr))
    print("\n".join(found.notes))
    return found


def summary(found: Sequence[MeasuredPlan]) -> Iterator[str]:
    """The mean error, and of each model how the plan that is predicted fastest does beside the fastest measured."""
    yield f"{len(found)} plans: mean absolute error {fmean(abs(_error(one)) for one in found):.1%} of what was measured"
    for model in dict.fromkeys(one.case for one in found):
        own = [one for one in found if one.case == model]
        chosen, fastest = min(own, key=lambda one: one.predicted_seconds), min(own, key=_measured)
        behind = _measured(chosen) / _measured(fastest) - 1
        beside = "is the fastest measured" if chosen is fastest else f"takes {behind:.1%} longer than {_name(fastest)}"
        yield f"{model}: {_name(chosen)}, predicted fastest, {beside}"


def _measured(one: MeasuredPlan) -> float:
    return median(one.measured_seconds)


def _error(one: MeasuredPlan) -> float:
    return one.predicted_seconds / _measured(one) - 1


def _name(one: MeasuredPlan) -> str:
    return " ".join(one.strategies)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the machine, plan, run in turns, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="cases whose name holds this; repeat for more")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every plan")
    options = parser.parse_args(argv)
    try:
        if options.rounds < 1:
            raise UsageError(f"--rounds is {options.rounds}; give at least 1")
        plans = planned(chosen_cases(options.only))
        turns = measured_in_turns(plans, rounds=options.rounds, steps=STEPS, told=_told) if plans else {}
    except PlacerError as error:
        print(f"{THIS}: {error}", file=sys.stderr)
        return error.exit_code
    found = [
        MeasuredPlan(
            case=name.split()[0], strategies=tuple(name.split()[1:]), measured_seconds=turns[name],
            predicted_seconds=plan.ledger.step_seconds,
        )
        for name, plan in plans.items()
        if plan.ledger is not None
    ]  # fmt: skip
    show(measured_view(found))
    print("\n".join(summary(found)) if found else "no plans")
    return 0


def _told(turn: int, name: str, seconds: float) -> None:
    print(f"  turn {turn + 1}, {name}: {1e3 * seconds:.0f} ms", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
