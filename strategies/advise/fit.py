"""How much of a model fits on given machines: the largest batch, length or depth of which a legal plan is found.

In: sizes in steps (1 x step, 2 x step, ...), and for each a Problem. Out: a `Fit`. Sizes are doubled until one has no
plan, then the gap is halved. That finds the largest of all only where whatever is smaller fits too. Memory grows with
each of the three; but a size may be divided by fewer numbers than the next one, and then has fewer plans. So the
`BEYOND` next sizes are tried as well, and where one of them fits the search goes on from there; holes wider than that
are not seen, and `Fit.unproven` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from placer.errors import InfeasibleError
from placer.plans.plan import Plan
from placer.search.judge import solve_with
from placer.search.problem import Problem
from placer.search.progress_line import tell

# Sizes that are tried beyond the first that has no plan.
BEYOND = 3
# Evaluated plans of the first try: the first legal plan of many answers whether there is one.
FIRST_TRY = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The largest size with a plan (0: none), in steps of `step`.

    refused: the next size, which has none, as `binding` says; None where sizes ended before memory did. tried: every
    size asked about, and whether it fits.
    """

    size: int
    step: int
    plan: Plan | None = None
    refused: int | None = None
    binding: str = ""
    tried: tuple[tuple[int, bool], ...] = ()

    @property
    def unproven(self) -> str:
        """What is not known of larger sizes, in words."""
        if self.refused is None:
            return "larger ones were not asked for"
        last = max(size for size, _ in self.tried)
        if self.step == 1:
            return f"not all beyond {self.refused} were tried (up to {last})"
        return f"sizes that are no multiple of {self.step} were not tried, nor all beyond {self.refused} (up to {last})"


def fitted(problem: Problem, name: str = "auto") -> Plan | str:
    """A legal plan of the problem, or what binds.

    The first try ends after a few plans; only a search to its end says that there is none.
    """
    for budget in (FIRST_TRY, None):
        try:
            return solve_with(replace(problem, budget=budget), name).plan
        except InfeasibleError as error:
            binding = error.infeasible.binding
    return binding


def largest(attempt: Callable[[int], Plan | str], *, step: int, most: int, first: int = 1) -> Fit:
    """The largest multiple of `step` up to `most` of which `attempt` gives a plan, in the way said above.

    first: how many steps the smallest size has that can have one.
    """
    found: dict[int, Plan | str] = {}

    def fits(steps: int) -> bool:
        if steps not in found:
            tell(part=f"size {steps * step}")
            found[steps] = attempt(steps * step)
        return isinstance(found[steps], Plan)

    end = most // step
    good, bad = 0, _doubled(fits, first - 1, end)
    while True:
        good = max((n for n in found if fits(n) and n < bad), default=good)
        good, bad = _halved(fits, good, bad) if good else (good, bad)
        beyond = [steps for steps in range(bad + 1, min(bad + BEYOND, end) + 1) if fits(steps)]
        if not beyond:
            break
        good = beyond[-1]
        bad = _doubled(fits, good, end)
    best, refused = found.get(good), found.get(bad)
    return Fit(
        size=good * step,
        step=step,
        plan=best if isinstance(best, Plan) else None,
        refused=bad * step if isinstance(refused, str) else None,
        binding=refused if isinstance(refused, str) else "",
        tried=tuple((steps * step, isinstance(each, Plan)) for steps, each in sorted(found.items())),
    )


def _doubled(fits: Callable[[int], bool], good: int, end: int) -> int:
    """The first of growing distances from `good` that does not fit; beyond `end` where all do."""
    distance = 1
    while good + distance <= end:
        if not fits(good + distance):
            return good + distance
        distance *= 2
    return end + 1 if fits(end) else end


def _halved(fits: Callable[[int], bool], good: int, bad: int) -> tuple[int, int]:
    """Two sizes beside each other between `good` and `bad`, the smaller of which fits (or is none)."""
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good, bad
