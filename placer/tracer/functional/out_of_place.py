"""The out-of-place form of a call that writes: what it would have written, as a value of its own."""

from __future__ import annotations

from typing import cast

import torch
from torch import fx
from torch.fx.node import Argument

from placer.tracer.export.cleaning import target_name

aten = torch.ops.aten

# In-place names of aten whose out-of-place form is not the name without its last "_".
_FORMS = {
    "__iand__": "__and__", "__ior__": "__or__", "__ixor__": "__xor__", "__ilshift__": "__lshift__",
    "__irshift__": "__rshift__", "normal_": "normal_functional",
}  # fmt: skip
_FILLED = ("copy_", "fill_", "zero_")


def out_of_place(node: fx.Node) -> torch._ops.OpOverload | None:
    """The operator that computes what `node` writes, from the same arguments; None where aten has none.

    `copy_`, `fill_` and `zero_` have one in every case: see `written`.
    """
    assert isinstance(node.target, torch._ops.OpOverload)
    schema = node.target._schema
    namespace, _, name = schema.name.partition("::")
    if namespace != "aten" or len(schema.returns) > 1:
        return None
    if any(formal.name == "out" for formal in schema.arguments):
        return _without_out(schema)
    if not name.endswith("_"):
        return None
    return _overload(_FORMS.get(name, name[:-1]), node.target._overloadname, _names(schema))


def has_form(node: fx.Node) -> bool:
    """Whether what `node` writes can be computed as a value."""
    return is_filled(node) or out_of_place(node) is not None


def is_filled(node: fx.Node) -> bool:
    """Whether `node` puts other values in the place of all that were there: nothing of those is in what it writes."""
    return short(node) in _FILLED


def short(node: fx.Node) -> str:
    """`copy_` for a call of `aten::copy_`."""
    return target_name(node).rpartition("::")[2]


def written(
    graph: fx.Graph, node: fx.Node, view: fx.Node, args: tuple[Argument, ...], kwargs: dict[str, Argument]
) -> fx.Node:
    """What `node`, called with `args` and `kwargs`, writes into `view`."""
    if is_filled(node):
        value = 0 if short(node) == "zero_" else args[1]
        if not isinstance(value, fx.Node):
            return graph.call_function(aten.full_like.default, (view, value))
        typed = graph.call_function(aten.type_as.default, (value, view))
        return graph.call_function(aten.expand_as.default, (typed, view))
    form = out_of_place(node)
    assert form is not None
    return graph.call_function(form, args, {name: value for name, value in kwargs.items() if name != "out"})


def changes_type(node: fx.Node, values: dict[fx.Node, object]) -> bool:
    """Whether the out-of-place form of `node` would give another type than what is written into has (`values` by node,
    on meta)."""
    form = out_of_place(node)
    if is_filled(node) or form is None:
        return False
    given = cast("tuple[object, ...]", fx.map_arg(node.args, lambda one: cast("Argument", values[one])))
    named = {k: fx.map_arg(v, lambda one: cast("Argument", values[one])) for k, v in node.kwargs.items() if k != "out"}
    with torch.no_grad():
        made = form(*given, **named)
    target = values[node]
    return isinstance(target, torch.Tensor) and bool(made.dtype != target.dtype)


def _draws(overload: torch._ops.OpOverload) -> bool:
    """Whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in overload.tags


def _without_out(schema: torch.FunctionSchema) -> torch._ops.OpOverload | None:
    """The overload that takes what the one of `schema` takes beside `out`, and returns it."""
    return _overload(schema.name.partition("::")[2], "", [one for one in _names(schema) if one[0] != "out"])


def _overload(name: str, likely: str, wanted: list[tuple[str, str]]) -> torch._ops.OpOverload | None:
    """The overload of `name` that takes what is wanted and writes nothing.

    likely: the name that most have. Of another name (`pow_.Scalar` is `pow.Tensor_Scalar`) views (`transpose.int`) and
    draws are other calls; "" where any will do.
    """
    packet = getattr(aten, name, None)
    names = () if packet is None else sorted(packet.overloads(), key=lambda one: one != likely)
    for one in names:
        found: torch._ops.OpOverload = getattr(packet, one)
        schema = found._schema
        other = any(returned.alias_info is not None for returned in schema.returns) or _draws(found)
        if not (schema.is_mutable or (other and one != likely and likely)) and _names(schema) == wanted:
            return found
    return None


def _names(schema: torch.FunctionSchema) -> list[tuple[str, str]]:
    """The names and types of what a schema takes; the generator of random numbers aside.

    What `dropout` calls `input`, `dropout_` calls `self`.
    """
    taken = [(formal.name, str(formal.type)) for formal in schema.arguments if formal.name != "generator"]
    return [("self" if name == "input" else name, kind) for name, kind in taken]
