"""lower(plan): the plan's schedule, with the messages and collectives it needs, as one list of instructions per rank.

One order of the whole step is made first, on positions instead of ranks: computations at the start the schedule gives
them in unit time, a message where the computation that makes it ends, collectives behind the computation that frees
them. Each position's list is cut from that order, then filled in for each replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from placer.numerics import Numerics
from placer.plans import Plan, replica_rows
from placer.program.collectives import closing_collectives, stage_collectives
from placer.program.instructions import Collective, Compute, Instruction, Message, OptimizerStep, Program
from placer.program.layout import Transfer, degree, position_of, rank_of, transfers
from placer.schedule import Action, Actions, actions, timetable
from placer.splitting import held_parameters, held_value, own_rows_tensor, rows_apart, value_state


class _Place(NamedTuple):
    """Where a rank stands."""

    position: int
    replica: int
    inner: int


class _Value(NamedTuple):
    """What a rank holds of a value that crosses stages."""

    bytes: int
    shape: tuple[int, ...]
    dtype: str


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


def lower(
    plan: Plan, replicas: Iterable[int] | None = None, inners: Iterable[int] | None = None
) -> tuple[Program, ...]:
    """The program of every rank, in rank order; only of some replicas, or of some devices of each, if given."""
    chosen = range(plan.stages[0].replicas) if replicas is None else sorted(set(replicas))
    within = range(degree(plan)) if inners is None else sorted(set(inners))
    positions, step = position_of(plan), _step(plan)
    lines, devices = {inner: _lines(plan, step, inner) for inner in within}, plan.ranks
    ready: dict[tuple[int, ...], tuple[Instruction, ...]] = {}
    programs = []
    for position in range(plan.positions):
        stages = tuple(s for s, at in enumerate(positions) if at == position)
        for replica, inner in product(chosen, within):
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


def like_devices(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The devices of a replica in classes: the programs of one class differ in nothing but the ranks they name.

    All that `lower` asks of a device of a replica is what it holds of the parameters and of the values that are sent.
    """
    sent = sorted({value for transfer in transfers(plan) for value in transfer.values}) if plan.layouts else []
    states = [(plan.graph.value(value), value_state(plan, value)) for value in sent]
    every, size = plan.graph.parameters, degree(plan)
    classes: dict[object, list[int]] = {}
    for inner in range(size):
        held = held_parameters(plan, inner)
        own = tuple((name, held[name]) for name in every if held[name] is not every[name])
        classes.setdefault((own, tuple(held_value(*found, size, inner) for found in states)), []).append(inner)
    return tuple(map(tuple, classes.values()))


def rows_of_replica(plan: Plan, replica: int) -> tuple[int, ...]:
    """Rows of each microbatch that one replica computes."""
    stage = plan.stages[0]
    return tuple(replica_rows(rows, stage.shares, stage.replicas)[replica] for rows in plan.microbatches)


def plan_actions(plan: Plan) -> Actions:
    """The plan's schedule: the actions of each position."""
    return actions(plan.schedule, plan.positions, len(plan.stages), len(plan.microbatches))


@dataclass(frozen=True, slots=True)
class _Step:
    """What all devices of a replica share: the schedule, its times, and what follows an F or a B of each stage."""

    schedule: Actions
    times: dict[Action, tuple[float, float]]
    sent: dict[tuple[bool, int], list[tuple[int, Transfer]]]


def _step(plan: Plan) -> _Step:
    schedule = plan_actions(plan)
    sent: dict[tuple[bool, int], list[tuple[int, Transfer]]] = {}
    for index, transfer in enumerate(transfers(plan)):
        sent.setdefault((True, transfer.source), []).append((index, transfer))
        if transfer.differentiable:
            sent.setdefault((False, transfer.target), []).append((index, transfer))
    return _Step(schedule, timetable(schedule, len(plan.stages)), sent)


def _lines(plan: Plan, step: _Step, inner: int) -> list[list[_Item]]:
    """What device `inner` of the replicas of each position does, cut from one order of the whole step."""
    positions = position_of(plan)
    lines: list[list[_Item]] = [[] for _ in range(plan.positions)]
    for _, item, at in sorted(_events(plan, step, positions, inner), key=lambda event: event[0]):
        for position in at:
            lines[position].append(item)
    return lines


def _events(
    plan: Plan, step: _Step, positions: tuple[int, ...], inner: int
) -> Iterator[tuple[_Key, _Item, tuple[int, ...]]]:
    """Every computation, message and collective of the step with its place in the order and its positions."""
    for position, line in enumerate(step.schedule):
        behind = stage_collectives(plan, position, line, inner)
        for action in line:
            start, end = step.times[action]
            yield (start, 2, (position,)), action, (position,)
            for index, transfer in _sent_after(step, action):
                gradient = action.kind != "F"
                tag = (2 * index + gradient) * len(plan.microbatches) + action.microbatch
                move = _Move(transfer, gradient, action.microbatch, tag)
                yield (end, 0, (position, index)), move, tuple(positions[s] for s in move.ends)
            for index, collective in enumerate(behind.get(action, ())):
                # An engine's are issued inside the computation, before anything it makes is sent.
                key = (end, 1, (position, index)) if collective.engine == "placer" else (start, 2, (position, index))
                yield key, collective, (position,)


def _sent_after(step: _Step, action: Action) -> Sequence[tuple[int, Transfer]]:
    """Transfers whose values an F, or whose gradients a B or I, makes, with their numbers."""
    return () if action.kind == "W" else step.sent.get((action.kind == "F", action.stage), ())


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


def _message(move: _Move, sending: bool, peer: int, carried: Mapping[str, _Value]) -> Message:
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
        sizes=tuple(carried[value].bytes for value in values),
        tag=move.tag,
        shapes=tuple(carried[value].shape for value in values),
        dtypes=tuple(carried[value].dtype for value in values),
    )


def _sizes(
    plan: Plan, line: list[_Item], rows: tuple[int, ...], inner: int
) -> dict[tuple[Transfer, int], dict[str, _Value]]:
    """What a rank holds of each value by transfer and number of rows."""
    numerics = Numerics.of(plan.graph, plan.settings)

    def value(reference: str, rows: int) -> _Value:
        apart = rows_apart(plan, reference)
        whole = own_rows_tensor(plan.graph.value(reference), apart)
        tensor, own = held_value(whole, value_state(plan, reference), degree(plan), inner), rows // apart
        return _Value(numerics.bytes_of(tensor, own), tensor.shape_at(own), numerics.kept(tensor.dtype))

    found: dict[tuple[Transfer, int], dict[str, _Value]] = {}
    for item in line:
        if isinstance(item, _Move) and (key := (item.transfer, rows[item.microbatch])) not in found:
            found[key] = {v: value(v, key[1]) for v in item.transfer.values}
    return found
