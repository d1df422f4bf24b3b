"""What each machine of a price list would do: one search for each, all of the same captured model and batch.

In: a Problem (its cluster is the offers' turn by turn) and offers. Out: an `Answer` for each, with what `solve_with`
finds for that cluster alone. With a deadline, offers that even at the peak rate of their devices would take longer are
not searched: the model's FLOPs are done on no plan faster than at that rate.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from placer.cluster.prices import Offer
from placer.errors import InfeasibleError, UsageError
from placer.graph import Graph
from placer.search.judge import solve_with
from placer.search.problem import Problem, strategy
from placer.search.progress_line import progress_line, tell
from placer.strategies.background import from_both_ends

HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much is to be trained, in tokens (rows where the model has none), and within how many seconds."""

    units: float
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one offer does.

    step_seconds: of the best plan; None where there is none, and `reason` says what binds. bound: the proven least.
    late: it was not searched, as it cannot meet the deadline; `reason` says what it would take at best.
    """

    offer: Offer
    units_per_step: int
    step_seconds: float | None = None
    bound: float | None = None
    peak_memory: int = 0
    plan: str = ""
    late: bool = False
    reason: str = ""

    @property
    def units_per_second(self) -> float:
        """Tokens (or rows) a second; 0 where nothing fits."""
        return self.units_per_step / self.step_seconds if self.step_seconds else 0.0

    @property
    def dollars_per_million(self) -> float | None:
        """Dollars for a million tokens (or rows)."""
        return 1e6 * self.offer.dollars_per_hour / (HOUR * self.units_per_second) if self.step_seconds else None

    def seconds(self, units: float) -> float | None:
        """Seconds of the whole steps that so many tokens take."""
        return None if self.step_seconds is None else ceil(units / self.units_per_step) * self.step_seconds

    def dollars(self, units: float) -> float | None:
        """Dollars that so many tokens take."""
        seconds = self.seconds(units)
        return None if seconds is None else seconds / HOUR * self.offer.dollars_per_hour


def token_shape(graph: Graph) -> tuple[int, ...]:
    """The shape of the first input that holds tokens (whole numbers, two dims or more); empty where none does."""
    for given in graph.inputs:
        shape = given.tensor.shape_at(graph.rows)
        if given.tensor.dtype.startswith("int") and given.tensor.batched and len(shape) > 1:
            return shape
    return ()


def units_per_step(graph: Graph) -> int:
    """Tokens of a step, or rows where the model has no tokens."""
    shape = token_shape(graph)
    return prod(shape) if shape else graph.rows


def advised(
    problem: Problem, offers: Sequence[Offer], name: str = "auto", *, work: Work | None = None,
    seconds: float | None = None,
) -> tuple[Answer, ...]:  # fmt: skip
    """An answer for each offer, in their order; two processes share the searches where there are two cores.

    name: the strategy. seconds: of each search, at most. Raises UsageError for an unknown strategy.
    """
    strategy(name)
    units = units_per_step(problem.graph)

    def answer(offer: Offer) -> Answer:
        tell(part=f"{offer.count} x {offer.machine} of {len(offers)} offers")
        blank = Answer(offer=offer, units_per_step=units)
        least = _least_seconds(problem, offer, blank, work)
        if least is not None:
            reason = f"even at the peak rate of its devices it takes {least / HOUR:.3g} h"
            return replace(blank, late=True, reason=reason)
        return _searched(problem, blank, name, seconds)

    # Those of like nodes beside each other, so that one process has the layouts that they share.
    nodes = [replace(offer.cluster.groups[0][0], name="", nic=None) for offer in offers]
    order = sorted(range(len(offers)), key=lambda number: nodes.index(nodes[number]))
    with progress_line():
        found = from_both_ends([offers[number] for number in order], answer, apart=True, over=lambda: False)
    return tuple(each for _, each in sorted(zip(order, found, strict=True), key=lambda pair: pair[0]))


def _least_seconds(problem: Problem, offer: Offer, blank: Answer, work: Work | None) -> float | None:
    """Seconds of the work at the devices' peak rate where that is beyond the deadline."""
    if work is None or work.deadline is None:
        return None
    if offer.cluster.measured:  # where a device may do more than its nominal rate
        return None
    numerics, devices = problem.costs.numerics, Counter(offer.cluster.devices)
    rates = [count * numerics.peak(problem.graph, device) for device, count in devices.items()]
    flops = problem.graph.forward_flops + problem.graph.backward_flops
    least = ceil(work.units / blank.units_per_step) * flops / sum(rates)
    return least if least > work.deadline else None


def _searched(problem: Problem, blank: Answer, name: str, seconds: float | None) -> Answer:
    """What a search of its own finds on the offer's machines."""
    until = None if seconds is None else time.perf_counter() + seconds
    try:
        found = solve_with(replace(problem, cluster=blank.offer.cluster, until=until), name).plan
    except InfeasibleError as error:
        return replace(blank, reason=error.infeasible.binding)
    except UsageError as error:  # pins that these machines cannot honour
        return replace(blank, reason=str(error))
    assert found.ledger is not None
    return replace(
        blank, step_seconds=found.ledger.step_seconds, bound=found.bound, peak_memory=found.ledger.peak_memory,
        plan=_in_words(found.positions, [stage.replicas for stage in found.stages], len(found.microbatches)),
    )  # fmt: skip


def _in_words(positions: int, replicas: Sequence[int], microbatches: int) -> str:
    """`4 positions x 8 replicas, 16 microbatches`."""
    data = f"{replicas[0]}" if len(set(replicas)) == 1 else f"{min(replicas)} to {max(replicas)}"
    return f"pipeline {positions}, data {data}, microbatches {microbatches}"


def front(answers: Sequence[Answer]) -> tuple[Answer, ...]:
    """The answers than which no other is both as cheap and as fast, and better in one; the fastest first."""
    able = [answer for answer in answers if answer.dollars_per_million is not None]
    best: list[Answer] = []
    for answer in sorted(able, key=lambda one: (-one.units_per_second, one.dollars_per_million)):
        # Of two that take as long and cost as much both stay.
        if not best or _cost(answer) < _cost(best[-1]) or _same(answer, best[-1]):
            best.append(answer)
    return tuple(best)


def cheapest(answers: Sequence[Answer], work: Work) -> Answer | None:
    """The answer of the fewest dollars within the deadline, the faster of two; None where none is."""
    able = [
        answer
        for answer in answers
        if (taken := answer.seconds(work.units)) is not None and (work.deadline is None or taken <= work.deadline)
    ]
    return min(able, key=lambda one: (one.dollars(work.units), one.seconds(work.units)), default=None)


def _cost(answer: Answer) -> float:
    assert answer.dollars_per_million is not None
    return answer.dollars_per_million


def _same(one: Answer, other: Answer) -> bool:
    return (one.units_per_second, _cost(one)) == (other.units_per_second, _cost(other))
