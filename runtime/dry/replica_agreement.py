"""What the devices of a replica say to each other inside their blocks, which no program lists: compared as recorded.

All of them run the same blocks in the same order, so that of any two the lists of what both take part in (all, but for
what runs along one of two axes) must be equal, entry by entry: kind, ranks, type and shape; of an all-to-all each must
send what the other expects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from placer.program.peers import Disagreement
from placer.runtime.measuring.communication_record import Communication

# After so many differences of a pair the lists have nothing in common any more.
MOST = 10


def inside_disagreements(
    rank: int, own: Sequence[Communication], peers: Mapping[int, Sequence[Communication]]
) -> tuple[Disagreement, ...]:
    """How `own` of `rank` differs from that of each of `peers`; the first differences of each pair."""
    found: list[Disagreement] = []
    for peer, theirs in peers.items():
        found += list(_compared(rank, peer, own, theirs))[:MOST]
    return tuple(found)


def _compared(
    rank: int, peer: int, own: Sequence[Communication], theirs: Sequence[Communication]
) -> Iterator[Disagreement]:
    shared = [entry for entry in own if peer in entry.ranks]
    for index, (mine, other) in enumerate(zip_longest(shared, (entry for entry in theirs if rank in entry.ranks))):
        what = _difference(mine, other, rank, peer)
        if what:
            message = (
                f"communication {index} inside the replica: rank {rank} does {mine or 'nothing'}, rank {peer} does "
                f"{other or 'nothing'}"
            )
            yield Disagreement(rank=rank, peer=peer, what=what, message=message)


def _difference(mine: Communication | None, other: Communication | None, rank: int, peer: int) -> str:
    """In what two entries that should meet differ; empty where they meet."""
    if mine is None or other is None:
        return "missing"
    if mine.kind != other.kind:
        return "order"
    differing = [name for name in ("ranks", "dtype") if getattr(mine, name) != getattr(other, name)]
    if mine.sent and other.sent and mine.ranks == other.ranks:
        here, there = mine.ranks.index(rank), mine.ranks.index(peer)
        if mine.sent[there] != other.received[here] or mine.received[there] != other.sent[here]:
            differing.append("shape")
    elif mine.shape != other.shape or mine.bytes != other.bytes:
        differing.append("shape")
    return ", ".join(differing)
