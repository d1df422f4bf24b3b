"""Where layouts disagree inside a block: which value must be converted from which state to which, and for whom.

A value has the state its maker gives it; each user wants one. All users that want the same state share one conversion,
so that their gradients are added up before these are converted back.

A parameter is kept in the state its users want: its piece where all of them want the same piece, else all of it. It is
`SHARED` where all want it so: its gradient is then a part on each rank, summed once a step and not for every
microbatch. Where users disagree it is kept whole and converted for each.
"""

from __future__ import annotations

from dataclasses import dataclass

from placer.errors import UsageError
from placer.graph import BlockClass, Op, Parameter
from placer.io.refusals import short
from placer.plans.plan import Split
from placer.rules.graph_calls import tensor_arguments
from placer.rules.layouts import SAME, SHARED, Choice, Cut, State, cut
from placer.rules.splits.block_choices import block_choices
from placer.rules.two_axis_layouts import INNER, OUTER, axis_names, both_states, combined, lies_clear, state_along
from placer.spmd.expert_order import ordered

# The user of a value that leaves the block: (LEAVES, output).
LEAVES = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """`reference` (local: `i2`, `o5.0`, `p1`) becomes `want` for `users`: op and number of the tensor argument."""

    reference: str
    have: State
    want: State
    users: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Choices of all ops of a class, the states its parameters are kept in, and the conversions in order of need."""

    choices: tuple[Choice, ...]
    parameters: tuple[State, ...]
    conversions: tuple[Conversion, ...]


def border_state(text: str, inner: int = 1) -> State:
    """The state that a `Split` writes as "whole" or "cut 1", along two axes as "cut 2 / whole", the inner of `inner`
    devices. Raises UsageError for any other text."""
    names = axis_names(text)
    if inner > 1 and len(names) == 2:
        state = both_states(border_state(names[0]), border_state(names[1]), inner)
        if lies_clear(state):
            return state
        raise UsageError(f"a split's border says {short(repr(text))}; along two axes two dims are cut")
    if text == "whole":
        return SAME
    word, _, dim = text.partition(" ")
    if word != "cut" or not dim.isdigit():
        raise UsageError(f"a split's border says {short(repr(text))}; it can be whole or cut and a dim, such as cut 1")
    return cut(int(dim))


def edges(block_class: BlockClass, split: Split) -> Edges:
    """The choices and conversions of a split block class. Raises UsageError for a split of another class."""
    choices = chosen(block_class, split)
    wants = _wants(block_class, split, choices)
    parameters = tuple(_kept(wants.get(f"p{index}", {})) for index in range(len(block_class.parameters)))
    have = {f"i{index}": border_state(text, split.inner) for index, text in enumerate(split.inputs)}
    have |= {f"p{index}": state for index, state in enumerate(parameters)}
    have |= {f"o{index}.{k}": state for index, choice in enumerate(choices) for k, state in enumerate(choice.outputs)}
    found = [
        Conversion(reference=reference, have=have[reference], want=want, users=tuple(users))
        for reference, wanted in wants.items()
        for want, users in wanted.items()
        if _differs(block_class, reference, have[reference], want)
    ]
    return Edges(
        choices=choices, parameters=parameters, conversions=tuple(sorted(found, key=lambda one: _need(one.users)))
    )


def chosen(block_class: BlockClass, split: Split) -> tuple[Choice, ...]:
    """The choice of each op by its name, products of experts with the split's order of experts."""
    sizes = (len(split.choices), len(split.inputs), len(split.outputs))
    wanted = (len(block_class.ops), len(block_class.inputs), len(block_class.outputs))
    if sizes != wanted:
        raise UsageError(f"a split names {sizes} ops, inputs and outputs, its block class has {wanted}; plan again")
    if split.inner == 1:
        return _along(block_class, split, split.choices)
    pairs = [axis_names(name) for name in split.choices]
    if any(len(pair) != 2 for pair in pairs):
        raise UsageError("a split along two axes names two choices for each op, such as 'space 0 / space 1'")
    outer, inner = (_along(block_class, split, names) for names in zip(*pairs, strict=True)) if pairs else ((), ())
    return tuple(map(_combined, block_class.ops, outer, inner, (split.inner,) * len(pairs)))


def _combined(op: Op, outer: Choice, inner: Choice, fast: int) -> Choice:
    found = combined(outer, inner, fast)
    if found is None:
        raise UsageError(
            f"op {op.name} ({op.target}) cannot be cut as {short(outer.name)!r} along one axis and "
            f"{short(inner.name)!r} along the other; let it be whole along one of them"
        )
    return found


def _along(block_class: BlockClass, split: Split, names: tuple[str, ...]) -> tuple[Choice, ...]:
    """The choice of each op along one axis."""
    known = block_choices(block_class)
    named = tuple(_choice(op, name, found) for op, name, found in zip(block_class.ops, names, known, strict=True))
    return ordered(block_class, named, split.experts) if split.experts else named


def _choice(op: Op, name: str, found: tuple[Choice, ...]) -> Choice:
    for choice in found:
        if choice.name == name:
            return choice
    raise UsageError(
        f"op {op.name} ({op.target}) cannot be cut as {short(name)!r}; its rules know "
        f"{', '.join(choice.name for choice in found)}; "
        "a split rule of your own is registered where its module is imported: import that first"
    )


def _wants(
    block_class: BlockClass, split: Split, choices: tuple[Choice, ...]
) -> dict[str, dict[State, list[tuple[int, int]]]]:
    """For each value the states it is wanted in, with the users that want them."""
    found: dict[str, dict[State, list[tuple[int, int]]]] = {}
    for index, (op, choice) in enumerate(zip(block_class.ops, choices, strict=True)):
        for number, (reference, state) in enumerate(zip(tensor_arguments(op), choice.inputs, strict=True)):
            found.setdefault(reference, {}).setdefault(state, []).append((index, number))
    for output, (reference, text) in enumerate(zip(block_class.outputs, split.outputs, strict=True)):
        found.setdefault(reference, {}).setdefault(border_state(text, split.inner), []).append((LEAVES, output))
    return found


def _kept(wanted: dict[State, list[tuple[int, int]]]) -> State:
    """The state a parameter is kept in."""
    if len(wanted) == 1:
        only = next(iter(wanted))
        if keepable(only):
            return only
    return SAME


def keepable(state: State) -> bool:
    """Whether a parameter can be kept so: whole or in pieces, along each axis."""
    return all(
        one in (SAME, SHARED) or (isinstance(one.value, Cut) and not one.value.own)
        for one in (state_along(state, axis) for axis in (OUTER, INNER))
    )


def _differs(block_class: BlockClass, reference: str, have: State, want: State) -> bool:
    """Whether something must be done: of a value without gradient only its own layout counts."""
    if have.value != want.value:
        return True
    tensor = block_class.tensor(reference)
    trains = tensor.trainable and not tensor.buffer if isinstance(tensor, Parameter) else tensor.requires_grad
    return trains and have.gradient != want.gradient


def _need(users: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """Where a conversion stands: before its first user, those of the border last."""
    return min((op if op != LEAVES else 1 << 30, number) for op, number in users)
