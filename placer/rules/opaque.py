"""Costs of parts of a model that cannot be exported: one opaque op each, `placer::opaque`, computed whole.

A cost is stated by a person, or counted by running the part once (`placer.tracer.opaque`).
"""

from __future__ import annotations

from dataclasses import dataclass

from placer.rules.calls import Call, Value, Work

TARGET = "placer::opaque"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpaqueCost:
    """What one submodule costs forward; None is counted by running it.

    flops: per row of its first input, forward; backward counts twice as much. fixed: the same, whatever the rows.
    rows_apart: whether each row of its results depends on the same row of its inputs only, so that a batch may be split
    before it. Nobody can see that from outside: unless it is said, the batch stays whole.
    """

    flops: int | None = None
    fixed: int = 0
    rows_apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """FLOPs forward and backward of one opaque part: fixed, and per row of its first input."""

    forward: tuple[int, int]
    backward: tuple[int, int]


_COSTS: dict[str, Counted] = {}


def state_cost(name: str, cost: Counted) -> None:
    """Say what the opaque part `name` of the model that is being captured costs."""
    _COSTS[name] = cost


def opaque(call: Call) -> Work:
    """`placer::opaque(inputs, state, name)`: the FLOPs that are known of the part called `name`."""
    name, inputs = call.argument(2, "name"), call.argument(0, "inputs")
    cost = _COSTS.get(str(name))
    if cost is None or not isinstance(inputs, tuple) or not inputs or not isinstance(inputs[0], Value):
        return Work()
    rows = inputs[0].shape[0] if inputs[0].shape else 1
    trains = any(output.requires_grad for output in call.outputs)
    return Work(
        other_forward_flops=cost.forward[0] + cost.forward[1] * rows,
        other_backward_flops=cost.backward[0] + cost.backward[1] * rows if trains else 0,
    )
