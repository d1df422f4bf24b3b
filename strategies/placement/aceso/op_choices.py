"""What the ops of an Aceso problem may do in a stage of g devices: per op and state its time, sizes and moves.

A state is (tensor degree, data degree, algorithm, recomputed or not) with tensor x data = g. In: problem, samples per
microbatch, g. Out: arrays ops x states (milliseconds, megabytes) and, between neighbours, states x states.

No stage of ops a to b - 1 is faster than this, with time and memory priced per op, each op for itself:

    bound(a, b) = max over p >= 0 of  sum_j min over states of ( time + p ((states + 1) weights + (behind + 1) size') )
                                      + transfers at both ends - p memory,        size' = 0 where recomputed

It holds because a stage needs at least (states + 1) * weights (the workspace is at least the weights) and, of each op
that is not recomputed, what it keeps; moves between neighbours cost nothing or more. The same with states * weights
and the largest workspace of any op instead; the larger of both counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from placer.placement.published_planners.aceso import RESHARDED, STATES, AcesoProblem, activations, ends_a_run
from placer.placement.published_planners.aceso_layouts import resharding
from placer.placement.published_planners.aceso_profile import UNMEASURED_MS
from placer.strategies.engine.arrays import Flags, Floats, Ints

# Milliseconds per megabyte, of the bound.
PRICES = np.concatenate(([0.0], np.geomspace(4e-4, 0.03, 8)))
# Inputs and losses are not recomputed (as in the published search).
KEPT = ("encoder-embedding", "decoder-embedding", "gpt-post-process", "t5-post-process", "conv1")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpState:
    """What an op does."""

    tensor: int
    data: int
    algo: int
    recompute: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpace:
    """All ops on g devices: `time` with recomputation, inf where not measured; `moves[pair[j]]` from op j - 1 to j.

    `drops[j]`: recomputing op j and the next drops what op j keeps. `enter` and `leave` are the transfers at the ends
    of a stage that begins or ends with the op.
    """

    states: tuple[OpState, ...]
    time: Floats
    weights: Floats
    size: Floats
    input: Floats
    forward_reserved: Floats
    backward_reserved: Floats
    enter: Floats
    leave: Floats
    moves: tuple[Floats, ...]
    pair: Ints
    drops: Flags
    recomputed: Flags
    state_factor: float


def space(problem: AcesoProblem, microbatch: int, devices: int) -> OpSpace | None:
    """The space of stages of `devices`, or None where the microbatch cannot be cut so."""
    states = tuple(
        OpState(tensor=devices // data, data=data, algo=algo, recompute=again)
        for data in (1, 2, 4, 8)
        if devices % data == 0 and microbatch % data == 0 and microbatch // data in problem.microbatches
        for algo in (0, 1)
        if any(problem.profile.measured(op, microbatch // data, devices // data, algo) for op in problem.ops[:1])
        for again in (False, True)
    )
    if not states:
        return None
    tables = {op: _op_table(problem, microbatch, op, states) for op in set(problem.ops)}
    stacked = np.stack([tables[op] for op in problem.ops])
    pairs = list(zip(problem.ops[:1] + problem.ops[:-1], problem.ops, strict=True))
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    return OpSpace(
        states=states,
        time=stacked[:, 0],
        weights=stacked[:, 1],
        size=stacked[:, 2],
        input=stacked[:, 3],
        forward_reserved=stacked[:, 4],
        backward_reserved=stacked[:, 5],
        enter=stacked[:, 6],
        leave=stacked[:, 7],
        moves=tuple(_moves(problem, microbatch, before, after, states) for before, after in numbers),
        pair=np.array([numbers[pair] for pair in pairs]),
        drops=np.array([not ends_a_run(op) for op in (*problem.ops[1:], "")]),
        recomputed=np.array([state.recompute for state in states]),
        state_factor=float(STATES[problem.family]),
    )


def _op_table(problem: AcesoProblem, microbatch: int, op: str, states: tuple[OpState, ...]) -> Floats:
    """Rows of `OpSpace` for one op, over states."""
    columns = []
    for state in states:
        samples = microbatch // state.data
        cost = problem.profile.cost(op, samples, state.tensor, state.algo)
        possible = problem.profile.measured(op, samples, state.tensor, state.algo) and not (
            state.recompute and op in KEPT
        )
        again = cost.forward_us if state.recompute else 0.0
        columns.append(
            (
                (cost.forward_us + cost.backward_us + again) / 1000 if possible else np.inf,
                cost.weights_MB,
                activations(op, cost),
                cost.input_MB,
                cost.forward_reserved_MB,
                cost.backward_reserved_MB,
                problem.profile.transfer_us(cost.input_MB, between_nodes=False) / 1000,
                problem.profile.transfer_us(cost.output_MB, between_nodes=False) / 1000,
            )
        )
    return np.array(columns).T


def _moves(problem: AcesoProblem, microbatch: int, before: str, after: str, states: tuple[OpState, ...]) -> Floats:
    """Milliseconds from a state of `before` to one of `after`, forward and backward."""

    @cache
    def between(given: OpState, taken: OpState) -> float:
        found = resharding(
            (before, given.tensor, given.data, given.algo), (after, taken.tensor, taken.data, taken.algo)
        )
        if found is None or problem.family not in RESHARDED:
            return 0.0
        size = problem.profile.cost(after, microbatch // taken.data, taken.tensor, taken.algo).input_MB
        kinds = (found.forward, found.backward)
        total = sum(problem.profile.collective_ms(kind, found.devices, size) for kind in kinds)
        return total if total < UNMEASURED_MS else np.inf

    return np.array([[between(given, taken) for taken in states] for given in states])


def lower_bounds(space: OpSpace, memory: float, behind: int) -> Floats:
    """[a, b]: milliseconds that a stage of ops a to b - 1 takes at least; inf where a >= b."""
    ops = len(space.time)
    bound, one = np.zeros((ops + 1, ops + 1)), np.empty((ops + 1, ops + 1))
    kept = (behind + 1) * np.where(space.recomputed, 0.0, space.size)
    workspace = _workspace(space)
    for price in PRICES:
        light = space.time + price * (space.state_factor * space.weights + kept)
        for per_op, other in ((light + price * space.weights, None), (light, workspace)):
            total = np.concatenate(([0.0], np.cumsum(per_op.min(axis=1))))
            np.subtract((total - price * memory)[None, :], total[:, None], out=one)
            if other is not None:
                one += price * other
            np.maximum(bound, one, out=bound)
    bound[:-1, :] += space.enter.min(axis=1)[:, None]
    bound[:, 1:] += space.leave.min(axis=1)[None, :]
    bound[np.tril_indices(ops + 1)] = np.inf
    return bound


def _workspace(space: OpSpace) -> Floats:
    """[a, b]: the workspace that ops a to b - 2 need at least (the last op's is not counted)."""
    ops = len(space.time)
    found = np.zeros((ops + 1, ops + 1))
    for values in (space.forward_reserved.min(axis=1), space.backward_reserved.min(axis=1)):
        for a in range(ops - 1):
            found[a, a + 2 :] += np.maximum.accumulate(values[a:-1])
    return found
