"""What a finished plan is worth: seconds by the one estimate, legality by the one check, as a reward.

legal          log(reference / seconds), within [-2, 3]
illegal        -2.5 - log(bytes / room) / 2 of the fullest device, at least -4: worse than any legal one
reference      the fastest legal greedy plan (`greedy`); the fastest of them where none is legal
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from placer.costs.costs import Costs
from placer.plans.plan import Plan
from placer.search.judge import Verdict, judge
from placer.strategies.policy.game import Game
from placer.strategies.policy.greedy import greedy_plans

WORST, BEST = -2.0, 3.0
ILLEGAL, HOPELESS = -2.5, -4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A plan's verdict (not on communication), and bytes over room of its fullest device."""

    verdict: Verdict
    fill: float

    @property
    def legal(self) -> bool:
        """Whether it may run, as far as was asked."""
        return self.verdict.legal

    @property
    def order(self) -> tuple[bool, float, float]:
        """What outcomes are compared by: legal ones first, then the faster; others by how much too full they are."""
        return not self.legal, self.verdict.seconds if self.legal else self.fill, self.verdict.seconds

    def reward(self, reference: float) -> float:
        """Its reward beside a plan of `reference` seconds."""
        if not self.legal:
            return max(HOPELESS, ILLEGAL - max(0.0, log(self.fill)) / 2)
        return min(BEST, max(WORST, log(reference / self.verdict.seconds)))


def outcome(costs: Costs, plan: Plan) -> Outcome:
    """The outcome of a plan of sound structure."""
    verdict = judge(costs, plan, lowered=False)
    chips = plan.cluster.devices
    fill = max(
        held.total / min(chips[device].memory_bytes for device in mesh.devices)
        for mesh, held in zip(plan.meshes, verdict.ledger.memory, strict=True)
    )
    return Outcome(verdict=verdict, fill=fill)


def reference_seconds(game: Game) -> float:
    """Seconds of the best greedy plan."""
    found = [outcome(game.problem.costs, plan) for plan in greedy_plans(game)]
    return min(found, key=lambda each: each.order).verdict.seconds
