"""Exact cuts for schedules with several stages per position: depth-first branch and bound with dominance.

In: `InterleavedOption`s for every stage s (at position s % positions) and block range. Out: the cuts that minimise

    sum over stages of fill  +  max over positions of (sum of its stages' steady)  +  the same of tail

or, where that is more, with the sum of rounds and the turns in place of steady (`placer.costs.timing.step`), among
those whose positions fit their memory. A node is a way to have placed the first blocks on the first stages. It is
dropped where its lower bound reaches the ceiling, where a position is over-full already, and where an earlier node of
the same stage and block is nowhere above it. After `patience` placements the search stops and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import le
from typing import NamedTuple

from placer.plans.plan import Recompute
from placer.strategies.inter_op.partition.chain_dp import StageCuts

# Nodes of one stage and block a new one is compared with; more find little and cost much.
REMEMBERED = 32


class InterleavedOption(NamedTuple):
    """What one stage adds: seconds; bytes that add up at its position, and on each replica, that with most rows first,
    bytes per microbatch in flight and bytes of which the largest counts.

    When nothing is in flight any more there are `closing` bytes, of which the largest counts, and then `updating`.
    """

    fill: float
    steady: float
    tail: float
    recompute: Recompute
    state: int
    replicas: tuple[tuple[int, int], ...]
    closing: int = 0
    updating: int = 0
    rounds: float = 0.0
    turn: float = 0.0


class PositionLoad(NamedTuple):
    """What a position bears: seconds, state bytes; on each replica the largest bytes beside, and those in flight at
    each peak."""

    steady: float
    tail: float
    state: int
    replicas: tuple[tuple[int, tuple[int, ...]], ...]
    closing: int = 0
    updating: int = 0
    turn: float = 0.0

    @property
    def bytes(self) -> tuple[int, ...]:
        """Peak bytes of each replica so far."""
        ending = max(self.closing, self.updating)
        return tuple(self.state + max(largest + max(in_flight), ending) for largest, in_flight in self.replicas)


class PartialCuts(NamedTuple):
    """Stages placed up to block `reached`; `homes` are the positions that hold each parameter group so far."""

    fill: float
    loads: tuple[PositionLoad, ...]
    homes: tuple[frozenset[int], ...]
    reached: int
    cuts: tuple[int, ...]
    recompute: tuple[Recompute, ...]
    rounds: float = 0.0


# None where neither this block range nor a longer one fits.
InterleavedOptions = Callable[[int, int, int], Sequence[InterleavedOption] | None]


@dataclass(frozen=True, kw_only=True)
class Interleaved:
    """The problem: `peaks[p]` microbatches in flight per local stage at each peak, `rooms[p]` bytes less overhead of
    each replica, which have other rows and other devices.

    `fill_bounds[j]`, `steady_bounds[j]` and `needs[j]` (bytes) are lower bounds of what blocks from j on add in all.
    `grouped[b]` are the groups of parameters block b uses that must not lie in two stages of one position.
    """

    positions: int
    turns: int
    options: InterleavedOptions
    peaks: tuple[tuple[tuple[int, ...], ...], ...]
    rooms: tuple[tuple[int, ...], ...]
    needs: tuple[int, ...]
    fill_bounds: tuple[float, ...]
    steady_bounds: tuple[float, ...]
    groups: int = 0
    grouped: tuple[tuple[int, ...], ...] = ()


@dataclass(slots=True)
class _DepthFirst:
    loop: Interleaved
    ceiling: float
    patience: int
    best: PartialCuts | None = None
    nodes: int = 0
    seen: dict[tuple[int, int, tuple[frozenset[int], ...]], list[tuple[float, ...]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchAndBound:
    """The best partition below the ceiling, if any; `complete` where nothing better can exist."""

    cuts: StageCuts | None
    complete: bool
    placed: int


def best_interleaved(loop: Interleaved, *, ceiling: float, patience: int) -> BranchAndBound:
    """The best partition with a value below `ceiling`, placing little more than `patience` stages."""
    search = _DepthFirst(loop=loop, ceiling=ceiling, patience=patience)
    stack = [_root(loop)]
    while stack and search.nodes < patience:
        node = stack.pop()
        if len(node.cuts) == loop.positions * loop.turns:
            _accept(search, node)
        elif _bound(loop, node) < search.ceiling:
            stack.extend(reversed(_children(search, node)))
    complete = not stack
    if search.best is None:
        return BranchAndBound(cuts=None, complete=complete, placed=search.nodes)
    found = StageCuts(value=search.ceiling, cuts=search.best.cuts[1:], recompute=search.best.recompute)
    return BranchAndBound(cuts=found, complete=complete, placed=search.nodes)


def _accept(search: _DepthFirst, node: PartialCuts) -> None:
    value = _bound(search.loop, node)
    if value < search.ceiling:
        search.best, search.ceiling = node, value


def _children(search: _DepthFirst, node: PartialCuts) -> list[PartialCuts]:
    """Ways to place one more stage, the most even first."""
    loop, stage = search.loop, len(node.cuts)
    left = loop.positions * loop.turns - stage - 1
    blocks = len(loop.fill_bounds) - 1
    found: list[tuple[float, PartialCuts]] = []
    wanted = loop.steady_bounds[0] * left / (left + stage + 1)
    for last in range(node.reached + 1 if left else blocks, blocks - left + 1):
        options = None if _hopeless(search, node, stage, last) else loop.options(stage, node.reached, last)
        if options is None:
            break
        search.nodes += len(options)
        for option in options:
            made = _placed(loop, node, stage, last, option)
            if made is not None and _bound(loop, made) < search.ceiling and _fresh(search, made):
                found.append((abs(loop.steady_bounds[last] - wanted), made))
    return [made for _, made in sorted(found, key=lambda entry: entry[0])]


def follow(loop: Interleaved, cuts: tuple[int, ...], recompute: Recompute) -> StageCuts | None:
    """The partition of given inner cuts with `recompute` in every stage; None where it does not fit."""
    edges = (0, *cuts, len(loop.fill_bounds) - 1)
    node: PartialCuts | None = _root(loop)
    for stage, (first, last) in enumerate(pairwise(edges)):
        allowed = [option for option in loop.options(stage, first, last) or () if option.recompute == recompute]
        if node is None or not allowed:
            return None
        node = _placed(loop, node, stage, last, allowed[0])
    if node is None:
        return None
    return StageCuts(value=_bound(loop, node), cuts=cuts, recompute=node.recompute)


def _root(loop: Interleaved) -> PartialCuts:
    empty = tuple(
        PositionLoad(0.0, 0.0, 0, ((0, (0,) * len(peaks)),) * len(rooms))
        for peaks, rooms in zip(loop.peaks, loop.rooms, strict=True)
    )
    return PartialCuts(0.0, empty, (frozenset(),) * loop.groups, 0, (), ())


def _hopeless(search: _DepthFirst, node: PartialCuts, stage: int, last: int) -> bool:
    """Whether neither blocks up to `last` nor more of them can follow `node` below the ceiling."""
    loop = search.loop
    steady = node.loads[stage % loop.positions].steady + loop.steady_bounds[node.reached] - loop.steady_bounds[last]
    return node.fill + loop.fill_bounds[node.reached] + steady >= search.ceiling


def _placed(
    loop: Interleaved, node: PartialCuts, stage: int, last: int, option: InterleavedOption
) -> PartialCuts | None:
    """`node` with one more stage; None where its position is over-full or would hold a group twice."""
    position, turn = stage % loop.positions, stage // loop.positions
    load = _extended(node.loads[position], option, turn, loop.peaks[position])
    homes = _homes(loop, node, position, last)
    if homes is None or any(size > room for size, room in zip(load.bytes, loop.rooms[position], strict=True)):
        return None
    loads = (*node.loads[:position], load, *node.loads[position + 1 :])
    if loop.needs[last] > sum(rooms[0] for rooms in loop.rooms) - sum(each.bytes[0] for each in loads):
        return None
    return PartialCuts(
        node.fill + option.fill, loads, homes, last, (*node.cuts, node.reached), (*node.recompute, option.recompute),
        node.rounds + option.rounds,
    )  # fmt: skip


def _extended(
    load: PositionLoad, option: InterleavedOption, turn: int, peaks: tuple[tuple[int, ...], ...]
) -> PositionLoad:
    """The load of a position with one more stage, its `turn`-th."""

    def more(in_flight: tuple[int, ...], kept: int) -> tuple[int, ...]:
        return tuple(before + peak[turn] * kept for before, peak in zip(in_flight, peaks, strict=True))

    return PositionLoad(
        load.steady + option.steady,
        load.tail + option.tail,
        load.state + option.state,
        tuple(
            (max(largest, own), more(in_flight, kept))
            for (largest, in_flight), (kept, own) in zip(load.replicas, option.replicas, strict=True)
        ),
        max(load.closing, option.closing),
        load.updating + option.updating,
        load.turn + option.turn,
    )


def _homes(loop: Interleaved, node: PartialCuts, position: int, last: int) -> tuple[frozenset[int], ...] | None:
    if not loop.groups:
        return node.homes
    used = {group for block in range(node.reached, last) for group in loop.grouped[block]}
    if any(position in node.homes[group] for group in used):
        return None
    return tuple(home | {position} if group in used else home for group, home in enumerate(node.homes))


def _bound(loop: Interleaved, node: PartialCuts) -> float:
    """A lower bound of the value of every way to go on; the value itself when all stages are placed."""
    rest, ahead = loop.steady_bounds[node.reached], loop.fill_bounds[node.reached]
    later = (loop.turns - 1) * ahead
    steady = _slowest(loop, [load.steady for load in node.loads], rest)
    turn = _slowest(loop, [load.turn for load in node.loads], (rest - later) / loop.turns)
    inner = max(steady, node.rounds + later + turn)
    return node.fill + ahead + inner + max(load.tail for load in node.loads)


def _slowest(loop: Interleaved, loads: list[float], rest: float) -> float:
    """What the slowest position bears at least, when `rest` is shared out too."""
    return max(*loads, (sum(loads) + rest) / loop.positions) if rest > 0 else max(loads)


def _fresh(search: _DepthFirst, node: PartialCuts) -> bool:
    """Remember `node` unless one of its stage and block is nowhere above it."""
    if node.reached == len(search.loop.fill_bounds) - 1:
        return True
    mine: tuple[float, ...] = (node.fill, node.rounds, *(n for load in node.loads for n in _numbers(load)))
    others = search.seen.setdefault((len(node.cuts), node.reached, node.homes), [])
    if any(all(map(le, other, mine)) for other in others[-REMEMBERED:]):
        return False
    others.append(mine)
    return True


def _numbers(load: PositionLoad) -> tuple[float, ...]:
    beside = (n for largest, in_flight in load.replicas for n in (largest, *in_flight))
    return (load.steady, load.turn, load.tail, load.state, load.closing, load.updating, *beside)
