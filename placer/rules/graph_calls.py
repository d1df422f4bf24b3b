"""From an op of a Graph to the call that rules read, at any number of rows, without torch.

Choices of how to cut an op follow from its call and the rules that are registered when they are asked for; a Graph
keeps what the op was called with (`Op.arguments`), not the choices, so that a rule added later serves graphs made
earlier, and a rank's own op can be made from the Graph alone.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, nan

from placer.errors import UsageError
from placer.graph import ITEM_BYTES, BlockClass, Graph, Op, Tensor
from placer.rules.calls import Argument, Call, Value
from placer.rules.layouts import WHOLE, Choice, Cut, Lay, is_own
from placer.rules.splits import divided, in_blocks, in_parts, legal, merged, own_choices, split_choices
from placer.rules.splits.patterns import tensors, whole
from placer.rules.splits.registry import SPLITS, SplitRule

# A prime that no other size is a multiple of: at this batch, dims that hold rows are told apart from all others.
MARKED_ROWS = 1_000_003


def call_of(block_class: BlockClass, op: Op, rows: int) -> Call:
    """The call of an op of a block class for a batch of `rows` rows."""
    values = [_value(block_class, reference, rows) for reference in op.inputs]
    arguments, keywords = _parsed(_text(op))
    namespace, name = op.target.split(".")[:2]
    return Call(
        target=f"{namespace}::{name}",
        arguments=tuple(_argument(one, values, rows) for one in arguments),
        keywords=tuple((key, _argument(one, values, rows)) for key, one in keywords),
        outputs=tuple(_result(out, rows) for out in op.outputs),
    )


def op_choices(block_class: BlockClass, op: Op) -> tuple[Choice, ...]:
    """Every way to do an op of a block class along one axis, whatever the rows; `legal` says what a degree allows.

    Of an op whose arguments were not kept nothing is known: it is computed whole.
    """
    call = call_of(block_class, op, MARKED_ROWS)
    return split_choices(call) if op.arguments or not op.inputs else (whole(call),)


def tensor_arguments(op: Op) -> tuple[str, ...]:
    """The reference of each tensor argument, in the order of a choice's states (`cat([t0, t0])` has one twice)."""
    trees = (tree for part in _parsed(_text(op)) for tree in part)
    names = (node.id for tree in trees for node in _in_order(tree[1] if isinstance(tree, tuple) else tree))
    return tuple(op.inputs[int(name[1:])] for name in names if _is_tensor(name))


def _text(op: Op) -> str:
    return op.arguments or ", ".join(f"t{number}" for number in range(len(op.inputs)))


def _in_order(tree: ast.expr) -> Iterator[ast.Name]:
    """The names in an argument, as they are read."""
    if isinstance(tree, ast.Name):
        yield tree
    elif isinstance(tree, ast.List):
        for part in tree.elts:
            yield from _in_order(part)


def block_choices(block_class: BlockClass) -> tuple[tuple[Choice, ...], ...]:
    """For each op of a class its choices, with those that only make sense beside the ops around it.

    Rows in each rank's own order are offered where such rows come from, dims in parts where they are divided later,
    tokens in blocks from where they are put into one dim.
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
        (*op_choices(block_class, op), *own[at], *parts[at], *blocks[at]) for at, op in enumerate(block_class.ops)
    )


def _own(block_class: BlockClass, calls: Sequence[Call | None]) -> list[tuple[Choice, ...]]:
    known: dict[str, set[Lay]] = {}
    found = []
    for number, (op, call) in enumerate(zip(block_class.ops, calls, strict=True)):
        references = tensor_arguments(op)
        every = () if call is None else own_choices(call)
        found.append(tuple(one for one in every if _reached(one, references, known)))
        for choice in found[-1]:
            for output, state in enumerate(choice.outputs):
                if is_own(state.value):
                    known.setdefault(f"o{number}.{output}", set()).add(state.value)
    return found


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
        batched = call is not None and any(one.shape[:1] and one.shape[0] % MARKED_ROWS == 0 for one in tensors(call))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsplit:
    """An operator that only has the choice to be done whole: how often, where first, its share of the FLOPs.

    `share` is of the forward FLOPs of the model, `bytes` what it reads and writes forward.
    """

    target: str
    count: int
    source: str
    share: float
    bytes: int


def unsplit(graph: Graph) -> tuple[Unsplit, ...]:
    """The operators of a graph that cannot be cut, those with most FLOPs and bytes first."""
    found: dict[str, Unsplit] = {}
    uncut: dict[int, list[bool]] = {}
    total = max(1, graph.forward_flops)
    for block in (graph.prologue, *graph.blocks):
        block_class = graph.classes[block.kind]
        if block.kind not in uncut:
            uncut[block.kind] = [all(_is_whole(one) for one in choices) for choices in block_choices(block_class)]
        for op, alone in zip(block_class.ops, uncut[block.kind], strict=True):
            if alone:
                before = found.get(op.target, Unsplit(target=op.target, count=0, source=op.source, share=0.0, bytes=0))
                found[op.target] = replace(
                    before,
                    count=before.count + 1,
                    share=before.share + op.forward_flops.at(graph.rows) / total,
                    bytes=before.bytes + op.read_bytes.at(graph.rows) + op.written_bytes.at(graph.rows),
                )
    return tuple(sorted(found.values(), key=lambda one: (-one.share, -one.bytes, one.target)))


def _is_whole(choice: Choice) -> bool:
    return all(state.value is WHOLE for state in (*choice.inputs, *choice.outputs))


def _value(block_class: BlockClass, reference: str, rows: int) -> Value:
    found = block_class.tensor(reference)
    if isinstance(found, Tensor):
        return _result(found, rows)
    return Value(found.shape, ITEM_BYTES[found.dtype], found.trainable)


def _result(tensor: Tensor, rows: int) -> Value:
    return Value(tensor.shape_at(rows), ITEM_BYTES[tensor.dtype], tensor.requires_grad)


@lru_cache(maxsize=65536)
def _parsed(text: str) -> tuple[tuple[ast.expr, ...], tuple[tuple[str, ast.expr], ...]]:
    tree = ast.parse(f"op({text})", mode="eval").body
    assert isinstance(tree, ast.Call)
    return tuple(tree.args), tuple((one.arg or "", one.value) for one in tree.keywords)


def _argument(tree: ast.expr, values: Sequence[Value], rows: int) -> Argument:
    match tree:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.List(elts=parts):
            return tuple(_argument(part, values, rows) for part in parts)
        case ast.Name(id=name) if _is_tensor(name):
            return values[int(name[1:])]
        case ast.Name(id=name) if name in ("rows", "inf", "nan"):
            return rows if name == "rows" else inf if name == "inf" else nan
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand, rows)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _number(left, rows) + _number(right, rows)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _number(left, rows) * _number(right, rows)
    raise UsageError(f"a Graph's op has the argument {ast.unparse(tree)!r}, which says nothing; capture it again")


def _is_tensor(name: str) -> bool:
    return name[0] == "t" and name[1:].isdigit()


def _number(tree: ast.expr, rows: int) -> int | float:
    found = _argument(tree, (), rows)
    if isinstance(found, int | float):
        return found
    raise UsageError(f"a Graph's op reckons with {ast.unparse(tree)!r}, which is no number; capture it again")
