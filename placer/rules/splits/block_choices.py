"""What each op of a block class may do along one axis, seen beside the ops around it.

Choices follow from the op's call and the rules that are registered when they are asked for; a Graph does not keep them,
so that a rule added later serves graphs made earlier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache

from placer.graph import BlockClass, Op
from placer.rules.calls import MARKED_ROWS, Call
from placer.rules.cut_sizes import legal
from placer.rules.graph_calls import call_of, tensor_arguments, writes_state
from placer.rules.layouts import SAME, Choice, Cut, Lay, is_own
from placer.rules.patterns import whole
from placer.rules.registry import SPLITS, SplitRule, own_choices, registrations, split_choices
from placer.rules.splits.fused_dims import divided, in_blocks, in_parts, merged
from placer.rules.splits.own_orders import ARANGE, Orders


def op_choices(block_class: BlockClass, op: Op) -> tuple[Choice, ...]:
    """Every way to do an op of a block class along one axis, whatever the rows; `legal` says what a degree allows.

    Of an op whose arguments were not kept nothing is known: it is computed whole.
    """
    call = call_of(block_class, op, MARKED_ROWS)
    return _choices(call, op.arguments, registrations()) if op.arguments or not op.inputs else (whole(call),)


# Few of a model's ops are unlike. What is written tells numbers apart that are equal, as 1 and True.
@lru_cache(maxsize=16384)
def _choices(call: Call, _written: str, _registrations: int) -> tuple[Choice, ...]:
    return split_choices(call)


def block_choices(block_class: BlockClass) -> tuple[tuple[Choice, ...], ...]:
    """For each op of a class its choices, with those that only make sense beside the ops around it.

    Rows in each rank's own order are offered where such rows come from, dims in parts where they are divided later,
    tokens in blocks from where they are put into one dim. What writes into a buffer is done on all of it.
    """
    for known, rules, found in _KNOWN:
        if known is block_class and rules == SPLITS:
            return found
    _KNOWN.append((block_class, dict(SPLITS), _block_choices(block_class)))
    return _KNOWN[-1][2]


# What was asked for last, with the rules that were registered then: searches ask for each class under every layout.
_KNOWN: deque[tuple[BlockClass, dict[str, SplitRule], tuple[tuple[Choice, ...], ...]]] = deque(maxlen=64)


def _block_choices(block_class: BlockClass) -> tuple[tuple[Choice, ...], ...]:
    calls = [call_of(block_class, op, MARKED_ROWS) if op.arguments else None for op in block_class.ops]
    own, parts, blocks = _own(block_class, calls), _in_parts(block_class, calls), _in_blocks(block_class, calls)
    return tuple(
        _storable(block_class, op, (*op_choices(block_class, op), *own[at], *parts[at], *blocks[at]))
        for at, op in enumerate(block_class.ops)
    )


def _storable(block_class: BlockClass, op: Op, choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """The choices whose result can be put where the op writes it: a buffer is kept whole, as others may read it."""
    if not writes_state(block_class, op):
        return choices
    return tuple(one for one in choices if all(state == SAME for state in (one.inputs[0], *one.outputs)))


def _own(block_class: BlockClass, calls: Sequence[Call | None]) -> list[tuple[Choice, ...]]:
    known: dict[str, set[Lay]] = {}
    # Numbers that another block made are taken for those of rows; whether they are, `borrowed_numbers` tells.
    orders = Orders(known=dict.fromkeys(numbered_inputs(block_class), ARANGE))
    found = []
    for number, (op, call) in enumerate(zip(block_class.ops, calls, strict=True)):
        references = tensor_arguments(op)
        every: tuple[Choice, ...] = ()
        if call is not None and orders.follow(op, call, number):
            every = own_choices(call)
        found.append(tuple(one for one in every if _reached(one, references, known)))
        for choice in found[-1]:
            for output, state in enumerate(choice.outputs):
                if is_own(state.value):
                    known.setdefault(f"o{number}.{output}", set()).add(state.value)
    return found


def numbered_inputs(block_class: BlockClass) -> list[str]:
    """The inputs of a block that may be numbers of rows."""
    found = enumerate(block_class.inputs)
    return [f"i{at}" for at, one in found if one.dtype == "int64" and len(one.shape) == 1]


def _in_parts(block_class: BlockClass, calls: Sequence[Call | None]) -> list[tuple[Choice, ...]]:
    """Backwards from the ops that divide a dim: whatever makes their input may cut it in the same parts."""
    wished: dict[str, set[Cut]] = {}
    found: list[tuple[Choice, ...]] = []
    for number in reversed(range(len(block_class.ops))):
        call = calls[number]
        wishes = wished.get(f"o{number}.0", set()) if len(block_class.ops[number].outputs) == 1 else set()
        every = () if call is None else (*divided(call), *_granted(call, wishes))
        for choice in every:
            for reference, state in zip(tensor_arguments(block_class.ops[number]), choice.inputs, strict=True):
                if isinstance(state.value, Cut):
                    wished.setdefault(reference, set()).add(state.value)
        found.append(every)
    return found[::-1]


def _in_blocks(block_class: BlockClass, calls: Sequence[Call | None]) -> list[tuple[Choice, ...]]:
    """From the reshapes that put the tokens of all rows into one dim on."""
    known: dict[str, set[int]] = {}
    found = []
    for number, (op, call) in enumerate(zip(block_class.ops, calls, strict=True)):
        taken = [known.get(reference, set()) for reference in tensor_arguments(op)]
        every = set().union(*taken)
        batched = call is not None and any(one.shape[:1] and one.shape[0] % MARKED_ROWS == 0 for one in call.tensors)
        made = [one for one in merged(call) if _starts(one, taken)] if call is not None and batched else []
        if call is not None and every:
            for one in split_choices(call):
                blocked = (in_blocks(call, one, size) for size in sorted(every))
                made.extend(found for found in blocked if found is not None and legal(found, call, 1))
        found.append(tuple(made))
        for choice in made:
            for output, state in enumerate(choice.outputs):
                if isinstance(state.value, Cut) and state.value.every:
                    known.setdefault(f"o{number}.{output}", set()).add(state.value.every)
    return found


def _starts(choice: Choice, taken: Sequence[set[int]]) -> bool:
    """Whether a reshape makes blocks, or takes such as are there."""
    lay = choice.inputs[0].value
    return isinstance(lay, Cut) and (not lay.every or lay.every in taken[0])


def _granted(call: Call, wishes: set[Cut]) -> Iterator[Choice]:
    for wish in sorted(one for one in wishes if one.parts > 1):
        for choice in split_choices(call):
            lay = choice.outputs[0].value
            if isinstance(lay, Cut) and lay.dim == wish.dim:
                made = in_parts(call, choice, wish.parts)
                if made is not None:
                    yield made


def _reached(choice: Choice, references: Sequence[str], own: dict[str, set[Lay]]) -> bool:
    return all(
        not is_own(state.value) or state.value in own.get(reference, ())
        for state, reference in zip(choice.inputs, references, strict=True)
    )
