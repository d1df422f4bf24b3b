"""The table of moves: name -> a function from a plan to a neighbour of it, or None where it has none of the kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TypeAlias

from placer.plans.plan import Plan
from placer.strategies.moves import choices, cuts, devices, outlined, rows
from placer.strategies.moves.neighbourhood import Neighbourhood
from placer.strategies.moves.repair import repaired

Move: TypeAlias = Callable[[Neighbourhood, Plan, Random], Plan | None]

MOVES: Mapping[str, Move] = {
    "shift cut": cuts.shift_cut,
    "shift cuts": cuts.shift_cuts,
    "recut": cuts.recut,
    "split stage": cuts.split_stage,
    "join stages": cuts.join_stages,
    "split all": cuts.split_all,
    "join all": cuts.join_all,
    "take turns": cuts.take_turns,
    "swap positions": devices.swap_positions,
    "turn positions": devices.turn_positions,
    "swap units": devices.swap_units,
    "give unit": devices.give_unit,
    "change unit": devices.change_unit,
    "relay": devices.relay,
    "relay all": devices.relay_all,
    "resize microbatches": rows.resize_microbatches,
    "move rows": rows.move_rows,
    "move rows everywhere": rows.move_rows_everywhere,
    "level rows": rows.level_rows,
    "reschedule": choices.reschedule,
    "reshard": choices.reshard,
    "reshard all": choices.reshard_all,
    "recompute one": choices.recompute_one,
    "recompute all": choices.recompute_all,
    "rebucket": choices.rebucket,
    "reshape": outlined.reshape,
}


def moved(around: Neighbourhood, plan: Plan, name: str, rng: Random) -> Plan | None:
    """The plan after a move, repaired; None where it has none of the kind, or a repair is not enough."""
    found = MOVES[name](around, plan, rng)
    return None if found is None else repaired(around, found)
