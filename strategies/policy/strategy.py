"""`policy`: the shipped scorer plays plans for the problem at hand and is bent towards the best of them.

The plan of its best options is the first; what it learns from one problem is forgotten after it. There is no bound.
Where nothing fits after half of the plans, the rest are played with layouts that hold less on a device.
"""

from __future__ import annotations

from collections.abc import Sequence

from placer.errors import Infeasible
from placer.search.judge import judge
from placer.search.problem import Ended, Problem, Solution
from placer.strategies.policy.decoding import Limits, Played, Player, ranked, search
from placer.strategies.policy.game import Game
from placer.strategies.policy.network import load_scorer, one_thread
from placer.strategies.space.pin_conflicts import no_layout, require_pins

# Plans where no budget is given: some seconds.
EVALUATIONS = 512
# Plans that are lowered to see whether their communication holds, the best first.
LOWERED = 8


class Policy:
    """Learned on small problems, tuned to each."""

    name = "policy"
    exact = False

    def solve(self, problem: Problem) -> Solution | Infeasible:
        """The best plan played; what binds where none is legal. Raises UsageError for contradicting pins."""
        require_pins(problem)
        budget = EVALUATIONS if problem.budget is None else problem.budget
        with one_thread():
            found, ended = _search(problem, budget, roomy=False)
            if not _legal(found) and len(found) < budget and not problem.spent:
                more, ended = _search(problem, budget - len(found), roomy=True)
                found = [*found, *more]
        return _solution(problem, found, ended)


def _search(problem: Problem, budget: int, *, roomy: bool) -> tuple[list[Played], Ended]:
    """What was played, and what ended it; raises KeyboardInterrupt where that came before a legal plan."""
    game = Game(problem, roomy=roomy)
    if game.start is None:
        return [], ""
    player = Player(game, load_scorer())
    limits = Limits(evaluations=budget, patience=budget if roomy else -(-budget // 2), over=lambda: problem.spent)
    try:
        found = search(player, limits, seed=problem.seed)
    except KeyboardInterrupt:
        found = list(player.played.values())
        if not _legal(found):
            raise
        return found, "interrupt"
    if problem.budget is not None and len(found) >= budget:
        return found, "evaluations"
    return found, "seconds" if problem.spent else ""


def _legal(found: Sequence[Played]) -> list[Played]:
    return [played for played in ranked(found) if played.outcome.legal]


def _solution(problem: Problem, found: Sequence[Played], ended: Ended) -> Solution | Infeasible:
    """The best of those that also agree on communication."""
    for played in _legal(found)[:LOWERED]:
        verdict = judge(problem.costs, played.outcome.verdict.plan)
        if verdict.legal:
            return Solution(plan=verdict.plan, evaluations=len(found), ended=ended)
    if not found:
        return _nothing(problem)
    nearest = ranked(found)[0].outcome.verdict
    return Infeasible(
        binding=f"none of {len(found)} plans fits; of the nearest, {nearest.complaint}",
        advice="Use more devices, devices with more memory, or fewer rows; or try the strategy auto",
    )


def _nothing(problem: Problem) -> Infeasible:
    """Why there is no plan to play."""
    if problem.graph.loss.reduction == "none":
        return Infeasible(
            binding=f"the model {problem.graph.name} returns no loss", advice="Give labels in the batch, or a loss_fn"
        )
    return no_layout(problem)
