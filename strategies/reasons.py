"""Why one plan is slower than another: the item of the ledger that grew most."""

from __future__ import annotations

from dataclasses import fields

from placer.ledger import Seconds
from placer.strategies.judging import Judged

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


def why_slower(loser: Judged, winner: Judged) -> str:
    """The dominant reason in words, with what it costs."""
    if loser.plan.stages == winner.plan.stages and loser.seconds == winner.seconds:
        return "the same estimate"
    grown = {name: getattr(loser.ledger.seconds, name) - getattr(winner.ledger.seconds, name) for name in _items()}
    name = max(grown, key=lambda item: (grown[item], item))
    slower = loser.seconds - winner.seconds
    if slower <= 0 or grown[name] <= 0:
        return "the same estimate"
    return f"{WORDS[name]}: {1e3 * grown[name]:.3g} ms more, {slower / winner.seconds:.1%} slower in all"


def _items() -> tuple[str, ...]:
    return tuple(field.name for field in fields(Seconds))
