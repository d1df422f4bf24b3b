"""followed(block_class, ...): a split of it, some ops cut as wished and the others lying as their neighbours do.

Op by op, in order: of the choices of the wished name, or of all that fit, the one that makes the fewest elements move

    moved(choice) = sum over arguments of elements * (collectives of the value forward and of its gradient back)

where work that every device repeats counts a little: a product done alike on all devices a quarter of an element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod

from placer.graph import Affine, BlockClass, Op, Parameter
from placer.plans.plan import Split
from placer.rules.graph_calls import call_of, tensor_arguments
from placer.rules.layouts import SAME, Choice, State, conversion
from placer.rules.splits.block_choices import block_choices
from placer.rules.splits.localise import cuttable
from placer.rules.two_axis_layouts import axis_names, combined, pieces, steps
from placer.spmd.layout_conversions import border_state

#: What to do with the ops of a class: name of the op -> name of its choice.
Wishes = Mapping[str, str]

# At how many rows of the batch sizes are compared.
ROWS = 4


def followed(
    block_class: BlockClass, degree: int, wishes: Wishes, inputs: tuple[str, ...], outputs: tuple[str, ...], *,
    outer: Split | None = None, fast: int = 1,
) -> Split:  # fmt: skip
    """The split of a class over `degree` devices whose border lies as `inputs` and `outputs` say.

    With `outer`, how the class is cut along the outer axis of two, it is cut again along the inner one, of `fast` of
    the devices; wishes and what follows them are then of this one.
    """
    states: dict[str, State] = {f"i{index}": border_state(text, fast) for index, text in enumerate(inputs)}
    chosen: list[str] = []
    for index, (op, known) in enumerate(zip(block_class.ops, block_choices(block_class), strict=True)):
        every = known if outer is None else _cut_again(known, outer.choices[index], fast)
        usable = [choice for choice in every if axis_names(choice.name)[-1] == wishes.get(op.name)]
        usable = usable or [choice for choice in every if fits(block_class, op, choice, degree)]
        choice = min(usable, key=lambda choice: _moved(block_class, op, choice, states))
        chosen.append(choice.name)
        states |= {f"o{index}.{k}": state for k, state in enumerate(choice.outputs)}
    return Split(choices=tuple(chosen), inputs=inputs, outputs=outputs, inner=fast)


def _cut_again(known: Sequence[Choice], outer: str, fast: int) -> list[Choice]:
    """What an op that is cut as `outer` along the outer axis may do along both."""
    first = next(choice for choice in known if choice.name == outer)
    pairs = (combined(first, choice, fast) for choice in known)
    return [choice for choice in pairs if choice is not None]


def fits(block_class: BlockClass, op: Op, choice: Choice, degree: int) -> bool:
    """Whether a choice cuts neither dims that grow with the rows nor rows in an order of a rank's own, and is legal."""
    pairs = (
        *zip(map(block_class.tensor, tensor_arguments(op)), choice.inputs, strict=True),
        *zip(op.outputs, choice.outputs, strict=True),
    )
    for tensor, state in pairs:
        for lay, *_ in pieces(state.value, degree, 0):
            size = tensor.shape[lay.dim]
            if lay.own or (isinstance(size, Affine) and size.per_row):
                return False
    return cuttable(choice, call_of(block_class, op, ROWS), degree)


def _moved(block_class: BlockClass, op: Op, choice: Choice, states: dict[str, State]) -> tuple[float, int]:
    moved = 0.0
    for reference, want in zip(tensor_arguments(op), choice.inputs, strict=True):
        tensor = block_class.tensor(reference)
        if isinstance(tensor, Parameter):
            continue
        for step in steps(states.get(reference, SAME), want):
            back = conversion(step.want.gradient, step.have.gradient) if tensor.requires_grad else ""
            words = (conversion(step.have.value, step.want.value), back)
            moved += inf if "none" in words else sum(1.0 for word in words if word) * prod(tensor.shape_at(ROWS))
    whole = sum(name in ("whole", "deferred") for name in axis_names(choice.name))
    works = op.kind in ("matmul", "attention", "convolution")
    return moved + (0.25 * whole if works else 0.0), whole
