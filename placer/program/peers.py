"""peer_disagreements(own, peers): what one rank communicates against what each of its peers does, pair by pair.

For two ranks the messages between them and the collectives of both must be the same list, in the same order: a send has
its receive, with the same values, shapes and types; a collective the same kind, ranks, bytes and type. Where that holds
for every pair, rendezvous in the order of the lists meet (see `agreement`, which plays all ranks to the end).

Where lists differ each difference is named by what it is:

    missing    one of the two has no such entry
    order      both have it, at another place
    a field    both have it here, but differ in ranks, shapes, dtypes, bytes, ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from placer.program.instructions import Collective, Meeting, Message, Program, partners

# A message's two ends say the same of it; a collective's members too. `direction` is told apart: it must differ.
_MESSAGE_FIELDS = ("values", "shapes", "dtypes", "sizes", "tag")
_COLLECTIVE_FIELDS = ("kind", "ranks", "dtype", "bytes", "engine", "way")


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """What `rank` and `peer` do not do alike; `what` is missing, order, or the fields in which an entry differs."""

    rank: int
    peer: int
    what: str
    message: str

    def __str__(self) -> str:
        return f"rank {self.rank} and rank {self.peer}: {self.message}"


def peer_disagreements(own: Program, peers: Iterable[Program]) -> tuple[Disagreement, ...]:
    """Every difference between `own` and each of `peers`; a peer without a program is one for each partner it is."""
    mine = _by_peer(own)
    member = _Membership(own.rank)
    found: list[Disagreement] = []
    met: set[int] = {own.rank}
    for peer in peers:
        if peer.rank != own.rank:
            met.add(peer.rank)
            theirs = [entry for entry in peer.meetings if member.of(entry)]
            found += _compared(own.rank, peer.rank, mine.get(peer.rank, ()), theirs)
    found += (
        Disagreement(rank=own.rank, peer=rank, what="missing", message=f"rank {rank} has no program")
        for rank in sorted(mine.keys() - met)
    )
    return tuple(found)


def entry_name(entry: Meeting) -> str:
    """A message or collective in words."""
    if isinstance(entry, Collective):
        unit = f" {entry.unit}" if entry.unit else ""
        return f"{entry.kind} of {entry.purpose}{unit}"
    return f"{entry.kind} {entry.source_stage}->{entry.target_stage} of microbatch {entry.microbatch}"


def _by_peer(own: Program) -> dict[int, list[Meeting]]:
    found: dict[int, list[Meeting]] = {}
    for entry in own.meetings:
        for rank in partners(entry):
            found.setdefault(rank, []).append(entry)
    return found


class _Membership:
    """Whether `rank` takes part; a tuple of ranks is looked through once."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._known: dict[int, tuple[tuple[int, ...], bool]] = {}

    def of(self, entry: Meeting) -> bool:
        if isinstance(entry, Message):
            return entry.peer == self._rank
        if id(entry.ranks) not in self._known:
            # The tuple is kept with the answer, so that its address stays its own.
            self._known[id(entry.ranks)] = entry.ranks, self._rank in entry.ranks
        return self._known[id(entry.ranks)][1]


def _identity(entry: Meeting) -> tuple[object, ...]:
    """What an entry is, whatever its sizes: by this the two lists are laid beside each other."""
    if isinstance(entry, Message):
        return entry.kind, entry.source_stage, entry.target_stage, entry.microbatch
    return entry.purpose, entry.stage, entry.unit, entry.kind


def _compared(rank: int, peer: int, mine: Sequence[Meeting], theirs: Sequence[Meeting]) -> Iterator[Disagreement]:
    """The longest stretches that both lists have are laid beside each other; the rest has no place or another one."""
    own, other = list(map(_identity, mine)), list(map(_identity, theirs))
    mine_left: list[Meeting] = []
    theirs_left: list[Meeting] = []
    matched = SequenceMatcher(None, own, other, autojunk=False)
    whole = [("equal", 0, len(own), 0, len(own))]
    for what, start, end, their_start, their_end in whole if own == other else matched.get_opcodes():
        if what == "equal":
            pairs = zip(mine[start:end], theirs[their_start:their_end], strict=True)
            yield from (found for pair in pairs for found in _fields(rank, peer, *pair))
        else:
            mine_left += mine[start:end]
            theirs_left += theirs[their_start:their_end]
    yield from _elsewhere(rank, peer, mine_left, theirs_left)


def _elsewhere(rank: int, peer: int, mine: list[Meeting], theirs: list[Meeting]) -> Iterator[Disagreement]:
    """What is left of both lists: entries of both are out of order, the others have none to meet them."""
    both = Counter(map(_identity, mine)) & Counter(map(_identity, theirs))
    moved = Counter(both)
    for entry in mine:
        if moved[_identity(entry)] > 0:
            moved[_identity(entry)] -= 1
            message = f"rank {rank} comes to {entry_name(entry)} at another place among their entries than rank {peer}"
            yield Disagreement(rank=rank, peer=peer, what="order", message=message)
        else:
            yield _missing(rank, peer, entry, rank)
    for entry in theirs:
        if both[_identity(entry)] > 0:
            both[_identity(entry)] -= 1
        else:
            yield _missing(rank, peer, entry, peer)


def _missing(rank: int, peer: int, entry: Meeting, owner: int) -> Disagreement:
    lacking = peer if owner == rank else rank
    message = f"rank {owner} has {entry_name(entry)}, rank {lacking} has none to meet it"
    return Disagreement(rank=rank, peer=peer, what="missing", message=message)


def _fields(rank: int, peer: int, mine: Meeting, theirs: Meeting) -> Iterator[Disagreement]:
    names = _MESSAGE_FIELDS if isinstance(mine, Message) else _COLLECTIVE_FIELDS
    differing = [name for name in names if getattr(mine, name) != getattr(theirs, name)]
    if isinstance(mine, Message) and isinstance(theirs, Message) and mine.direction == theirs.direction:
        differing.insert(0, "direction")
    if differing:
        sides = (f"rank {who} has {_told(entry, differing)}" for who, entry in ((rank, mine), (peer, theirs)))
        message = f"{entry_name(mine)} differs in {', '.join(differing)}: {'; '.join(sides)}"
        yield Disagreement(rank=rank, peer=peer, what=", ".join(differing), message=message)


def _told(entry: Meeting, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {_short(getattr(entry, name))}" for name in names)


def _short(value: object) -> str:
    """A field in words; a long list of ranks by its ends."""
    if isinstance(value, tuple) and len(value) > 8:
        return f"({value[0]}, {value[1]}, ..., {value[-1]}: {len(value)})"
    return str(value)
