"""Waiting told apart from transfer: a rank that waits for a message, or for a collective, waits first for the others to
come to it. That part is bubble; what is left is communication.

    bubble of a message      = min(wait, time the peer posted it - time the wait began), not below 0
    bubble of a collective   = min(wait, time its last rank came - time this rank came), not below 0

Times are wall-clock times of the ranks' machines, which agree within the error of their synchronisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from placer.plans.ledger import Seconds

# Source rank, destination rank, tag; or the ranks of a collective and how many they did before it in the step.
MessageKey = tuple[int, int, int]
CollectiveKey = tuple[tuple[int, ...], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A rank waited from `began` to `ended` (seconds since the epoch)."""

    began: float
    ended: float

    def before(self, moment: float) -> float:
        """Seconds of it that lie before `moment`."""
        return min(self.ended, max(self.began, moment)) - self.began


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """The communication of one rank in one step: when it posted its sends, and its waits."""

    sent: tuple[tuple[MessageKey, float], ...] = ()
    received: tuple[tuple[MessageKey, Wait], ...] = ()
    collectives: tuple[tuple[CollectiveKey, Wait], ...] = ()


def apart(seconds: Seconds, own: Events, everyone: Sequence[Events]) -> Seconds:
    """`seconds` of the rank of `own`, with the bubble taken out of communication and reduction."""
    posted = {key: moment for events in everyone for key, moment in events.sent}
    last: dict[CollectiveKey, float] = {}
    for events in everyone:
        for key, wait in events.collectives:
            last[key] = max(last.get(key, wait.began), wait.began)
    of_messages = sum(wait.before(posted.get(key, wait.began)) for key, wait in own.received)
    of_collectives = sum(wait.before(last[key]) for key, wait in own.collectives)
    messages = min(of_messages, seconds.communication)
    collectives = min(of_collectives, seconds.reduction)
    return replace(
        seconds,
        communication=seconds.communication - messages,
        reduction=seconds.reduction - collectives,
        bubble=seconds.bubble + messages + collectives,
    )
