"""The step of a plan, played from its programs: one column of replicas of each class, which stands for all alike.

Replicas that exchange messages with each other only are a column (`connected_replicas`). Columns whose replicas
take equally many rows on equal devices do the same at the same time. Messages are as slow as those of all replicas
sending at once.

An event is a rank that can go on: it carries out its next instruction, or is parked until it can. A computation starts
when what it reads has arrived; posting a message takes none of the rank's time; a collective needs all of its ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from placer.cluster.cluster import Cluster
from placer.costs.costs import Costs
from placer.costs.step_estimate import estimate_with
from placer.plans.plan import Plan
from placer.program.instructions import Collective, Compute, Message, OptimizerStep, Program
from placer.program.lowering import lower, rows_of_replica
from placer.program.ranks import ConnectedReplicas, connected_replicas, rank_of
from placer.simulator.collectives import Collectives
from placer.simulator.durations import Durations
from placer.simulator.messages import Wires
from placer.simulator.state import Board
from placer.simulator.timeline import Slice, SlicePart, Timeline, spent


def simulate(plan: Plan) -> Timeline:
    """The timeline of one step; its ledger has the memory of the estimate and the seconds of the slowest rank."""
    costs = Costs(plan.graph, plan.cluster, plan.settings)
    classes = column_classes(plan)
    programs = lower(plan, columns=[members[0] for members in classes])
    slices = play(programs, Durations(plan, costs), plan.cluster)
    seconds = spent(slices)
    ledger = replace(estimate_with(costs, plan), step_seconds=max(entry.end for entry in slices), seconds=seconds)
    sizes = {
        rank_of(plan, position, replica, inner): len(members)
        for members in classes
        for position, replicas in enumerate(members[0])
        for replica in replicas
        for inner in range(plan.meshes[position].degree)
    }
    return Timeline(
        slices=slices,
        ledger=ledger,
        stands_for=tuple((program.rank, sizes[program.rank]) for program in programs),
    )


def column_classes(plan: Plan) -> Sequence[tuple[ConnectedReplicas, ...]]:
    """The columns, those that do the same together."""
    kinds: dict[int, int] = {}
    chips = [kinds.setdefault(id(device), index) for index, device in enumerate(plan.cluster.devices)]
    classes: dict[tuple[object, ...], list[ConnectedReplicas]] = {}
    for column in connected_replicas(plan):
        alike = tuple(_replica(plan, chips, at, replica) for at, own in enumerate(column) for replica in own)
        classes.setdefault((tuple(map(len, column)), alike), []).append(column)
    return tuple(tuple(members) for members in classes.values())


def _replica(plan: Plan, chips: Sequence[int], position: int, replica: int) -> tuple[object, ...]:
    """What a replica takes how long for: its rows, and the kinds of its devices."""
    mesh = plan.meshes[position]
    devices = mesh.devices[replica * mesh.degree : (replica + 1) * mesh.degree]
    return rows_of_replica(plan, position, replica), tuple(chips[device] for device in devices)


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
