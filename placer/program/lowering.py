"""lower(plan): the plan's schedule, with the messages and collectives it needs, as one list of instructions per rank.

One order of the whole step is made first, on positions instead of ranks: computations at the start the schedule gives
them in unit time, a message where the computation that makes it ends, collectives behind the computation that frees
them. Each position's list is cut from that order, then filled in for each replica: a message between two positions
becomes one for each pair of their devices that share rows, in the order of the rows, then of the sending and of the
receiving device. That is one order of all messages too, so that ranks which follow it cannot wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from placer.costs.precision import Numerics
from placer.io.memo import remembered
from placer.plans.order import timed_actions
from placer.plans.plan import Plan, replica_rows
from placer.plans.schedule import Action, TimedActions
from placer.plans.transfers import Transfer, position_of, stage_graph, transfers
from placer.program.collectives import closing_collectives, stage_collectives, updated_collectives
from placer.program.instructions import Collective, Compute, Instruction, Message, OptimizerStep, Program
from placer.program.ranks import ConnectedReplicas, all_replicas, rank_of
from placer.program.told import told_weights
from placer.spmd.cross_mesh import Bundle, Crossing, Division, Exchange, Mesh, Overlap, by_source, by_target
from placer.spmd.parameter_layouts import held_parameters, held_value, value_state


class _RankPlace(NamedTuple):
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
    plan: Plan, columns: Iterable[ConnectedReplicas] | None = None, inners: Iterable[int] | None = None
) -> tuple[Program, ...]:
    """The program of every rank, in rank order; only of some columns (`columns`), or devices of replicas, if given."""
    chosen = all_replicas(plan) if columns is None else _together(columns)
    within = range(max(mesh.degree for mesh in plan.meshes)) if inners is None else sorted(set(inners))
    positions, step, devices, moves = position_of(plan), _step(plan), plan.ranks, _Moves(plan)
    lines = {inner: _lines(plan, step, inner) for inner in within}
    ready: dict[tuple[int, ...], tuple[Instruction, ...]] = {}
    programs = []
    for position, mesh in enumerate(plan.meshes):
        stages = tuple(s for s, at in enumerate(positions) if at == position)
        held = [inner for inner in within if inner < mesh.degree]
        for place in (_RankPlace(position, replica, inner) for replica in chosen[position] for inner in held):
            rows = rows_of_replica(plan, position, place.replica)
            # Ranks that name no peer differ in their rows only, and share what they do.
            key = rows if plan.positions == mesh.degree == 1 else place
            if key not in ready:
                line = _filled(plan, lines[place.inner][position], place, rows, moves)
                updated = updated_collectives(plan, position, place.inner)
                ready[key] = (*line, OptimizerStep(stages=stages), *updated)
            rank = rank_of(plan, *place)
            programs.append(
                Program(
                    rank=rank, device=devices[rank], replica=place.replica, inner=place.inner, stages=stages,
                    instructions=ready[key],
                )
            )  # fmt: skip
    return tuple(programs)


def like_devices(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The devices of a replica in classes: the programs of one class differ in nothing but the ranks they name.

    All that `lower` asks of a device of a replica is what it holds of the parameters and of the values that are sent,
    where each sends to the one that stands like it. Where stages have other layouts each device is a class of its own.
    """
    size = max(mesh.degree for mesh in plan.meshes)
    if len({(stage.layout, stage.degree) for stage in plan.stages}) > 1:
        return tuple((inner,) for inner in range(size))
    sent = sorted({value for transfer in transfers(plan) for value in transfer.values}) if plan.layouts else []
    states = [(plan.graph.value(value), value_state(plan, value)) for value in sent]
    every = plan.graph.parameters
    classes: dict[object, list[int]] = {}
    for inner in range(size):
        held = held_parameters(plan, inner)
        own = tuple((name, held[name]) for name in every if held[name] is not every[name])
        classes.setdefault((own, tuple(held_value(*found, size, inner) for found in states)), []).append(inner)
    return tuple(map(tuple, classes.values()))


def rows_of_replica(plan: Plan, position: int, replica: int) -> tuple[int, ...]:
    """Rows of each microbatch that one replica of a position computes."""
    mesh = plan.meshes[position]
    return tuple(replica_rows(rows, mesh.shares, mesh.replicas)[replica] for rows in plan.microbatches)


def crossings(plan: Plan, transfer: Transfer, gradient: bool) -> tuple[Crossing, ...]:
    """What a transfer moves: its values forward, the gradients of those that have one back."""
    ends = (transfer.target, transfer.source) if gradient else (transfer.source, transfer.target)
    return tuple(
        Crossing(value, plan.graph.value(value), *(value_state(plan, value, stage) for stage in ends))
        for value in (transfer.differentiable if gradient else transfer.values)
    )


def _together(columns: Iterable[ConnectedReplicas]) -> tuple[tuple[int, ...], ...]:
    """The replicas of several columns, position by position."""
    return tuple(tuple(sorted(r for part in parts for r in part)) for parts in zip(*columns, strict=True))


@dataclass(frozen=True, slots=True)
class _StepOrder:
    """What all devices of a replica share: the schedule, its times, and what follows an F or a B of each stage."""

    order: TimedActions
    sent: dict[tuple[bool, int], list[tuple[int, Transfer]]]


def _step(plan: Plan) -> _StepOrder:
    sent: dict[tuple[bool, int], list[tuple[int, Transfer]]] = {}
    for index, transfer in enumerate(transfers(plan)):
        sent.setdefault((True, transfer.source), []).append((index, transfer))
        if transfer.differentiable:
            sent.setdefault((False, transfer.target), []).append((index, transfer))
    return _StepOrder(timed_actions(plan, stage_graph(plan)), sent)


def _lines(plan: Plan, step: _StepOrder, inner: int) -> list[list[_Item]]:
    """What device `inner` of the replicas of each position does, cut from one order of the whole step."""
    positions = position_of(plan)
    lines: list[list[_Item]] = [[] for _ in range(plan.positions)]
    for _, item, at in sorted(_events(plan, step, positions, inner), key=lambda event: event[0]):
        for position in at:
            lines[position].append(item)
    return lines


def _events(
    plan: Plan, step: _StepOrder, positions: tuple[int, ...], inner: int
) -> Iterator[tuple[_Key, _Item, tuple[int, ...]]]:
    """Every computation, message and collective of the step with its place in the order and its positions."""
    for position, line in enumerate(step.order.actions):
        behind = stage_collectives(plan, position, line, inner) if inner < plan.meshes[position].degree else {}
        for action in line:
            start, end = step.order.times[action]
            yield (start, 2, (position,)), action, (position,)
            made = () if action.kind == "W" else step.sent.get((action.kind == "F", action.stage), ())
            for index, transfer in made:
                gradient = action.kind != "F"
                tag = (2 * index + gradient) * len(plan.microbatches) + action.microbatch
                move = _Move(transfer, gradient, action.microbatch, tag)
                yield (end, 0, (position, index)), move, tuple(positions[s] for s in move.ends)
            for index, collective in enumerate(behind.get(action, ())):
                # An engine's are issued inside the computation, before anything it makes is sent.
                key = (end, 1, (position, index)) if collective.engine == "placer" else (start, 2, (position, index))
                yield key, collective, (position,)


def _filled(
    plan: Plan, line: list[_Item], place: _RankPlace, rows: tuple[int, ...], moves: _Moves
) -> Iterator[Instruction]:
    """The instructions of one rank: rows, ranks and sizes put in; of a microbatch without rows nothing is sent."""
    for item in line:
        if isinstance(item, Action):
            yield Compute(action=item, rows=rows[item.microbatch])
        elif isinstance(item, Collective):
            yield item
        elif rows[item.microbatch]:
            yield from moves.messages(item, place)
    yield from closing_collectives(plan, *place)


class _KnownTransfer(NamedTuple):
    """What is the same of all messages of a transfer, one way: positions, divisions, and what a pair exchanges."""

    positions: tuple[int, int]
    exchange: Exchange
    divisions: tuple[Division, Division]


@dataclass(frozen=True)
class _Moves:
    """The messages of a plan; remembers what those of one transfer, and those of as many rows, have in common."""

    plan: Plan
    _sizes: dict[tuple[int, int], tuple[_Value, ...]] = field(default_factory=dict)

    def messages(self, move: _Move, place: _RankPlace) -> Iterator[Message]:
        """The messages of `move` that the rank at `place` sends or gets."""
        known, rows = self._of(move.transfer, move.gradient), self.plan.microbatches[move.microbatch]
        sending = known.positions[0] == place.position
        found = (by_source if sending else by_target)(rows, *known.divisions)[place.replica]
        for overlap in found:
            for bundle in known.exchange.bundles(overlap.opens_source if move.gradient else overlap.opens_target):
                if place.inner == (bundle.source if sending else bundle.target):
                    yield self._message(move, known, overlap, bundle, sending)

    def _message(self, move: _Move, known: _KnownTransfer, overlap: Overlap, bundle: Bundle, sending: bool) -> Message:
        carried = self._carried(bundle, (overlap.last - overlap.first) // known.exchange.apart)
        tells = move.gradient and self._told
        if tells:
            count = len(bundle.values)
            carried = (*carried, _Value(count, (count,), "uint8"))
        if sending:
            peer = rank_of(self.plan, known.positions[1], overlap.target, bundle.target)
        else:
            peer = rank_of(self.plan, known.positions[0], overlap.source, bundle.source)
        return Message(
            direction="send" if sending else "receive",
            kind="gradient" if move.gradient else "activation",
            peer=peer,
            source_stage=move.ends[0],
            target_stage=move.ends[1],
            microbatch=move.microbatch,
            values=bundle.values,
            tells=tells,
            sizes=tuple(value.bytes for value in carried),
            tag=move.tag,
            rows=(overlap.first, overlap.last),
            cuts=bundle.cuts if any(bundle.cuts) else (),
            shapes=tuple(value.shape for value in carried),
            dtypes=tuple(value.dtype for value in carried),
        )

    @remembered
    def _of(self, transfer: Transfer, gradient: bool) -> _KnownTransfer:
        ends = (transfer.target, transfer.source) if gradient else (transfer.source, transfer.target)
        positions = position_of(self.plan)
        source, target = (Mesh.of(self.plan, self.plan.stages[stage]) for stage in ends)
        exchange = Exchange.between(crossings(self.plan, transfer, gradient), source, target)
        pair = (positions[ends[0]], positions[ends[1]])
        return _KnownTransfer(pair, exchange, (source.division, target.division))

    def _carried(self, bundle: Bundle, rows: int) -> tuple[_Value, ...]:
        key = (id(bundle), rows)  # bundles live as long as the exchanges that `_of` remembers
        found = self._sizes.get(key)
        if found is None:
            numerics, each = self._numerics, zip(bundle.values, bundle.tensors, strict=True)
            found = self._sizes[key] = tuple(
                _Value(numerics.bytes_of(value, one, rows), one.shape_at(rows), numerics.crosses(value, one))
                for value, one in each
            )
        return found

    @cached_property
    def _told(self) -> bool:
        return bool(told_weights(self.plan.graph))

    @cached_property
    def _numerics(self) -> Numerics:
        return Numerics.of(self.plan.graph, self.plan.settings, self.plan.cluster.kernels)
