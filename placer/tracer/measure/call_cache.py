"""Calls that come again: what a call does to tensors that are alike is played once and put together again after that.

Layers repeat, and torch works out the results of most ops on meta in Python (7 ms for one attention). Two calls are
alike where the op, the numbers and all that is known of the tensors are: sizes, strides, dtypes, whether they need
gradients, and which of them share a storage. Remembered are the results, as views of an argument's storage or of a
storage of their own, and what autograd keeps. Not remembered are ops outside of aten, those that write into their
arguments, and results that are neither the whole of a storage of their own nor a view of an argument.

Tensors among the arguments of a call, however these are nested.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch.utils import _pytree

# Whose a storage is: an argument's, a result's (by number), or nobody's that is seen.
_Owner: TypeAlias = tuple[str, int]


class Keeping(NamedTuple):
    """A storage that autograd keeps, and its bytes."""

    storage: int
    bytes: int


class _ResultForm(NamedTuple):
    """A result: of which argument it is a view (-1: of none), whether it is that argument, and how it lies."""

    argument: int
    same: bool
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class _Remembered:
    """What a call did: its results with their nesting, and whose storages it kept, of how many bytes."""

    forms: tuple[_ResultForm | None, ...]
    others: tuple[object, ...]
    nesting: _pytree.TreeSpec
    kept: tuple[tuple[_Owner, int], ...]


def storage_of(tensor: torch.Tensor) -> int:
    """The identity of a tensor's storage; valid while some tensor on it lives."""
    return int(tensor.untyped_storage()._cdata)


class Replays:
    """The calls of one graph; what they made that nobody else holds is kept alive here."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Remembered | None] = {}
        self._alive: list[torch.Tensor] = []

    def call(
        self, target: Callable[..., object], arguments: tuple[object, ...], keywords: dict[str, object],
        keeping: list[Keeping],
    ) -> object:  # fmt: skip
        """What `target` returns; `keeping` is what autograd keeps, filled by its hook or by what is remembered."""
        tensors = list(tensors_in((arguments, keywords)))
        key = _key(target, arguments, keywords, tensors)
        if key is None:
            return target(*arguments, **keywords)
        if key not in self._known:
            made = target(*arguments, **keywords)
            self._known[key] = _noted(made, tensors, keeping)
            return made
        known = self._known[key]
        return target(*arguments, **keywords) if known is None else self._again(known, tensors, keeping)

    def _again(self, known: _Remembered, tensors: list[torch.Tensor], keeping: list[Keeping]) -> object:
        leaves = [
            other if form is None else _made(form, tensors)
            for form, other in zip(known.forms, known.others, strict=True)
        ]
        owned: dict[_Owner, object] = {
            **{("argument", number): tensor for number, tensor in enumerate(tensors)},
            **{("result", number): leaf for number, leaf in enumerate(leaves)},
        }
        for owner, size in known.kept:
            tensor = owned.get(owner)
            if not isinstance(tensor, torch.Tensor):
                tensor = owned[owner] = torch.empty(size, dtype=torch.uint8, device="meta")
                self._alive.append(tensor)
            keeping.append(Keeping(storage_of(tensor), size))
        return _pytree.tree_unflatten(leaves, known.nesting)


def _key(
    target: Callable[..., object], arguments: tuple[object, ...], keywords: dict[str, object],
    tensors: list[torch.Tensor],
) -> Hashable:  # fmt: skip
    """Equal for calls that do the same; None for one that is not remembered."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or target._schema.is_mutable:
        return None
    numbers: dict[int, int] = {}
    forms = tuple(
        (
            tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.requires_grad,
            tensor.untyped_storage().nbytes(), numbers.setdefault(storage_of(tensor), len(numbers)),
        )
        for tensor in tensors
    )  # fmt: skip
    key = (target, torch.is_grad_enabled(), forms, _plain(arguments), _plain(tuple(keywords.items())))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _plain(value: object) -> Hashable:
    """An argument without its tensors; 1, 1.0 and True are told apart."""
    if isinstance(value, list | tuple):
        return (type(value), *map(_plain, value))
    if isinstance(value, torch.Tensor):
        return torch.Tensor
    return type(value), value


def _noted(made: object, tensors: list[torch.Tensor], keeping: list[Keeping]) -> _Remembered | None:
    """What is to be remembered of a call; None where it could not be put together again."""
    leaves, nesting = _pytree.tree_flatten(made)
    owners: dict[int, _Owner] = {}
    for number, tensor in enumerate(tensors):
        owners.setdefault(storage_of(tensor), ("argument", number))
    forms: list[_ResultForm | None] = []
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            forms.append(None)
            continue
        form = _form(leaf, tensors, owners)
        if form is None:
            return None
        owners.setdefault(storage_of(leaf), ("result", number))
        forms.append(form)
    kept = tuple((owners.setdefault(own.storage, ("nobody", len(owners))), own.bytes) for own in keeping)
    others = tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    return _Remembered(tuple(forms), others, nesting, kept)


def _form(leaf: torch.Tensor, tensors: list[torch.Tensor], owners: dict[int, _Owner]) -> _ResultForm | None:
    """How a result can be made again; None where it cannot: it shares another one's storage, or has gaps."""
    kind, argument = owners.get(storage_of(leaf), ("", -1))
    same = next((number for number, tensor in enumerate(tensors) if tensor is leaf), -1)
    size, stride, offset = tuple(leaf.shape), leaf.stride(), int(leaf.storage_offset())
    form = _ResultForm(same if same >= 0 else argument, same >= 0, size, stride, offset, leaf.dtype, leaf.requires_grad)
    if same >= 0:
        return form
    if kind == "argument":
        alike = leaf.dtype == tensors[argument].dtype
        return form if alike and (tensors[argument].requires_grad or not leaf.requires_grad) else None
    whole = torch.empty_strided(size, stride, dtype=leaf.dtype, device="meta")
    own = kind == "" and offset == 0 and whole.untyped_storage().nbytes() == leaf.untyped_storage().nbytes()
    return form if own and whole.clone().stride() == stride else None


def _made(form: _ResultForm, tensors: list[torch.Tensor]) -> torch.Tensor:
    """A result of this form. One that needs gradients is no leaf: ops that write into it are allowed."""
    if form.argument >= 0:
        given = tensors[form.argument]
        if form.same:
            return given
        given = given if form.requires_grad == given.requires_grad else given.detach()
        return given.as_strided(form.size, form.stride, form.offset)
    fresh = torch.empty_strided(form.size, form.stride, dtype=form.dtype, device="meta")
    return fresh.requires_grad_().clone() if form.requires_grad else fresh


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors of nested lists, tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, dict):
        yield from tensors_in(tuple(value.values()))
