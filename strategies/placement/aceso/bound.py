"""No stage of ops a to b - 1 is faster than this: time and memory priced per op, each op for itself.

    bound(a, b) = max over p >= 0 of  sum_j min over states of ( time + p ((states + 1) weights + (behind + 1) size') )
                                      + transfers at both ends - p memory,        size' = 0 where recomputed

It holds because a stage needs at least (states + 1) * weights (the workspace is at least the weights) and, of each op
that is not recomputed, what it keeps; moves between neighbours cost nothing or more. The same with states * weights
and the largest workspace of any op instead; the larger of both counts.
"""

from __future__ import annotations

import numpy as np

from placer.strategies.engine.arrays import Floats
from placer.strategies.placement.aceso.op_choices import OpSpace

# Milliseconds per megabyte.
PRICES = np.concatenate(([0.0], np.geomspace(4e-4, 0.03, 8)))


def lower_bounds(space: OpSpace, memory: float, behind: int) -> Floats:
    """[a, b]: milliseconds that a stage of ops a to b - 1 takes at least; inf where a >= b."""
    ops = len(space.time)
    bound, one = np.zeros((ops + 1, ops + 1)), np.empty((ops + 1, ops + 1))
    kept = (behind + 1) * np.where(space.recomputed, 0.0, space.size)
    workspace = _workspace(space)
    for price in PRICES:
        light = space.time + price * (space.state_factor * space.weights + kept)
        for per_op, other in ((light + price * space.weights, None), (light, workspace)):
            total = _running(per_op)
            np.subtract((total - price * memory)[None, :], total[:, None], out=one)
            if other is not None:
                one += price * other
            np.maximum(bound, one, out=bound)
    bound[:-1, :] += space.enter.min(axis=1)[:, None]
    bound[:, 1:] += space.leave.min(axis=1)[None, :]
    bound[np.tril_indices(ops + 1)] = np.inf
    return bound


def _running(per_op: Floats) -> Floats:
    """The sums over the ops before each, of the least over states."""
    return np.concatenate(([0.0], np.cumsum(per_op.min(axis=1))))


def _workspace(space: OpSpace) -> Floats:
    """[a, b]: the workspace that ops a to b - 2 need at least (the last op's is not counted)."""
    ops = len(space.time)
    found = np.zeros((ops + 1, ops + 1))
    for values in (space.forward_reserved.min(axis=1), space.backward_reserved.min(axis=1)):
        for a in range(ops - 1):
            found[a, a + 2 :] += np.maximum.accumulate(values[a:-1])
    return found
