"""Tensors that forward makes of numbers: `torch.tensor([1.0, 0.1])`.

On some devices an export shows a copy of such a constant, on others the constant. Here it is read as it is, and copied
where forward writes into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

import torch
from torch import fx

_COPY, _DETACH = torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.detach_.default


def same_constant(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two constants are the same, bit by bit: what is no number is itself, and 0 is not -0."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(torch.equal(_bits(one), _bits(other)))


def _bits(constant: torch.Tensor) -> torch.Tensor:
    """Copied: one number alone counts as contiguous whatever its stride is, and such a one is not read as bytes."""
    return constant.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def alike_along(one: torch.Tensor, other: torch.Tensor) -> int | None:
    """The dim along which two constants, of unlike sizes there alone, hold the same again and again; else None."""
    if one.dtype != other.dtype or one.dim() != other.dim() or one.is_meta or other.is_meta:
        return None
    unlike = [dim for dim in range(one.dim()) if one.shape[dim] != other.shape[dim]]
    if len(unlike) != 1 or not one.numel() or not other.numel():
        return None
    dim = unlike[0]
    first = once(one, dim)
    alike = all(same_constant(first.expand(each.shape), each) for each in (one, other))
    return dim if alike else None


def once(constant: torch.Tensor, dim: int) -> torch.Tensor:
    """What a constant that is alike along a dim holds there, once."""
    return constant.detach().narrow(dim, 0, 1).clone(memory_format=torch.contiguous_format)


def settle_constants(graph: fx.Graph, own: Set[str]) -> None:
    """Show the constants of a graph alike. own: the names of the tensors that the model keeps, which are none."""
    constants = [node for node in graph.nodes if node.op == "get_attr" and str(node.target) not in own]
    known, copies = set(constants), set[fx.Node]()
    for node in list(graph.nodes):
        source = node.args[0] if node.target in (_COPY, _DETACH) else None
        if not isinstance(source, fx.Node) or source not in known | copies:
            continue
        if node.target is _COPY and _written(node, node.users):
            copies.add(node)
        else:
            node.replace_all_uses_with(source)
            graph.erase_node(node)
    for node in constants:
        readers = [user for user in node.users if user not in copies]
        if _written(node, readers):
            with graph.inserting_before(readers[0]):
                made = graph.call_function(_COPY, (node,))
            made.meta.update(readers[0].meta)
            for user in readers:
                user.replace_input_with(node, made)


def _written(node: fx.Node, users: Iterable[fx.Node]) -> bool:
    """Whether some of the users write into a value, or into what is made of it by ops that may be views."""
    waiting = [(node, user) for user in users]
    while waiting:
        value, user = waiting.pop()
        if user.op == "call_function" and user.args and user.args[0] is value:
            if _writes(user):
                return True
            waiting += [(user, further) for further in user.users]
    return False


def _writes(user: fx.Node) -> bool:
    return isinstance(user.target, torch._ops.OpOverload) and user.target._schema.is_mutable and user.target != _DETACH
