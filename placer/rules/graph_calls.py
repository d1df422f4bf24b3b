"""From an op of a Graph to the call that rules read, at any number of rows, without torch.

A Graph keeps what the op was called with (`Op.arguments`), so that a rank's own op can be made from the Graph alone.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import inf, nan

from placer.errors import UsageError
from placer.graph import ITEM_BYTES, BlockClass, Op, Parameter, Tensor
from placer.io.refusals import short
from placer.rules.calls import Argument, Call, Value

#: The rows at hand, of which sizes are made, and those of the whole batch, which a model may reckon with.
ROWS = ("rows", "global_rows")
#: The highest power of a number of rows that an op reckons with (`placer.tracer.export.row_laws`).
MOST_POWER = 2


def call_of(block_class: BlockClass, op: Op, rows: int) -> Call:
    """The call of an op of a block class for a batch of `rows` rows."""
    values = tuple([_value(block_class, reference, rows) for reference in op.inputs])
    return _call(op.target, _text(op), values, tuple([_result(out, rows) for out in op.outputs]), rows)


# Searches ask for the calls of each class under every layout, and few of a model's ops are unlike.
@lru_cache(maxsize=65536)
def _call(target: str, text: str, values: tuple[Value, ...], outputs: tuple[Value, ...], rows: int) -> Call:
    arguments, keywords = _parsed(text)
    namespace, name = target.split(".")[:2]
    return Call(
        target=f"{namespace}::{name}",
        arguments=tuple(_argument(one, values, rows) for one in arguments),
        keywords=tuple((key, _argument(one, values, rows)) for key, one in keywords),
        outputs=outputs,
    )


def tensor_arguments(op: Op) -> tuple[str, ...]:
    """The reference of each tensor argument, in the order of a choice's states (`cat([t0, t0])` has one twice)."""
    return tuple([op.inputs[number] for number in _read_in_order(_text(op))])


@lru_cache(maxsize=65536)
def _read_in_order(text: str) -> tuple[int, ...]:
    """The numbers of the tensors among arguments, as they are read."""
    trees = (tree for part in _parsed(text) for tree in part)
    names = (node.id for tree in trees for node in _in_order(tree[1] if isinstance(tree, tuple) else tree))
    return tuple(int(name[1:]) for name in names if _is_tensor(name))


def writes_state(block_class: BlockClass, op: Op) -> bool:
    """Whether the op writes into a parameter or buffer."""
    return writes(op) and bool(op.inputs) and isinstance(block_class.tensor(op.inputs[0]), Parameter)


def writes(op: Op) -> bool:
    """Whether the op writes its first argument, by its name."""
    name = op.target.split(".")[1]
    return name.endswith("_") and not name.endswith("__") and name != "detach_"


def _text(op: Op) -> str:
    return op.arguments or ", ".join(f"t{number}" for number in range(len(op.inputs)))


def _in_order(tree: ast.expr) -> Iterator[ast.Name]:
    """The names in an argument, as they are read."""
    if isinstance(tree, ast.Name):
        yield tree
    elif isinstance(tree, ast.List):
        for part in tree.elts:
            yield from _in_order(part)


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
        case ast.Name(id=name) if _is_tensor(name) and int(name[1:]) < len(values):
            return values[int(name[1:])]
        case ast.Name(id=name) if name in (*ROWS, "inf", "nan"):
            return rows if name in ROWS else inf if name == "inf" else nan
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand, rows)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _number(left, rows) + _number(right, rows)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _number(left, rows) * _number(right, rows)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _raised(float(_number(left, rows)), _number(right, rows))
    raise UsageError(
        f"a Graph's op has the argument {short(repr(ast.unparse(tree)))}, which says nothing; capture it again"
    )


def _raised(number: float, power: float) -> float:
    """A number of the rows of a batch to a power, as `placer.tracer.export.row_laws` makes them: both are small."""
    if number <= 0 or abs(power) > MOST_POWER:
        raise UsageError(f"a Graph's op reckons with {number} ** {power}, which says nothing; capture it again")
    return math.pow(number, power)


def _is_tensor(name: str) -> bool:
    return name[0] == "t" and name[1:].isdigit()


def _number(tree: ast.expr, rows: int) -> int | float:
    found = _argument(tree, (), rows)
    if isinstance(found, int | float):
        return found
    raise UsageError(
        f"a Graph's op reckons with {short(repr(ast.unparse(tree)))}, which is no number; capture it again"
    )
