"""The experts of a block in an order of the plan's: who holds which, in the choices of products and of what they read.

A product of experts whose weights are cut takes them in that order. What makes the weights (a transpose, a cast) and
keeps each expert apart is cut in the same order, up to the parameter, of which each device then holds its experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from placer.errors import UsageError
from placer.graph import BlockClass, Op
from placer.plans.plan import Split
from placer.rules.expert_loads import experts_of
from placer.rules.graph_calls import call_of, tensor_arguments
from placer.rules.layouts import Choice, Cut, State
from placer.rules.splits.fused_dims import alike
from placer.rules.two_axis_layouts import axis_names

# The choices that cut a product of experts on the experts.
APART = frozenset(
    {"experts", "at experts", *(f"own rows, {how}" for how in ("experts apart", "to experts", "from experts"))}
)
# Any number of rows: whether an op treats all experts alike does not depend on it.
ROWS = 4


def ordered(block_class: BlockClass, choices: tuple[Choice, ...], order: tuple[int, ...]) -> tuple[Choice, ...]:
    """The choices with experts in that order. Raises UsageError where it is not one of the experts of some product."""
    found, wanted = list(choices), dict[str, int]()  # of values, the dim that is cut in that order
    for index in reversed(range(len(block_class.ops))):
        op, choice = block_class.ops[index], found[index]
        experts = experts_of(block_class, op)
        if experts and choice.name in APART:
            if sorted(order) != list(range(experts)):
                raise UsageError(
                    f"a split orders {len(order)} experts, op {op.name} has {experts}; each of them must be named once"
                )
            states = (choice.inputs[0], _in(choice.inputs[1], order), *choice.inputs[2:])
            found[index] = replace(choice, inputs=states)
            wanted |= _cuts(tensor_arguments(op)[1:2], states[1:2])
        elif _cuts((f"o{index}.0",), choice.outputs[:1]).items() & wanted.items() and _alike(block_class, op, choice):
            states = tuple(_in(state, order) for state in choice.inputs)
            found[index] = replace(choice, inputs=states, outputs=(_in(choice.outputs[0], order),))
            wanted |= _cuts(tensor_arguments(op), states)
    return tuple(found)


def _cuts(references: Sequence[str], states: Sequence[State]) -> dict[str, int]:
    """Of those that are cut, the dim."""
    pairs = zip(references, (state.value for state in states), strict=True)
    return {reference: lay.dim for reference, lay in pairs if isinstance(lay, Cut)}


def _alike(block_class: BlockClass, op: Op, choice: Choice) -> bool:
    """Whether an op has one result and does the same with each index of what is cut."""
    return len(op.outputs) == 1 and alike(call_of(block_class, op, ROWS), choice)


def cut_experts(block_class: BlockClass, split: Split) -> int:
    """The experts of a block's products that a split divides among the devices; 0 where it divides none."""
    pairs = zip(block_class.ops, split.choices, strict=True)
    return max((experts_of(block_class, op) for op, name in pairs if not APART.isdisjoint(axis_names(name))), default=0)


def expert_devices(split: Split, degree: int) -> int:
    """Over how many of the devices of a replica of `degree` a split divides experts."""
    if split.inner == 1:
        return degree
    along = (axis_names(name) for name in split.choices)
    return split.inner if any(names[-1] in APART for names in along) else degree // split.inner


def _in(state: State, order: tuple[int, ...]) -> State:
    lay = state.value
    return State(lay._replace(order=order), lay._replace(order=order)) if isinstance(lay, Cut) else state
