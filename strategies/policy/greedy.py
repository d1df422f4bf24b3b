"""Greedy list scheduling: device after device takes blocks, in order, until it has its share of the seconds.

One replica of the whole model as a pipeline (as few replicas as pins allow), enough microbatches, 1F1B, no shards; what
a policy is measured against, and the reference of its rewards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from placer.plans.plan import Plan
from placer.strategies.policy.game import Game, State
from placer.strategies.policy.outline_options import FIELDS
from placer.strategies.space.outline import Outline, recomputes


def greedy_plans(game: Game) -> Iterator[Plan]:
    """The plan of every number of positions, without recompute and with; of a game that has a start."""
    for outline in _outlines(game):
        for again in recomputes(game.problem):
            state = State(len(FIELDS), outline)
            while not state.finished:
                end = game.level_end(state)
                state = replace(state, ends=(*state.ends, end), recompute=(*state.recompute, again))
            yield game.plan(state)


def _outlines(game: Game) -> Iterator[Outline]:
    """Of every number of positions the one with fewest replicas."""
    first = game.outlines.of(FIELDS.index("layout"), game.outlines.blank)[0]
    for positions in game.outlines.of(FIELDS.index("positions"), first):
        yield game.outlines.of(FIELDS.index("replicas"), positions)[0]
