"""Types of tensors that a model reads and gives as texts and as classes: while it is exported they say no device.

    y = y.type(x.type())                  "torch.FloatTensor", of a tensor on meta too
    y = y.type(torch.FloatTensor)         as `y.float()`

torch has no name for a tensor on meta that it takes back, and none of a type without a device; where a run computes is
the plan's to say. A mask of bytes, taken for one of bools by `torch.where` and `h[mask]`, is refused on meta.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_META = "torch.meta."
_OF_CPU = {
    "torch.DoubleTensor": torch.float64, "torch.FloatTensor": torch.float32, "torch.HalfTensor": torch.float16,
    "torch.BFloat16Tensor": torch.bfloat16, "torch.LongTensor": torch.int64, "torch.IntTensor": torch.int32,
    "torch.ShortTensor": torch.int16, "torch.CharTensor": torch.int8, "torch.ByteTensor": torch.uint8,
    "torch.BoolTensor": torch.bool,
}  # fmt: skip


# What chooses by a mask, and where that stands.
_CHOOSING: dict[object, int] = {torch.where: 0, torch.Tensor.where: 1, torch.Tensor.__getitem__: 1}


class TypeNames(TorchFunctionMode):
    """While it is entered, `Tensor.type` tells a type as of a CPU's tensor, and takes one so told as a type alone. To
    what chooses by them masks of bytes are of bools."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Calls it, or what it means."""
        named = dict(kwargs or {})
        if func in _CHOOSING:
            given = [_as_mask(one) if place == _CHOOSING[func] else one for place, one in enumerate(args)]
            return func(*given, **{name: _as_mask(one) if name == "condition" else one for name, one in named.items()})
        if func is not torch.Tensor.type or "non_blocking" in named:
            return func(*args, **named)
        asked = args[1] if len(args) > 1 else named.get("dtype")
        if asked is None:
            return str(func(*args, **named)).replace(_META, "torch.")
        text = (
            asked if isinstance(asked, str) else f"{getattr(asked, '__module__', '')}.{getattr(asked, '__name__', '')}"
        )
        dtype = _OF_CPU.get(text)
        return func(*args, **named) if dtype is None else args[0].to(dtype)


def _as_mask(given: object) -> object:
    if type(given) is tuple:
        return tuple([_as_mask(one) for one in given])
    return given.to(torch.bool) if isinstance(given, torch.Tensor) and given.dtype == torch.uint8 else given
