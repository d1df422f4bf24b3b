"""The values of inputs that are the same in every step, answered while a model is exported, which has none.

    grid --tolist--> [[1, 4, 4]]                   answered from the values that the batch was described with
    grid.prod(-1) --cumsum--> lengths              known: made again of real tensors, beside the export
    lengths --repeat_interleave--> places          of a size that values say: its values enter the graph, as a constant
    features[lengths > 3]                          the places that a known mask takes enter the graph

What is made of known values by functions that compute the same every time is known, until something is written into it
that is not; what is made of others is not known, and reading it is as before. What a call that is not followed wrote
into, by its version, or gave a view of is unknown from then on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

CPU = torch.device("cpu")
# Elements of the largest tensor that is made again, and of the largest that enters a graph as a constant.
LARGEST = 2**22
# What tells values to Python.
READ = frozenset({
    "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__contains__", "__format__", "equal",
    "allclose", "is_nonzero",
})  # fmt: skip
# What makes tensors of nothing but plain numbers.
MADE = frozenset({"arange", "zeros", "ones", "full", "tensor", "linspace", "eye"})
# What makes tensors of sizes alone.
DRAWN = frozenset({"empty", "rand", "randn"})
# Whose results have sizes that values say: the export is given their values.
SIZED = frozenset({
    "nonzero", "argwhere", "masked_select", "repeat_interleave", "bincount", "one_hot", "unique", "_unique_impl",
    "_return_output", "unique_consecutive", "_consecutive_return_output", "_unique_consecutive_impl",
}) | MADE  # fmt: skip
# Whose arguments after the first are sizes and places, which torch reads by itself where they are tensors.
COUNTING = frozenset({
    "view", "reshape", "expand", "repeat", "tile", "narrow", "split", "chunk", "unflatten", "select", "roll", "empty",
    "rand", "randn", "new_zeros", "new_ones", "new_full", "new_empty", "tensor_split", "split_with_sizes", "unfold",
    "arange", "zeros", "ones", "full", "linspace", "eye", "pad", "topk", "adaptive_avg_pool2d", "interpolate",
})  # fmt: skip
_VIEWS = """unsqueeze squeeze expand expand_as repeat tile view view_as reshape reshape_as flatten unflatten contiguous
clone detach transpose permute movedim swapaxes t flip roll split chunk tensor_split split_with_sizes unbind __iter__
select narrow index_select gather take __getitem__ stack cat concat concatenate hstack vstack meshgrid cartesian_prod
broadcast_to broadcast_tensors pad diff tril triu diagonal to type long int float double bool cpu unfold"""
_NUMBERS = """sum prod cumsum cumprod max min amax amin any all argmax argmin sort argsort mean count_nonzero numel
abs neg sign sqrt ceil floor round trunc clamp clamp_min clamp_max clip minimum maximum where masked_fill isin
bucketize searchsorted zeros_like ones_like full_like new_zeros new_ones new_full new_tensor outer logical_and
logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor __invert__ __neg__ __abs__"""
_OPERATORS = """add sub mul div true_divide floor_divide floordiv truediv mod remainder fmod pow eq ne lt le gt ge and
or xor"""
PLAIN = frozenset({
    *_VIEWS.split(), *_NUMBERS.split(),
    *(form for one in _OPERATORS.split() for form in (one, f"__{one}__", f"__r{one}__")),
    "rsub", "rdiv", "__rpow__",
})  # fmt: skip
WRITING = frozenset({"__setitem__", "fill_", "zero_", "copy_", "add_", "sub_", "mul_", "masked_fill_", "clamp_"})
ASKED = READ | MADE | SIZED | PLAIN | COUNTING
DATA = Tensor.data.__get__  # type: ignore[attr-defined]
INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})


class Constants:
    """The `values` of the inputs that are the same in every step, by name, for the rows that are exported.

    numbers: whether what is made of plain numbers is known also where there are none.
    """

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self.numbers = False

    @contextlib.contextmanager
    def known(self, batch: Mapping[str, Tensor]) -> Iterator[None]:
        """In the body these inputs of `batch`, and what is made of them, are known."""
        if not self.values and not self.numbers:
            yield
            return
        mode = ConstantValues()
        for name, values in self.values.items():
            mode.tell(batch[name], values)
        with mode:
            yield


class ConstantValues(TorchFunctionMode):
    """While it is entered, what is made of constants and of tensors that were `tell`-ed is known by its values."""

    def __init__(self) -> None:
        super().__init__()
        self._known = WeakIdKeyDictionary()

    def tell(self, tensor: Tensor, values: Tensor) -> None:
        """Take `values` for those of `tensor`, which the export sees."""
        with _apart():
            self._known[tensor] = values.clone()

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Calls it, or answers in its place."""
        named, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name in ("__getitem__", "__setitem__"):
            args = (args[0], self._places(args[1]), *args[2:])
        if _writes(name) or "out" in named or (name == "__get__" and func == DATA):
            return self._written(func, name, args, named)
        if name in COUNTING:
            args, named = self._counted(args, named, name in MADE | DRAWN)
        elif name == "repeat_interleave":
            func, args, named = self._repeated(func, args, named)
        elif name == "__iter__":
            return iter(self.__torch_function__(Tensor.unbind, types, args))
        leaves, form = _pytree.tree_flatten((args, named))
        tensors = [one for one in leaves if isinstance(one, Tensor)]
        plain = name in ASKED and not any(isinstance(one, torch.SymInt | torch.SymFloat) for one in leaves)
        if not plain or not (tensors or name in MADE) or not all(one in self._known for one in tensors):
            return self._unfollowed(func, args, named)
        return self._answered(func, name, leaves, form)

    def _answered(self, func: Callable[..., Any], name: str, leaves: list[Any], form: _pytree.TreeSpec) -> Any:
        """The result of a call whose tensors are all known: told, given as a constant, or computed and known."""
        tensors = [one for one in leaves if isinstance(one, Tensor)]
        args, named = _pytree.tree_unflatten(leaves, form)
        real = self._real(func, leaves, form)
        if real is _UNKNOWN:
            return self._unfollowed(func, args, named)
        if name in READ:
            return real
        if name in SIZED and tensors:
            return _pytree.tree_map_only(Tensor, lambda one: self._constant(one, tensors[0].device), real)
        result = func(*args, **named)
        made = list(zip(_pytree.tree_leaves(result), _pytree.tree_leaves(real), strict=True))
        if not all(_alike(one, value) for one, value in made if isinstance(one, Tensor)) or any(
            (_memory(one) == _memory(given)) != (_memory(value) == _memory(self._known[given]))
            for one, value in made
            for given in tensors
            if isinstance(one, Tensor)
        ):  # other sizes, or a view where the values were copied: what is written into one is not in both
            for given in tensors:
                self._forget(given)
            return result
        self._known.update({one: value for one, value in made if isinstance(one, Tensor)})
        return result

    def _unfollowed(self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A call whose result is not known, after which what it may have written is not."""
        before = [
            (one, one._version, _memory(one))
            for one in _pytree.tree_leaves((args, named))
            if isinstance(one, Tensor) and one in self._known
        ]
        result = func(*args, **named)
        views = {_memory(one) for one in _pytree.tree_leaves(result) if isinstance(one, Tensor)} if before else set()
        for one, version, memory in before:
            if one._version != version or memory != _memory(one) or memory in views:
                self._forget(one)
        return result

    def _real(self, func: Callable[..., Any], leaves: list[Any], form: _pytree.TreeSpec) -> Any:
        """The result of the call on the values; `_UNKNOWN` where it fails on them, or is too large."""
        values = [self._known[one] if isinstance(one, Tensor) else one for one in leaves]
        args, named = _pytree.tree_unflatten([CPU if isinstance(one, torch.device) else one for one in values], form)
        try:
            with _apart(), CPU:
                real = func(*args, **named)
        except Exception:  # what cannot be made again is not known
            return _UNKNOWN
        large = any(isinstance(one, Tensor) and one.numel() > LARGEST for one in _pytree.tree_leaves(real))
        return _UNKNOWN if large else real

    def _written(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A call that writes into tensors: into what is known of it too where all it takes is known."""
        leaves, form = _pytree.tree_flatten((args, named))
        tensors = [one for one in leaves if isinstance(one, Tensor)]
        alike = name in WRITING and all(one in self._known for one in tensors)
        if not alike or self._real(func, leaves, form) is _UNKNOWN:
            for one in tensors[:1] if name in WRITING else tensors:
                self._forget(one)
        return func(*args, **named)

    def _forget(self, tensor: Tensor) -> None:
        """What lies in the memory of `tensor` is not known any more."""
        if tensor not in self._known:
            return
        memory = _memory(self._known[tensor])
        for one in [one for one in self._known if _memory(self._known[one]) == memory]:
            del self._known[one]

    def _places(self, index: Any) -> Any:
        """An index without what values decide: of masks the places they take, of numbers in slices the numbers."""
        found: list[Any] = []
        for one in index if isinstance(index, tuple) else (index,):
            if isinstance(one, slice):
                found.append(slice(*(self._number(end) for end in (one.start, one.stop, one.step))))
            elif isinstance(one, Tensor) and one in self._known and one.dtype == torch.bool and one.ndim:
                with _apart():
                    places = self._known[one].nonzero(as_tuple=True)
                found.extend(self._constant(place, one.device) for place in places)
            else:
                found.append(self._number(one))
        return tuple(found) if isinstance(index, tuple) or len(found) > 1 else found[0]

    def _counted(
        self, args: tuple[Any, ...], named: dict[str, Any], made: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with numbers in place of known ones, after the first, of which they are sizes and places; all
        of those of what makes tensors of numbers."""
        first = args[:1] if args and isinstance(args[0], Tensor) and not made else ()
        return (*first, *_pytree.tree_map(self._number, args[len(first) :])), _pytree.tree_map(self._number, named)

    def _number(self, one: Any) -> Any:
        if isinstance(one, Tensor) and one in self._known and one.ndim == 0 and one.dtype in INTEGERS:
            with _apart():
                return int(self._known[one])
        return one

    def _repeated(
        self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Rows repeated as often as known numbers say, as the rows at these places; other calls as they are."""
        given = {**dict(zip(("input", "repeats", "dim"), args, strict=False)), **named}
        rows, repeats, dim = given.get("input"), given.get("repeats"), given.get("dim")
        if not isinstance(repeats, Tensor) or repeats not in self._known or rows is None or rows in self._known:
            return func, args, named
        size = rows.numel() if dim is None else rows.shape[dim]
        with _apart():
            places = torch.arange(size).repeat_interleave(self._known[repeats])
        flat = rows.flatten() if dim is None else rows
        return torch.index_select, (flat, dim or 0, self._constant(places, rows.device)), {}

    def _constant(self, values: Tensor, device: torch.device) -> Tensor:
        """`values` as a constant of the graph."""
        order = sorted(range(values.ndim), key=values.stride, reverse=True)  # as it lies, so that views are views
        back = [order.index(dim) for dim in range(values.ndim)]
        with _apart():
            kept = values.permute(order).contiguous().clone()
            listed, known = kept.tolist(), kept.permute(back)
        made = torch.tensor(listed, dtype=kept.dtype, device=device).view(kept.shape).permute(back)
        self._known[made] = known
        return made


_UNKNOWN = object()


def _alike(one: Tensor, value: Tensor) -> bool:
    return one.shape == value.shape and one.dtype == value.dtype and one.stride() == value.stride()


def _memory(tensor: Tensor) -> int:
    """Where it lies; of what `torch.vmap` and its like have wrapped, what is in it."""
    wraps = torch._C._functorch
    while wraps.is_functorch_wrapped_tensor(tensor):
        tensor = wraps.get_unwrapped(tensor)
    return int(tensor.untyped_storage()._cdata)


def _writes(name: str) -> bool:
    return (name.startswith(("__i", "__set")) and name not in PLAIN | READ | {"__iter__", "__index__"}) or (
        name.endswith("_") and not name.endswith("__")
    )


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """In the body tensors are real, and nothing is exported."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield
