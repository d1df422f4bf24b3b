"""The table of moves: name -> a function from a plan to a neighbour of it, or None where it has none of the kind.

How often a kind is tried before anything is known of it says `often`: choices of a stage are many, cheap to evaluate
and matter everywhere; shapes of single positions are dear: what crosses between unlike ones is priced part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple, TypeAlias

from placer.plans.plan import Plan
from placer.strategies.moves import branches, choices, cuts, devices, outlined, rows
from placer.strategies.moves.neighbourhood import Neighbourhood, is_graph
from placer.strategies.moves.repair import repaired

Move: TypeAlias = Callable[[Neighbourhood, Plan, Random], Plan | None]


# A kind of moves that led to better plans is tried so much oftener.
MOST_OFTEN = 8.0


class Kind(NamedTuple):
    """A kind of moves, and how often it is tried beside the others."""

    move: Move
    often: float = 1.0


MOVES: Mapping[str, Kind] = {
    "shift cut": Kind(cuts.shift_cut, 4.0),
    "shift cuts": Kind(cuts.shift_cuts, 2.0),
    "recut": Kind(cuts.recut),
    "split stage": Kind(cuts.split_stage),
    "join stages": Kind(cuts.join_stages),
    "split all": Kind(cuts.split_all),
    "join all": Kind(cuts.join_all),
    "take turns": Kind(cuts.take_turns),
    "swap positions": Kind(devices.swap_positions),
    "turn positions": Kind(devices.turn_positions),
    "swap units": Kind(devices.swap_units),
    "give unit": Kind(devices.give_unit),
    "change unit": Kind(devices.change_unit),
    "relay": Kind(devices.relay),
    "relay all": Kind(devices.relay_all),
    "resize microbatches": Kind(rows.resize_microbatches, 2.0),
    "move rows": Kind(rows.move_rows),
    "move rows everywhere": Kind(rows.move_rows_everywhere),
    "level rows": Kind(rows.level_rows),
    "reschedule": Kind(choices.reschedule),
    "reshard": Kind(choices.reshard),
    "reshard all": Kind(choices.reshard_all),
    "recompute one": Kind(choices.recompute_one, 2.0),
    "recompute all": Kind(choices.recompute_all),
    "recompute part": Kind(choices.recompute_part),
    "rebucket": Kind(choices.rebucket),
    "reshape": Kind(outlined.reshape, 0.25),
}


# Of a plan whose stages are a graph.
OF_GRAPHS: Mapping[str, Kind] = {
    "move run": Kind(branches.move_run, 12.0),
    "swap runs": Kind(branches.swap_runs, 3.0),
    "part stage": Kind(branches.part_stage, 2.0),
    "merge stages": Kind(branches.merge_stages, 2.0),
    "join positions": Kind(branches.join_positions),
    "split position": Kind(branches.split_position),
    **{
        name: MOVES[name]
        for name in (
            "swap positions", "swap units", "give unit", "change unit", "relay", "relay all", "resize microbatches",
            "move rows", "move rows everywhere", "level rows", "reshard", "reshard all", "recompute one",
            "recompute all", "recompute part", "reshape",
        )
    },
}  # fmt: skip
# Of a chain of stages where a graph of them may be faster.
BRANCHING: Mapping[str, Kind] = {**MOVES, "branch": Kind(branches.branch, 4.0)}


def kinds(around: Neighbourhood, plan: Plan) -> Mapping[str, Kind]:
    """The moves that a plan has."""
    if is_graph(plan):
        return OF_GRAPHS
    return BRANCHING if around.branches else MOVES


def moved(around: Neighbourhood, plan: Plan, name: str, rng: Random) -> Plan | None:
    """The plan after a move, repaired; None where it has none of the kind, or a repair is not enough."""
    kind = kinds(around, plan).get(name)
    found = None if kind is None else kind.move(around, around.known(plan), rng)
    return None if found is None else repaired(around, found)


def drawn(allowed: Mapping[str, Kind], rng: Random, gains: Mapping[str, int]) -> str:
    """A kind of moves, those oftener that led to better plans."""
    weights = [kind.often * min(MOST_OFTEN, 1.0 + gains.get(name, 0)) for name, kind in allowed.items()]
    return rng.choices(tuple(allowed), weights)[0]
