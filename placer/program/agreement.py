"""agreement(programs): do all ranks agree on their communication, and can they follow it to the end?

The step is played with nothing but rendezvous: a send waits until its peer stands at the matching receive, a collective
until all of its ranks stand at the same one. Tags are not used to match, so what passes here runs on any backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from placer.program.instructions import Collective, Instruction, Meeting, Message, Program, partners


def agreement(programs: Sequence[Program], *, partial: bool = False) -> tuple[str, ...]:
    """Every disagreement and deadlock found; empty when every rank comes to its end.

    partial: the programs are of some replicas only, and collectives are played among those.
    """
    if partial:
        programs = [_restricted(program, {other.rank for other in programs}) for program in programs]
    missing = tuple(_missing_ranks(programs))
    return missing or tuple(_played(programs))


def _restricted(program: Program, present: set[int]) -> Program:
    def kept(entry: Instruction) -> Instruction:
        if not isinstance(entry, Collective):
            return entry
        return replace(entry, ranks=tuple(rank for rank in entry.ranks if rank in present))

    return replace(program, instructions=tuple(map(kept, program.instructions)))


def _missing_ranks(programs: Sequence[Program]) -> Iterator[str]:
    present = {program.rank for program in programs}
    for program in programs:
        named = {rank for entry in program.meetings for rank in partners(entry)}
        for rank in sorted(named - present):
            yield f"rank {program.rank} communicates with rank {rank}, which has no program"


def _played(programs: Sequence[Program]) -> Iterator[str]:
    """Advance whoever can; what is left where all wait is what they disagree about."""
    board = _Board({program.rank: list(program.meetings) for program in programs})
    runnable = list(board.at)
    while runnable:
        met = _meeting(runnable.pop(), board)
        for rank in met:
            board.at[rank] += 1
        runnable.extend(met)
    for rank in board.at:
        entry = board.current(rank)
        if entry is not None:
            yield _stuck(rank, entry, board)


@dataclass(frozen=True, slots=True)
class _Board:
    """The communications of each rank, and how far each has come."""

    entries: dict[int, list[Meeting]]
    at: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", dict.fromkeys(self.entries, 0))

    def current(self, rank: int) -> Meeting | None:
        at = self.at[rank]
        return self.entries[rank][at] if at < len(self.entries[rank]) else None


def _meeting(rank: int, board: _Board) -> tuple[int, ...]:
    """The ranks that can advance together with `rank`; none where it must wait."""
    entry = board.current(rank)
    if entry is None:
        return ()
    if isinstance(entry, Collective):
        return entry.ranks if all(board.current(member) == entry for member in entry.ranks) else ()
    other = board.current(entry.peer)
    matches = isinstance(other, Message) and other.peer == rank and not _differences(entry, other)
    return (rank, entry.peer) if matches else ()


def _differences(one: Message, other: Message) -> list[str]:
    """In what two ends of a message differ."""
    fields = (
        "kind", "source_stage", "target_stage", "microbatch", "rows", "values", "cuts", "shapes", "dtypes", "sizes",
        "tag",
    )  # fmt: skip
    found = [name for name in fields if getattr(one, name) != getattr(other, name)]
    return (["direction"] if one.direction == other.direction else []) + found


def _stuck(rank: int, entry: Meeting, board: _Board) -> str:
    if isinstance(entry, Collective):
        late = next(member for member in entry.ranks if board.current(member) != entry)
        return f"rank {rank} waits at {_name(entry)} for rank {late}, which {_doing(late, board)}"
    other = board.current(entry.peer)
    if isinstance(other, Message) and other.peer == rank:
        unequal = ", ".join(_differences(entry, other))
        return f"rank {rank} and rank {entry.peer} disagree in {unequal}: {_name(entry)} against {_name(other)}"
    return f"rank {rank} waits at {_name(entry)} for rank {entry.peer}, which {_doing(entry.peer, board)}"


def _doing(rank: int, board: _Board) -> str:
    entry = board.current(rank)
    return f"is at {_name(entry)}" if entry is not None else "has nothing more to communicate"


def _name(entry: Meeting) -> str:
    if isinstance(entry, Collective):
        return f"{entry.kind} of {entry.purpose} {entry.unit} ({entry.bytes} bytes, {len(entry.ranks)} ranks)"
    way = f"{entry.direction} of the {entry.kind} {entry.source_stage}->{entry.target_stage}"
    return f"{way}, microbatch {entry.microbatch} ({entry.bytes} bytes)"
