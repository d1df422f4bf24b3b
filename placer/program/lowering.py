"""lower(plan): the plan's schedule, with the messages and collectives it needs, as one list of instructions per rank.

One order of the whole step is made first, on positions instead of ranks: computations at the start the schedule gives
them in unit time, a message where the computation that makes it ends, collectives behind the computation that frees
them. Each position's list is cut from that order, then filled in for each replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from placer.numerics import Numerics
from placer.plans import Plan, replica_rows
from placer.program.collectives import closing_collectives, stage_collectives
from placer.program.instructions import Collective, Compute, Instruction, Message, OptimizerStep, Program
from placer.program.layout import Transfer, degree, position_of, rank_of, transfers
from placer.schedule import Action, Actions, actions, timetable
from placer.splitting import held_value, own_rows_tensor, rows_apart, value_state


class _Place(NamedTuple):
    """Where a rank stands."""

    position: int
    replica: int
    inner: int


@dataclass(frozen=True, slots=True)
class _Move:
    """A message between two positions, before rows and ranks are known."""

    transfer: Transfer
    gradient: bool
    microbatch: int
    tag: int

    @property
    def ends(self) -> tuple[int, int]:
        """Sending and receiving stage."""
        pair = (self.transfer.source, self.transfer.target)
        return pair[::-1] if self.gradient else pair


_Item = Action | _Move | Collective
# Time, then: messages, collectives, computations; then whatever makes the order the same everywhere.
_Key = tuple[float, int, tuple[int, ...]]


def lower(plan: Plan, replicas: Iterable[int] | None = None) -> tuple[Program, ...]:
    """The program of every rank, in rank order; only of the ranks of some replicas, if these are given."""
    chosen = range(plan.stages[0].replicas) if replicas is None else sorted(set(replicas))
    positions = position_of(plan)
    lines, devices = [_lines(plan, inner) for inner in range(degree(plan))], plan.ranks
    ready: dict[tuple[int, ...], tuple[Instruction, ...]] = {}
    programs = []
    for position in range(plan.positions):
        stages = tuple(s for s, at in enumerate(positions) if at == position)
        for replica, inner in product(chosen, range(degree(plan))):
            rows = rows_of_replica(plan, replica)
            # Ranks that name no peer differ in their rows only, and share what they do.
            key = rows if plan.positions == degree(plan) == 1 else (position, replica, inner)
            if key not in ready:
                place = _Place(position, replica, inner)
                ready[key] = (*_filled(plan, lines[inner][position], place, rows), OptimizerStep(stages=stages))
            rank = rank_of(plan, position, replica, inner)
            programs.append(
                Program(
                    rank=rank, device=devices[rank], replica=replica, inner=inner, stages=stages,
                    instructions=ready[key],
                )
            )  # fmt: skip
    return tuple(programs)


def rows_of_replica(plan: Plan, replica: int) -> tuple[int, ...]:
    """Rows of each microbatch that one replica computes."""
    stage = plan.stages[0]
    return tuple(replica_rows(rows, stage.shares, stage.replicas)[replica] for rows in plan.microbatches)


def plan_actions(plan: Plan) -> Actions:
    """The plan's schedule: the actions of each position."""
    return actions(plan.schedule, plan.positions, len(plan.stages), len(plan.microbatches))


def _lines(plan: Plan, inner: int) -> list[list[_Item]]:
    """What device `inner` of the replicas of each position does, cut from one order of the whole step."""
    positions = position_of(plan)
    lines: list[list[_Item]] = [[] for _ in range(plan.positions)]
    for _, item, at in sorted(_events(plan, positions, inner), key=lambda event: event[0]):
        for position in at:
            lines[position].append(item)
    return lines


def _events(plan: Plan, positions: tuple[int, ...], inner: int) -> Iterator[tuple[_Key, _Item, tuple[int, ...]]]:
    """Every computation, message and collective of the step with its place in the order and its positions."""
    schedule = plan_actions(plan)
    times = timetable(schedule, len(plan.stages))
    made = transfers(plan)
    for position, line in enumerate(schedule):
        behind = stage_collectives(plan, position, line, inner)
        for action in line:
            start, end = times[action]
            yield (start, 2, (position,)), action, (position,)
            for index, transfer in _sent_after(made, action):
                gradient = action.kind != "F"
                tag = (2 * index + gradient) * len(plan.microbatches) + action.microbatch
                move = _Move(transfer, gradient, action.microbatch, tag)
                yield (end, 0, (position, index)), move, tuple(positions[s] for s in move.ends)
            for index, collective in enumerate(behind.get(action, ())):
                # An engine's are issued inside the computation, before anything it makes is sent.
                key = (end, 1, (position, index)) if collective.engine == "placer" else (start, 2, (position, index))
                yield key, collective, (position,)


def _sent_after(made: tuple[Transfer, ...], action: Action) -> Iterator[tuple[int, Transfer]]:
    """Transfers whose values an F, or whose gradients a B or I, makes, with their numbers."""
    for index, transfer in enumerate(made):
        if (action.kind == "F" and transfer.source == action.stage) or (
            action.kind in "BI" and transfer.target == action.stage and transfer.differentiable
        ):
            yield index, transfer


def _filled(plan: Plan, line: list[_Item], place: _Place, rows: tuple[int, ...]) -> Iterator[Instruction]:
    """The instructions of one rank: rows, ranks and sizes put in; of a microbatch without rows nothing is sent."""
    positions = position_of(plan)
    sizes = _sizes(plan, line, rows, place.inner)
    for item in line:
        if isinstance(item, Action):
            yield Compute(action=item, rows=rows[item.microbatch])
        elif isinstance(item, Collective):
            yield item
        elif rows[item.microbatch]:
            source, target = item.ends
            sending = positions[source] == place.position
            peer = rank_of(plan, positions[target if sending else source], place.replica, place.inner)
            yield _message(item, sending, peer, sizes[item.transfer, rows[item.microbatch]])
    yield from closing_collectives(plan, *place)


def _message(move: _Move, sending: bool, peer: int, sizes: dict[str, int]) -> Message:
    source, target = move.ends
    values = move.transfer.differentiable if move.gradient else move.transfer.values
    return Message(
        direction="send" if sending else "receive",
        kind="gradient" if move.gradient else "activation",
        peer=peer,
        source_stage=source,
        target_stage=target,
        microbatch=move.microbatch,
        values=values,
        sizes=tuple(sizes[value] for value in values),
        tag=move.tag,
    )


def _sizes(
    plan: Plan, line: list[_Item], rows: tuple[int, ...], inner: int
) -> dict[tuple[Transfer, int], dict[str, int]]:
    """Bytes of what a rank holds of each value by transfer and number of rows."""
    numerics = Numerics.of(plan.graph, plan.settings)

    def size(reference: str, rows: int) -> int:
        apart = rows_apart(plan, reference)
        whole = own_rows_tensor(plan.graph.value(reference), apart)
        held = held_value(whole, value_state(plan, reference), degree(plan), inner)
        return numerics.bytes_of(held, rows // apart)

    found: dict[tuple[Transfer, int], dict[str, int]] = {}
    for item in line:
        if isinstance(item, _Move) and (key := (item.transfer, rows[item.microbatch])) not in found:
            found[key] = {v: size(v, key[1]) for v in item.transfer.values}
    return found
