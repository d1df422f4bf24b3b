"""The values of tensors that a model makes of constants alone, while it is exported, which has no values.

    arange(8) --unsqueeze--> (1, 8) --expand--> (2, 8)         known: made again of real tensors, beside the export
    embedding(ids) --argmax--> ...                             not known: of the batch, of weights, or drawn

Small ones only, by plain calls, as positions are made. Once something writes into a known one nothing is known; what
writes through a view of it changes its version, but through `.data`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

# Elements of the largest tensor that is made again: no price, but what an export may take besides. What is expanded has
# no elements of its own.
LARGEST = 2**22
EXPANDED = frozenset({"expand", "unsqueeze"})
MADE = frozenset({"arange", "zeros", "ones", "full"})
PLAIN = frozenset({
    "unsqueeze", "squeeze", "expand", "repeat", "view", "reshape", "flatten", "contiguous", "to", "long", "int",
    "add", "__add__", "__radd__", "sub", "__sub__", "__rsub__", "mul", "__mul__", "__rmul__", "__getitem__",
})  # fmt: skip
ASKED = MADE | PLAIN
CPU = torch.device("cpu")
# What reads the attribute `data`, whose writes torch does not count.
DATA = Tensor.data.__get__  # type: ignore[attr-defined]


class KnownValues(TorchFunctionMode):
    """While it is entered, what is made of constants alone is known."""

    def __init__(self) -> None:
        super().__init__()
        self._known = WeakIdKeyDictionary()

    def say(self, tensor: Tensor, question: Callable[[Tensor], Tensor]) -> bool | None:
        """The answer to a question about the values of each row (last dim); None where they are not known.

        Of rows that are one row, expanded, one is asked."""
        if not self._holds(tensor):
            return None
        with _apart():
            value, _ = self._known[tensor]
            expanded = [step == 0 for step in value.stride()[:-1]]
            return bool(question(value[tuple(slice(1) if one else slice(None) for one in expanded)]))

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Calls it, and notes its result."""
        named, name = dict(kwargs or {}), getattr(func, "__name__", "")
        apart = name == "__get__" and func == DATA
        if name not in ASKED and "out" not in named and not _writes(name) and not apart:
            return func(*args, **named)
        leaves, form = _pytree.tree_flatten((args, named))
        tensors = [one for one in leaves if isinstance(one, Tensor)]
        if ("out" in named or _writes(name) or apart) and any(one in self._known for one in tensors):
            self._known = WeakIdKeyDictionary()
        result = func(*args, **named)
        plain = (name in PLAIN if tensors else name in MADE) and all(map(self._holds, tensors))
        if plain and isinstance(result, Tensor) and (name in EXPANDED or result.numel() <= LARGEST):
            self._note(func, leaves, form, result)
        return result

    def _note(self, func: Callable[..., Any], leaves: list[Any], form: _pytree.TreeSpec, result: Tensor) -> None:
        values = [self._known[one][0] if isinstance(one, Tensor) else one for one in leaves]
        args, named = _pytree.tree_unflatten([CPU if isinstance(one, torch.device) else one for one in values], form)
        try:
            with _apart(), CPU:
                found = func(*args, **named)
        except Exception:  # what cannot be made again is not known
            return
        if isinstance(found, Tensor) and found.device == CPU and found.shape == result.shape:
            self._known[result] = found, _version(result)

    def _holds(self, tensor: Tensor) -> bool:
        """Whether the values are known, and nothing has written into them since."""
        return tensor in self._known and self._known[tensor][1] == _version(tensor)


def _version(tensor: Tensor) -> float:
    """How often a tensor and its views were written into; no number, equal to none, where torch does not count it."""
    with torch._C.DisableTorchFunction():
        return math.nan if tensor.is_inference() else tensor._version


def _writes(name: str) -> bool:
    return name.startswith(("__i", "__set")) or (name.endswith("_") and not name.endswith("__"))


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """In the body tensors are real, and nothing is exported."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield
