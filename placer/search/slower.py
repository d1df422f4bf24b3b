"""Why one plan is slower than another: the item of the ledger that grew most."""

from __future__ import annotations

from placer.search.judge import Verdict

WORDS = {
    "forward": "compute (forward)",
    "backward": "compute (backward)",
    "recompute": "recompute",
    "communication": "exposed messages between stages",
    "reduction": "exposed reduction",
    "bubble": "bubble",
    "optimizer": "optimizer",
    "data": "waiting for data",
    "other": "other",
}


def why_slower(loser: Verdict, winner: Verdict) -> str:
    """The dominant reason in words, with what it costs."""
    if loser.plan.stages == winner.plan.stages and loser.seconds == winner.seconds:
        return "the same estimate"
    grown = {name: getattr(loser.ledger.seconds, name) - getattr(winner.ledger.seconds, name) for name in WORDS}
    name = max(grown, key=lambda item: (grown[item], item))
    slower = loser.seconds - winner.seconds
    if slower <= 0 or grown[name] <= 0:
        return "the same estimate"
    return f"{WORDS[name]}: {1e3 * grown[name]:.3g} ms more, {slower / winner.seconds:.1%} slower in all"
