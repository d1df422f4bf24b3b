"""Collectives: collectives of a step being played.

One runs when all of its (simulated) ranks are ready, one after another on each rank. A rank is ready when it comes to
it, or, for one that overlaps, when its share of the computation before it is done: reductions behind a computation
divide it by their bytes, or what of it can run beside them (`Device.hidden`). FSDP2's are part of the seconds of their
computation, and only shown beside it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from placer.program.instructions import Collective, Compute, Instruction
from placer.simulator.durations import Durations
from placer.simulator.state import Board, Moment


@dataclass(slots=True)
class PendingCollective:
    """A collective: when each of its ranks was ready, and its end once all were."""

    ready: dict[int, Moment] = field(default_factory=dict)
    end: Moment | None = None


class Collectives:
    """The collectives of a step."""

    def __init__(self, board: Board, durations: Durations) -> None:
        self._board = board
        self._durations = durations
        self._keys = {rank: _keys(program.instructions) for rank, program in board.programs.items()}
        self._shares = {rank: _shares(program.instructions) for rank, program in board.programs.items()}
        self._calls: dict[Hashable, PendingCollective] = {}
        self._pending: dict[int, list[PendingCollective]] = {rank: [] for rank in board.programs}

    def join(self, rank: int, entry: Collective) -> bool:
        """Take part in the collective `rank` is at; false where it has to wait for that."""
        if entry.engine == "fsdp":
            self._show_inside(rank, entry)
            return True
        if not entry.overlaps and not self.settle(rank):
            return False
        call = self._calls.setdefault(self._keys[rank][self._board.at[rank]], PendingCollective())
        if rank not in call.ready:
            call.ready[rank] = self._ready(rank, entry)
            self._run_if_complete(entry, call)
        if entry.overlaps:
            self._pending[rank].append(call)
            return True
        return self._passed(rank, call)

    def settle(self, rank: int) -> bool:
        """Wait for the overlapping collectives of a rank; false where it has to wait for one to begin."""
        while self._pending[rank]:
            if not self._passed(rank, self._pending[rank][0]):
                return False
            self._pending[rank].pop(0)
        return True

    def _passed(self, rank: int, call: PendingCollective) -> bool:
        if call.end is None:
            self._board.park(rank, id(call))
            return False
        self._board.clock[rank] = max(self._board.clock[rank], call.end)
        return True

    def _ready(self, rank: int, entry: Collective) -> Moment:
        clock = self._board.clock[rank]
        if not entry.overlaps:
            return clock
        start, end = self._board.computing[rank]
        left = 1 - self._shares[rank][self._board.at[rank]]
        return end - self._durations.hidden(entry) * left * (end - start), clock[1]

    def _run_if_complete(self, entry: Collective, call: PendingCollective) -> None:
        board = self._board
        members = [rank for rank in entry.ranks if rank in board.programs]
        if len(call.ready) < len(members):
            return
        begin = max([*call.ready.values(), *(board.free((rank, "collective")) for rank in members)])
        seconds = self._durations.collective(entry)
        for rank in members:
            call.end = board.draw(rank, "collective", _name(entry), begin, seconds)
            board.occupy([(rank, "collective")], call.end)
        assert call.end is not None
        board.wake(id(call), call.end)

    def _show_inside(self, rank: int, entry: Collective) -> None:
        """A slice beside the computation that issues it, cut where that ends."""
        start, end = self._board.computing[rank]
        begin = min(max(self._board.free((rank, "collective"))[0], start), end)
        seconds = min(self._durations.collective(entry), end - begin)
        shown = self._board.draw(rank, "collective", _name(entry), (begin, self._board.clock[rank][1]), seconds)
        self._board.occupy([(rank, "collective")], shown)


def _keys(instructions: tuple[Instruction, ...]) -> dict[int, Hashable]:
    """What tells the collectives of a rank apart: the n-th equal one of a rank is the n-th of every other."""
    seen: dict[Collective, int] = {}
    keys: dict[int, Hashable] = {}
    for index, entry in enumerate(instructions):
        if isinstance(entry, Collective) and entry.engine != "fsdp":
            seen[entry] = seen.get(entry, 0) + 1
            keys[index] = (entry, seen[entry])
    return keys


def _shares(instructions: tuple[Instruction, ...]) -> dict[int, float]:
    """For each overlapping reduction the share of the computation before it after which it can start."""
    shares: dict[int, float] = {}
    for run in _overlapping_runs(instructions):
        total, done = sum(size for _, size in run), 0
        for index, size in run:
            done += size
            shares[index] = done / total if total else 1.0
    return shares


def _overlapping_runs(instructions: tuple[Instruction, ...]) -> Iterator[list[tuple[int, int]]]:
    """Indices and bytes of the overlapping reductions behind each computation."""
    run: list[tuple[int, int]] = []
    for index, entry in enumerate(instructions):
        if isinstance(entry, Compute):
            yield run
            run = []
        elif isinstance(entry, Collective) and entry.overlaps and entry.engine != "fsdp":
            run.append((index, entry.bytes))
    yield run


def _name(entry: Collective) -> str:
    return f"{entry.kind} {entry.purpose} {entry.unit}".rstrip()
