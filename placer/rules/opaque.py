"""Costs of parts of a model that cannot be exported: one opaque op each, `placer::opaque`, computed whole.

A cost is stated by a person, or counted by running the part once (`placer.tracer.export.opaque`).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from placer.graph import Op
from placer.rules.calls import Call, Value, Work

TARGET = "placer::opaque"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpaqueCost:
    """What one submodule costs forward; backward counts twice as much. What is None is counted by running it.

    flops: per row of its first input. fixed: the same, whatever the rows. seconds: per row, on the devices planned for,
    instead of what FLOPs and bytes would take. timed: seconds are those of running it on this machine.
    rows_apart: whether each row of its results depends on the same row of its inputs only, so that a batch may be split
    before it. Nobody can see that from outside: unless it is said, the batch stays whole.
    """

    flops: int | None = None
    fixed: int = 0
    seconds: float | None = None
    timed: bool = False
    rows_apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """FLOPs forward and backward of one opaque part, and its forward seconds where they are known: fixed, and per row
    of its first input."""

    forward: tuple[int, int]
    backward: tuple[int, int]
    seconds: tuple[float, float] | None = None


_COSTS: dict[str, Counted] = {}


def is_part(op: Op) -> bool:
    """Whether an op is an opaque part."""
    return op.target.startswith(f"{TARGET.replace('::', '.')}.")


def part_name(op: Op) -> str:
    """The name of the module that an opaque part is."""
    return str(ast.literal_eval(op.arguments.rpartition(", ")[2]))


def state_cost(name: str, cost: Counted) -> None:
    """Say what the opaque part `name` of the model that is being captured costs."""
    _COSTS[name] = cost


def stated_seconds(call: Call) -> float | None:
    """Forward seconds of a call of `placer::opaque`, where they are known."""
    cost, rows = _cost_and_rows(call)
    return None if cost is None or cost.seconds is None else cost.seconds[0] + cost.seconds[1] * rows


def opaque(call: Call) -> Work:
    """`placer::opaque(inputs, state, name)`: the FLOPs that are known of the part called `name`."""
    cost, rows = _cost_and_rows(call)
    if cost is None:
        return Work()
    trains = any(output.requires_grad for output in call.outputs)
    return Work(
        other_forward_flops=cost.forward[0] + cost.forward[1] * rows,
        other_backward_flops=cost.backward[0] + cost.backward[1] * rows if trains else 0,
    )


def _cost_and_rows(call: Call) -> tuple[Counted | None, int]:
    name, inputs = call.argument(2, "name"), call.argument(0, "inputs")
    if not isinstance(inputs, tuple) or not inputs or not isinstance(inputs[0], Value):
        return None, 0
    return _COSTS.get(str(name)), inputs[0].shape[0] if inputs[0].shape else 1
