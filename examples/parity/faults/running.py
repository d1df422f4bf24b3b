"""outcomes(...): faults one after another on ranks, each with what it changed and whether `verify` found it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache

from examples.parity.cases import capture_of, prepare, run_case
from examples.parity.faults import batches as divided
from examples.parity.faults import collectives, gradients, local_ops, optimizers, passes, randomness
from examples.parity.faults.fault import Fault
from examples.parity.faults.plain import Trained, batches, distance, plain_loop
from examples.parity.faults.subjects import subject
from placer.errors import PlacerError
from placer.plans.plan import Plan
from placer.runtime import VerifyReport, load
from placer.runtime.distributed.rank_pool import RankPool

#: Weights of 16 bits show what their masters lost after some steps.
STEPS = {"bfloat16": 12}
FAULTS: tuple[Fault, ...] = (
    *collectives.FAULTS, *local_ops.FAULTS, *gradients.FAULTS, *divided.FAULTS, *optimizers.FAULTS, *passes.FAULTS,
    *randomness.FAULTS,
)  # fmt: skip
CASE_SECONDS = 1200.0
# Sums in another order differ by less, in float64 and in what is narrower.
_ROUNDING = {"float64": 1e-8, "float32": 1e-4, "bfloat16": 3e-2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A fault, or a subject without one: how far its result is from the plain loop's, what `verify` says, and where."""

    name: str
    subject: str
    planted: bool
    error: float
    report: VerifyReport | None
    failed: str
    seconds: float

    @property
    def changes(self) -> bool:
        """Whether the result is another by more than rounding."""
        return not self.error <= _ROUNDING[subject(self.subject).settings.precision]

    @property
    def caught(self) -> bool:
        """Whether `verify` says so, or ended."""
        return self.report is None or not self.report.passed

    @property
    def right(self) -> bool:
        """Whether a planted fault changes the result and is caught, and no other does or is."""
        return self.changes == self.planted and self.caught == self.planted

    @property
    def named(self) -> str:
        """What `verify` named."""
        if self.report is None:
            return self.failed
        if self.report.passed:
            return "equal"
        worst = self.report.worst
        return f"{worst.quantity} of step {worst.step} {worst.where}".strip()


def steps_of(name: str) -> int:
    """Steps that a subject is run for."""
    return STEPS.get(name, 2)


def run(name: str, number: int | None) -> tuple[Trained, VerifyReport]:
    """What every rank of the subject `name` calls, with fault `number` of FAULTS, or None."""
    plan = subject(name)
    with nullcontext() if number is None else FAULTS[number].plant():
        return _trained(plan, steps_of(name)), run_case(plan, steps_of(name))


def _trained(plan: Plan, steps: int) -> Trained:
    executor = load(plan, capture=capture_of(plan))
    executor.keeps_gradients = True
    losses, gradients, states = [], [], []
    given = batches(plan, steps)
    for batch in given:
        losses.append(executor.step(batch))
        gradients.append(executor.last_gradients)
        states.append(executor.full_state_dict(rank0_only=True))
    return Trained(
        losses=tuple(losses), gradients=tuple(gradients), states=tuple(states), evaluated=executor.evaluate(given[-1])
    )


def outcomes(chosen: Sequence[Fault], timeout: float = CASE_SECONDS) -> Iterator[Outcome]:
    """Of each subject without a fault, then of each fault."""
    names = list(dict.fromkeys(fault.subject for fault in chosen))
    for name in names:
        prepare(subject(name))
    with RankPool(max(subject(name).world_size for name in names)) as pool:
        for name in names:
            yield _outcome(pool, name, None, timeout)
        for fault in chosen:
            yield _outcome(pool, fault.subject, FAULTS.index(fault), timeout)


@cache
def _expected(name: str) -> Trained:
    return plain_loop(subject(name), steps_of(name))


def _outcome(pool: RankPool, name: str, number: int | None, timeout: float) -> Outcome:
    began, said = time.perf_counter(), "no fault" if number is None else FAULTS[number].name
    found: VerifyReport | None = None
    error, failed = float("inf"), ""
    try:
        trained, found = pool.run(subject(name).world_size, run, name, number, timeout=timeout)[0]
        error = distance(trained, _expected(name))
    except PlacerError as raised:
        failed = str(raised).strip().splitlines()[-1]
    return Outcome(
        name=said, subject=name, planted=number is not None, error=error, report=found, failed=failed,
        seconds=time.perf_counter() - began,
    )  # fmt: skip
