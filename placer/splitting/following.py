"""followed(kind, ...): a split of a block class, some ops cut as wished and the others lying as their neighbours do.

Op by op, in order: of the choices of the wished name, or of all that fit, the one that makes the fewest elements move

    moved(choice) = sum over arguments of elements * (collectives of the value forward and of its gradient back)

where work that every device repeats counts a little: a product done alike on all devices a quarter of an element.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod

from placer.graph import Affine, BlockClass, Op, Parameter, Tensor
from placer.plans import Split
from placer.rules import block_choices, call_of, tensor_arguments
from placer.rules.layouts import SAME, Choice, Cut, State, conversion
from placer.rules.splits import legal
from placer.splitting.edges import border_state

#: What to do with the ops of a class: name of the op -> name of its choice.
Wishes = Mapping[str, str]

# At how many rows of the batch sizes are compared.
ROWS = 4


def followed(kind: BlockClass, degree: int, wishes: Wishes, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Split:
    """The split of a class over `degree` devices whose border lies as `inputs` and `outputs` say."""
    states: dict[str, State] = {f"i{index}": border_state(text) for index, text in enumerate(inputs)}
    chosen: list[str] = []
    for index, (op, known) in enumerate(zip(kind.ops, block_choices(kind), strict=True)):
        usable = [choice for choice in known if choice.name == wishes.get(op.name)]
        usable = usable or [choice for choice in known if fits(kind, op, choice, degree)]
        choice = min(usable, key=lambda choice: _moved(kind, op, choice, states))
        chosen.append(choice.name)
        states |= {f"o{index}.{k}": state for k, state in enumerate(choice.outputs)}
    return Split(choices=tuple(chosen), inputs=inputs, outputs=outputs)


def fits(kind: BlockClass, op: Op, choice: Choice, degree: int) -> bool:
    """Whether a choice cuts neither dims that grow with the rows nor rows in an order of a rank's own, and is legal."""
    pairs = (
        *zip(map(kind.tensor, tensor_arguments(op)), choice.inputs, strict=True),
        *zip(op.outputs, choice.outputs, strict=True),
    )
    for tensor, state in pairs:
        if isinstance(state.value, Cut):
            size = tensor.shape[state.value.dim]
            if state.value.own or (isinstance(size, Affine) and size.per_row):
                return False
    return legal(choice, call_of(kind, op, ROWS), degree)


def _moved(kind: BlockClass, op: Op, choice: Choice, states: dict[str, State]) -> tuple[float, int]:
    moved = 0.0
    for reference, want in zip(tensor_arguments(op), choice.inputs, strict=True):
        tensor = kind.tensor(reference)
        if isinstance(tensor, Parameter):
            continue
        have = states.get(reference, SAME)
        back = conversion(want.gradient, have.gradient) if tensor.requires_grad else ""
        words = (conversion(have.value, want.value), back)
        moved += inf if "none" in words else sum(1.0 for word in words if word) * prod(_shape(tensor))
    works = op.kind in ("matmul", "attention", "convolution") and choice.name in ("whole", "deferred")
    return moved + (0.25 if works else 0.0), choice.name in ("whole", "deferred")


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tensor.shape_at(ROWS)
