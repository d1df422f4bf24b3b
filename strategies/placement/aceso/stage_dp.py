"""The fastest way to run each range of ops as one stage within memory, for all ranges at once.

Memory is priced: a path through the states of the ops from a to b costs

    sum of time + moves + p (states * weights)  + p (behind + 1) (kept - dropped),      p = price * tilt(position)

and is found by dynamic programming for a grid of prices; along it time and memory are kept exactly as the evaluator
counts them (runs of recomputed ops and workspace included). Of the paths that fit, the fastest is taken. Equal layers
would all change their mind at one price; the tilt makes them change one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placer.placement.published_planners.aceso import AcesoStage
from placer.strategies.engine.arrays import Flags, Floats, Ints
from placer.strategies.placement.aceso.op_choices import OpSpace

# Milliseconds per megabyte: from less than any op's recomputation costs to more than any does.
LEAST_PRICE, MOST_PRICE = 1e-4, 0.1
# The grid is as fine as two thousand moves between states per op allow, within these numbers of prices.
MOVES, FEWEST, MOST = 2000, 32, 160
# How many times e dearer memory is for the last op of the model than for the first.
TILTS = (1.0, 0.4, 2.5)


class _Paths(NamedTuple):
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
    """`best[a, b]`: milliseconds of ops a to b - 1 as a stage, inf: does not fit or too slow; by which price, state."""

    best: Floats
    price: Ints
    state: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The prices of a table and their tilt."""

    prices: Floats
    tilt: float

    def at(self, position: float) -> Floats:
        """The prices at a part of the model, prices x 1."""
        found: Floats = (self.prices * np.exp(self.tilt * position))[:, None]
        return found


def grid_of(space: OpSpace, tilt: float) -> Grid:
    """The grid for a space."""
    count = min(MOST, max(FEWEST, MOVES // len(space.states) ** 2))
    return Grid(prices=np.concatenate(([0.0], np.geomspace(LEAST_PRICE, MOST_PRICE, count - 1))), tilt=tilt)


def stage_table(space: OpSpace, memory: float, behind: int, slowest: float, starts: Flags, grid: Grid) -> Table:
    """The table for stages with `behind` stages after them that begin at one of `starts`.

    Ranges that take longer than `slowest` even without recomputation are left out.
    """
    ops = len(space.time)
    table = Table(
        best=np.full((ops + 1, ops + 1), np.inf),
        price=np.zeros((ops + 1, ops + 1), dtype=np.int64),
        state=np.zeros((ops + 1, ops + 1), dtype=np.int64),
    )
    begun, paths = np.zeros(0, dtype=np.int64), _selected(_begun(space, 0, grid, behind), np.zeros(0, dtype=np.int64))
    for op in range(ops):
        if len(begun):
            paths, _ = _extended(space, paths, op, grid, behind)
        if starts[op]:
            begun, more = np.append(begun, op), _begun(space, op, grid, behind)
            paths = _Paths(*(np.concatenate(pair) for pair in zip(paths, more, strict=True)))
        if len(begun):
            _entered(table, space, paths, begun, op, memory, behind)
            useful = np.flatnonzero(paths.time[:, 0].min(axis=1) <= slowest)
            if len(useful) < len(begun):
                begun, paths = begun[useful], _selected(paths, useful)
    return table


def traced(space: OpSpace, behind: int, start: int, end: int, grid: Grid, state: int) -> AcesoStage:
    """The stage of ops start to end - 1 that ends in `state` at the one price of `grid`."""
    paths, parents = _begun(space, start, grid, behind), list[Ints]()
    for op in range(start + 1, end):
        paths, parent = _extended(space, paths, op, grid, behind)
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


def _begun(space: OpSpace, op: int, grid: Grid, behind: int) -> _Paths:
    """The paths of one op, start x price x state."""
    price = grid.at(op / len(space.time))
    shape = (1, len(grid.prices), len(space.states))
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


def _extended(space: OpSpace, paths: _Paths, op: int, grid: Grid, behind: int) -> tuple[_Paths, Ints]:
    """The paths with `op` added, and from which state each comes."""
    price = grid.at((op - 1) / len(space.time))
    both = space.recomputed[:, None] & space.recomputed[None, :]
    drop = both & bool(space.drops[op - 1])
    saved = (price * (behind + 1) * space.size[op - 1])[:, :, None] * drop
    moved = paths.cost[..., :, None] + space.moves[space.pair[op]] - saved
    parent = moved.argmin(axis=2)
    rows, columns = np.ogrid[: moved.shape[0], : moved.shape[1]]
    at = (rows[..., None], columns[..., None], parent)
    to = np.arange(moved.shape[3])
    paired, dropped = both[parent, to], drop[parent, to]
    run = np.where(paired, paths.run[at] + space.size[op - 1][parent], paths.run[at])
    closes = ~paired | (not space.drops[op - 1])
    price = grid.at(op / len(space.time))
    grown = price * (space.state_factor * space.weights[op] + (behind + 1) * space.size[op])
    return (
        _Paths(
            cost=moved[at[0], at[1], parent, to] + space.time[op] + grown,
            time=paths.time[at] + space.moves[space.pair[op]][parent, to] + space.time[op],
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


def _entered(table: Table, space: OpSpace, paths: _Paths, begun: Ints, op: int, memory: float, behind: int) -> None:
    """Writes the ranges that end with `op`, from each of the starts `begun`."""
    reserved = np.maximum(paths.forward + paths.backward, paths.weights)
    total = (
        space.state_factor * paths.weights + (behind + 1) * paths.kept + np.maximum(paths.peak, paths.run) + reserved
    )
    time = np.where(total <= memory, paths.time + space.leave[op], np.inf).reshape(len(total), -1)
    at = time.argmin(axis=1)
    table.best[begun, op + 1] = time[np.arange(len(at)), at]
    table.price[begun, op + 1], table.state[begun, op + 1] = np.divmod(at, len(space.states))


def _selected(paths: _Paths, starts: Ints) -> _Paths:
    """The paths of these starts."""
    return _Paths(*(values[starts] for values in paths))
