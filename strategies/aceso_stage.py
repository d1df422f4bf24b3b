"""The fastest way to run each range of ops as one stage within memory, for all ranges at once.

Memory is priced: a path through the states of the ops from a to b costs

    sum of time + moves + p (states * weights)  + p (behind + 1) (kept - dropped),      p = price * tilt(position)

and is found by dynamic programming for a grid of prices; along it time and memory are kept exactly as the evaluator
counts them (runs of recomputed ops and workspace included). Of the paths that fit, the fastest is taken. Equal layers
would all change their mind at one price; the tilt makes them change one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from placer.placement.aceso import AcesoStage
from placer.strategies.aceso_space import Floats, Ints, Space

# Milliseconds per megabyte: from less than any op's recomputation costs to more than any does.
PRICES = np.concatenate(([0.0], np.geomspace(2e-5, 0.2, 31)))
# How much dearer memory is for the last op of the model than for the first.
TILT = 1.0


@dataclass(slots=True, kw_only=True)
class _Paths:
    """The best path of each start, price and last state: its priced cost, and what it takes."""

    cost: Floats
    time: Floats
    weights: Floats
    kept: Floats
    run: Floats
    peak: Floats
    forward: Floats
    backward: Floats
    size: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`best[a, b]` milliseconds of ops a to b - 1 as a stage (inf: does not fit or too slow) and by which price, state."""

    best: Floats
    price: Ints
    state: Ints


def stage_table(space: Space, memory: float, behind: int, slowest: float) -> Table:
    """The table for stages with `behind` stages after them, of ranges no slower than `slowest` without recomputation."""
    ops = len(space.time)
    table = Table(
        best=np.full((ops + 1, ops + 1), np.inf),
        price=np.zeros((ops + 1, ops + 1), dtype=np.int64),
        state=np.zeros((ops + 1, ops + 1), dtype=np.int64),
    )
    first, paths = 0, _begun(space, 0, PRICES, behind)
    for op in range(ops):
        if op:
            paths, _ = _extended(space, paths, op, PRICES, behind)
            paths = _joined(paths, _begun(space, op, PRICES, behind))
        _entered(table, space, paths, first, op, memory, behind)
        alive = np.flatnonzero(paths.time[:, 0].min(axis=1) <= slowest)
        drop = int(alive[0]) if len(alive) else len(paths.time)
        first, paths = first + drop, _later(paths, drop)
    return table


def traced(space: Space, behind: int, start: int, end: int, price: float, state: int) -> AcesoStage:
    """The stage of ops start to end - 1 that the table's entry stands for."""
    prices = np.array([price])
    paths, parents = _begun(space, start, prices, behind), list[Ints]()
    for op in range(start + 1, end):
        paths, parent = _extended(space, paths, op, prices, behind)
        parents.append(parent[0, 0])
    chosen = [state]
    for parent in reversed(parents):
        chosen.append(int(parent[chosen[-1]]))
    states = [space.states[one] for one in reversed(chosen)]
    return AcesoStage(
        tensor=tuple(one.tensor for one in states),
        data=tuple(one.data for one in states),
        algo=tuple(one.algo for one in states),
        recompute=tuple(one.recompute for one in states),
    )


def _tilted(space: Space, op: int, prices: Floats) -> Floats:
    """The prices at an op, prices x 1."""
    return (prices * np.exp(TILT * op / len(space.time)))[:, None]


def _begun(space: Space, op: int, prices: Floats, behind: int) -> _Paths:
    """The paths of one op, start x price x state."""
    price = _tilted(space, op, prices)
    shape = (1, len(prices), len(space.states))
    time = space.time[op] + space.enter[op]
    kept = space.input[op] + space.size[op]
    cost = time + price * (space.state_factor * space.weights[op] + (behind + 1) * kept)

    def spread(values: Floats) -> Floats:
        return np.broadcast_to(values, shape).copy()

    nothing = np.zeros(shape)
    return _Paths(
        cost=cost[None],
        time=spread(time),
        weights=spread(space.weights[op]),
        kept=spread(kept),
        run=nothing,
        peak=nothing.copy(),
        forward=nothing.copy(),
        backward=nothing.copy(),
        size=spread(space.size[op]),
    )


def _extended(space: Space, paths: _Paths, op: int, prices: Floats, behind: int) -> tuple[_Paths, Ints]:
    """The paths with `op` added, and from which state each comes."""
    price = _tilted(space, op - 1, prices)
    both = space.recomputed[:, None] & space.recomputed[None, :]
    drop = both & bool(space.drops[op - 1])
    saved = (price * (behind + 1) * space.size[op - 1])[:, :, None] * drop
    moved = paths.cost[..., :, None] + space.moves[space.kind[op]] - saved
    parent = moved.argmin(axis=2)
    rows, columns = np.ogrid[: moved.shape[0], : moved.shape[1]]
    at = (rows[..., None], columns[..., None], parent)
    to = np.arange(moved.shape[3])
    paired, dropped = both[parent, to], drop[parent, to]
    run = np.where(paired, paths.run[at] + space.size[op - 1][parent], paths.run[at])
    closes = ~paired | (not space.drops[op - 1])
    price = _tilted(space, op, prices)
    grown = price * (space.state_factor * space.weights[op] + (behind + 1) * space.size[op])
    return (
        _Paths(
            cost=moved[at[0], at[1], parent, to] + space.time[op] + grown,
            time=paths.time[at] + space.moves[space.kind[op]][parent, to] + space.time[op],
            weights=paths.weights[at] + space.weights[op],
            kept=paths.kept[at] + space.size[op] - np.where(dropped, space.size[op - 1][parent], 0.0),
            run=np.where(closes, 0.0, run),
            peak=np.where(closes, np.maximum(paths.peak[at], run), paths.peak[at]),
            forward=np.maximum(paths.forward[at], space.forward_reserved[op - 1][parent]),
            backward=np.maximum(paths.backward[at], space.backward_reserved[op - 1][parent]),
            size=paths.size[at],
        ),
        parent,
    )


def _entered(table: Table, space: Space, paths: _Paths, first: int, op: int, memory: float, behind: int) -> None:
    """Writes the ranges that end with `op`, starting from op `first`."""
    reserved = np.maximum(paths.forward + paths.backward, paths.weights)
    total = space.state_factor * paths.weights + (behind + 1) * paths.kept + np.maximum(paths.peak, paths.run) + reserved
    time = np.where(total <= memory, paths.time + space.leave[op], np.inf).reshape(len(total), -1)
    at = time.argmin(axis=1)
    starts = np.arange(first, first + len(total))
    table.best[starts, op + 1] = time[np.arange(len(at)), at]
    table.price[starts, op + 1], table.state[starts, op + 1] = np.divmod(at, len(space.states))


def _joined(paths: _Paths, begun: _Paths) -> _Paths:
    """The paths of one more start."""
    return _Paths(**{f.name: np.concatenate((getattr(paths, f.name), getattr(begun, f.name))) for f in fields(_Paths)})


def _later(paths: _Paths, drop: int) -> _Paths:
    """The paths without the first `drop` starts."""
    return _Paths(**{f.name: getattr(paths, f.name)[drop:] for f in fields(_Paths)}) if drop else paths
