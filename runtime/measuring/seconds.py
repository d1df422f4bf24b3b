"""Measured seconds of a step on one rank, by the categories of the Ledger, and waiting told apart from transfer.

The interpreter's instructions are wrapped in `clock.during(category)`; nested measurements are taken out of the outer
one, so that the categories of a step and `other` add up to its wall time.

A rank that waits for a message, or for a collective, waits first for the others to come to it. That part is bubble;
what is left is communication.

    bubble of a message      = min(wait, time the peer posted it - time the wait began), not below 0
    bubble of a collective   = min(wait, time its last rank came - time this rank came), not below 0

Times of waits are wall-clock times of the ranks' machines, which agree within the error of their synchronisation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import torch

from placer.plans.ledger import Seconds
from placer.runtime.observer import Category

# Source rank, destination rank, tag; or the ranks of a collective and how many they did before it in the step.
MessageKey = tuple[int, int, int]
CollectiveKey = tuple[tuple[int, ...], int]


def synchronizer(device: torch.device) -> Callable[[], None]:
    """What makes the clock wait for the device; does nothing for CPUs, whose ops return when they are done."""
    if device.type != "cuda":
        return lambda: None
    return lambda: torch.cuda.synchronize(device)


class Clock:
    """Seconds of one step by category. `synchronize` runs at each boundary (a GPU's kernels outlast their launch)."""

    def __init__(self, synchronize: Callable[[], None] = lambda: None) -> None:
        self._synchronize = synchronize
        self._spent: dict[Category, float] = {}
        self._inner = [0.0]
        self._issued: tuple[int, float] | None = None
        self._began = time.perf_counter()

    def start(self) -> None:
        """Begin a step: forget the last one."""
        self._synchronize()
        self._spent, self._inner, self._issued = {}, [0.0], None
        self._began = time.perf_counter()

    @contextmanager
    def during(self, category: Category) -> Iterator[None]:
        """Count the time of the body under `category`, without what nested calls count themselves."""
        self._synchronize()
        began = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            self._synchronize()
            ended = time.perf_counter()
            whole = ended - began
            depth = len(self._inner)
            own = whole - self._inner.pop()
            self._inner[-1] += whole
            waited = min(own, self._waited(depth, ended))
            self._spend(category, own - waited)
            self._spend("reduction", waited)

    def reduces(self) -> None:
        """A reduction that runs beside the innermost body was issued: what follows the last one there waits for it."""
        self._issued = len(self._inner), time.perf_counter()

    def _waited(self, depth: int, ended: float) -> float:
        """Seconds from the last reduction issued in a body so deep to the end of that body."""
        if self._issued is None or self._issued[0] != depth:
            return 0.0
        began, self._issued = self._issued[1], None
        return ended - began

    def _spend(self, category: Category, seconds: float) -> None:
        self._spent[category] = self._spent.get(category, 0.0) + seconds

    def stop(self) -> Seconds:
        """The step's seconds; what no category claimed is `other`."""
        self._synchronize()
        whole = time.perf_counter() - self._began
        return Seconds(**self._spent, other=max(0.0, whole - sum(self._spent.values())))


def median_seconds(steps: Iterable[Seconds]) -> Seconds:
    """Per category the mean of the middle half of the steps, so that one disturbed step does not show."""
    measured = tuple(steps)
    return Seconds(**{field.name: _middle([getattr(s, field.name) for s in measured]) for field in fields(Seconds)})


def _middle(values: list[float]) -> float:
    if not values:
        return 0.0
    ordered = sorted(values)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


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
