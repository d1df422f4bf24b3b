"""Descent: from a plan to better ones next to it, until so many moves in a row lead to none."""

from __future__ import annotations

from placer.strategies.moves.walk import Seen, Walk

# Moves in a row without a better plan after which a plan counts as the best around: so many, and more for each stage.
PATIENCE, PATIENCE_PER_STAGE = 120, 12


def descended(walk: Walk, start: Seen, patience: int | None = None) -> Seen:
    """The best plan that better and better neighbours lead to from `start`."""
    found, failed = start, 0
    while not walk.over:
        enough = PATIENCE + PATIENCE_PER_STAGE * len(found.plan.stages) if patience is None else patience
        if failed >= enough:
            break
        made = walk.neighbour(found)
        if made is not None and made.better(found):
            found, failed = made, 0
        else:
            failed += 1
    return found
