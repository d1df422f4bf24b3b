"""Evaluator: the numbers of the judge for searches that ask about thousands of neighbouring plans a second.

In: Costs, then plan after plan of their graph, cluster and settings. Out of each a `Score`: exactly the seconds of
`estimate_with`, the verdict of `check(lowered=False)`, the bytes of `tightest` (tests/strategies/test_evaluator.py). No
formula is written here. A plan that differs from those before in a stage has that stage priced, and every other one is
what Costs remembers of it; a rule is asked where what it reads is new (`legality.known_rules`). A plan of an unsound
shape has no seconds. `placer bench evaluate` prints how many there are a second.
"""

from __future__ import annotations

from dataclasses import dataclass

from placer.costs.costs import Costs
from placer.costs.step_estimate import hosted, predicted_step, tightest
from placer.legality import Violation
from placer.legality.judge import Tightest
from placer.legality.known_rules import KnownRules
from placer.plans.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a plan takes. `broken`: rules of its shape; where there are any nothing else is known of it.

    excess: bytes beyond the memory of its positions' fullest devices and of hosts, added up. peak: bytes of the fullest
    device; devices: how many it uses.
    """

    broken: tuple[Violation, ...] = ()
    seconds: float | None = None
    held_by: Tightest = ()
    excess: int = 0
    peak: int = 0
    devices: int = 0

    @property
    def legal(self) -> bool:
        """Whether no rule is broken, communication apart."""
        return not self.broken and not self.excess


class Evaluator:
    """Scores of plans of one graph, cluster and settings."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._rules = KnownRules(costs)

    def score(self, plan: Plan) -> Score:
        """The score of `plan`, whose graph, cluster and settings the costs are of."""
        broken = self._rules.broken(plan)
        if broken:
            return Score(broken=broken)
        held_by, devices = tightest(self.costs, plan), self.costs.cluster.devices
        spare = [devices[device].memory_bytes - held.total for device, held in held_by]
        return Score(
            seconds=predicted_step(self.costs, plan),
            held_by=held_by,
            excess=-sum(size for size in spare if size < 0) + self._hosts_excess(plan),
            peak=max([held.total for _, held in held_by]),
            devices=sum([len(plan.stages[numbers[0]].devices) for numbers in self.costs.known.positions(plan)]),
        )

    def violations(self, plan: Plan) -> tuple[Violation, ...]:
        """What `check(plan, costs, lowered=False)` finds, in its words."""
        score = self.score(plan)
        return score.broken or (self._rules.over_full(plan, score.held_by) if score.excess else ())

    def _hosts_excess(self, plan: Plan) -> int:
        """Bytes that hosts lack, of those whose memory is known."""
        if self.costs.priced.offload == "none":
            return 0
        nodes, held_by = plan.cluster.nodes, hosted(self.costs, plan).items()
        return sum(max(0, size - nodes[node].memory_bytes) for node, size in held_by if nodes[node].memory_bytes)
