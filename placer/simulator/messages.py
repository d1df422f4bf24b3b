"""Wires: messages of a step being played. One moves when both ends are posted and the ways it takes are free.

A message occupies its sender's port, its receiver's port and, between nodes, the sender's way out and the receiver's
way in, for as long as its bytes take; its first byte takes the latency, in which the way out serves the next message.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from placer.cluster.cluster import Cluster
from placer.program.instructions import Compute, Message, Program
from placer.simulator.durations import Durations
from placer.simulator.state import Board, Moment

# A stage's pass over a microbatch, by which messages are read.
Pass = tuple[int, str, int]
End = tuple[int, int, int]
# The kind of message that an action reads; W reads none.
READ = {"F": "activation", "B": "gradient", "I": "gradient"}


@dataclass(slots=True)
class Wires:
    """Messages by sending rank, receiving rank and tag."""

    board: Board
    durations: Durations
    cluster: Cluster
    posted: dict[End, Moment]
    arrived: dict[End, Moment]
    reads: dict[int, dict[Pass, list[End]]]

    @staticmethod
    def of(board: Board, durations: Durations, cluster: Cluster) -> Wires:
        """Nothing posted yet."""
        reads = {rank: _reads(program) for rank, program in board.programs.items()}
        return Wires(board=board, durations=durations, cluster=cluster, posted={}, arrived={}, reads=reads)

    def read_by(self, rank: int, entry: Compute) -> list[End]:
        """The messages a computation reads."""
        action = entry.action
        return self.reads[rank].get((action.stage, READ.get(action.kind, ""), action.microbatch), [])

    def post(self, rank: int, entry: Message) -> None:
        """One end of a message; the second one lets it move."""
        sender, receiver = (rank, entry.peer) if entry.direction == "send" else (entry.peer, rank)
        key = (sender, receiver, entry.tag)
        other = self.posted.pop(key, None)
        if other is None:
            self.posted[key] = self.board.clock[rank]
            return
        self.arrived[key] = self._moved(sender, receiver, entry, max(other, self.board.clock[rank]))
        self.board.wake(key, self.arrived[key])

    def _moved(self, sender: int, receiver: int, entry: Message, ready: Moment) -> Moment:
        """The moment a message that may leave at `ready` has arrived."""
        board, programs = self.board, self.board.programs
        wire = self.durations.wire(entry, programs[sender].device, programs[receiver].device)
        leaving, arriving = self._ways(sender, receiver)
        entering = [board.free(way) for way in arriving]
        early = [(time - wire.latency, cause) for time, cause in entering]
        begin = self._caused(max([ready, *early, *map(board.free, leaving)]), ready, wire.occupied)
        kind = "grad" if entry.kind == "gradient" else "act"
        name = f"{kind} {entry.source_stage}>{entry.target_stage} m{entry.microbatch}"
        number = len(board.slices)
        sent = board.draw(sender, "send", name, begin, wire.occupied, message=number)
        # Rounding must not let it overlap what the receiver took in before.
        first_byte = max(begin[0] + wire.latency, *(time for time, _ in entering))
        arrived = board.draw(receiver, "receive", name, (first_byte, sent[1]), wire.occupied, message=number)
        board.occupy(leaving, sent)
        board.occupy(arriving, arrived)
        return arrived

    def _caused(self, begin: Moment, ready: Moment, seconds: float) -> Moment:
        """`begin` with a cause that was over by then.

        Where a message leaves so that it arrives as the receiver is done with an earlier one, that one's arrival lies
        a latency ahead: what was waited for is its sending, or, where links differ, what made this message ready.
        """
        time, cause = begin
        slices = self.board.slices
        for candidate in (cause, slices[cause].cause if cause >= 0 else -1):
            if candidate < 0 or (slices[candidate].start <= time and slices[candidate].end <= time + seconds):
                return time, candidate
        return time, ready[1]

    def _ways(self, sender: int, receiver: int) -> tuple[list[Hashable], list[Hashable]]:
        """What a message occupies at each end. Devices of a stage send at once, as `wire` counts: they do not queue."""
        leaving: list[Hashable] = [(sender, "send")]
        arriving: list[Hashable] = [(receiver, "receive")]
        first, second = self.board.programs[sender], self.board.programs[receiver]
        nodes = self.cluster.node_of[first.device], self.cluster.node_of[second.device]
        if nodes[0] != nodes[1]:
            leaving.append((nodes[0], "out", first.replica, first.inner))
            arriving.append((nodes[1], "in", first.replica, first.inner))
        return leaving, arriving


def _reads(program: Program) -> dict[Pass, list[End]]:
    found: dict[Pass, list[End]] = {}
    for entry in program.instructions:
        if isinstance(entry, Message) and entry.direction == "receive":
            key = (entry.target_stage, entry.kind, entry.microbatch)
            found.setdefault(key, []).append((entry.peer, program.rank, entry.tag))
    return found
