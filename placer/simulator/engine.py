"""play(plan, programs, durations): the programs event by event.

An event is a rank that can go on: it carries out its next instruction, or is parked until it can. A computation starts
when what it reads has arrived; posting a message takes none of the rank's time; a collective needs all of its ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from placer.cluster.cluster import Cluster
from placer.program.instructions import Collective, Compute, Message, OptimizerStep, Program
from placer.simulator.collectives import Collectives
from placer.simulator.durations import Durations
from placer.simulator.messages import Wires
from placer.simulator.state import Board
from placer.simulator.timeline import Slice, SlicePart


def play(programs: Sequence[Program], durations: Durations, cluster: Cluster) -> tuple[Slice, ...]:
    """Every slice of the step. Raises RuntimeError where ranks wait for ever, which `agreement` would have told."""
    board = Board(programs)
    wires, calls = Wires.of(board, durations, cluster), Collectives(board, durations)
    while (rank := board.next_rank()) is not None:
        instructions = board.programs[rank].instructions
        if board.at[rank] < len(instructions) and _carried_out(rank, board, wires, calls, durations):
            board.at[rank] += 1
            board.resume(rank, board.clock[rank])
    late = [rank for rank, program in board.programs.items() if board.at[rank] < len(program.instructions)]
    if late:
        raise RuntimeError(f"ranks {late} wait for ever: the programs disagree, see placer.program.agreement")
    return tuple(board.slices)


def _carried_out(rank: int, board: Board, wires: Wires, calls: Collectives, durations: Durations) -> bool:
    """Whether `rank` could carry out its next instruction; if not, it is parked."""
    program = board.programs[rank]
    entry = program.instructions[board.at[rank]]
    if isinstance(entry, Message):
        wires.post(rank, entry)
        return True
    if isinstance(entry, Collective):
        return calls.join(rank, entry)
    if isinstance(entry, Compute):
        return _computed(program, entry, board, wires, durations.compute(program, entry))
    return calls.settle(rank) and _updated(program, entry, board, durations)


def _computed(program: Program, entry: Compute, board: Board, wires: Wires, parts: tuple[SlicePart, ...]) -> bool:
    rank, reads = program.rank, wires.read_by(program.rank, entry)
    missing = next((key for key in reads if key not in wires.arrived), None)
    if missing is not None:
        board.park(rank, missing)
        return False
    begin = max([board.clock[rank], *(wires.arrived[key] for key in reads)])
    seconds = sum(part.seconds for part in parts)
    board.clock[rank] = board.draw(rank, "compute", str(entry.action), begin, seconds, parts)
    board.computing[rank] = (begin[0], board.clock[rank][0])
    return True


def _updated(program: Program, entry: OptimizerStep, board: Board, durations: Durations) -> bool:
    seconds = durations.optimizer(program, entry)
    parts = (SlicePart(kind="optimizer", seconds=seconds),)
    board.clock[program.rank] = board.draw(program.rank, "compute", "update", board.clock[program.rank], seconds, parts)
    return True
