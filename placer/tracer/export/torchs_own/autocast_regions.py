"""Regions of forward in which autocast is off, while a model is exported, where none is on.

They are left out of the graph: torch 2.13 loses what becomes of gradients inside one. A run under autocast would do in
16 bits what lies in them, so that products in one are refused where the capture is for such a run.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from placer.errors import UncapturableError
from placer.io.usercode import calling_line

# What autocast does in 16 bits on CPUs or GPUs (torch 2.13, aten/src/ATen/autocast_mode.h), by the names it is called.
NARROWED = frozenset({
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "addbmm", "baddbmm", "mv", "addmv", "addr",
    "einsum", "tensordot", "bilinear", "chain_matmul", "multi_dot", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "conv_tbc", "scaled_dot_product_attention", "multi_head_attention_forward",
    "prelu", "inner", "outer", "ger", "dot", "vdot", "vecdot", "linalg_vecdot", "linalg_matmul", "linalg_multi_dot",
    "linalg_matrix_power", "matrix_power", "affine_grid", "affine_grid_generator", "lstm", "gru", "rnn_tanh",
    "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "convolution", "_convolution",
})  # fmt: skip
_UNDER_AUTOCAST: ContextVar[bool] = ContextVar("_UNDER_AUTOCAST", default=False)


@contextlib.contextmanager
def for_autocast(asked: bool) -> Iterator[None]:
    """In the body exports are for a run under autocast, or for one without."""
    before = _UNDER_AUTOCAST.set(asked)
    try:
        yield
    finally:
        _UNDER_AUTOCAST.reset(before)


def made_for_meta(before: Callable[..., None]) -> Callable[..., None]:
    """`torch.autocast(x.device.type)` on meta, which torch has no autocast for, is that of a CPU."""

    def make(region: torch.autocast, device_type: str, *given: Any, **named: Any) -> None:
        before(region, "cpu" if device_type == "meta" else device_type, *given, **named)

    return make


def entered_where_enabled(before: Callable[..., object]) -> Callable[..., object]:
    """Of a region in which autocast is off its products alone are looked at."""

    def enter(region: Any) -> object:
        if region._enabled:
            return before(region)
        off = _Off()
        off.__enter__()  # type: ignore[no-untyped-call]
        region._looking = [*getattr(region, "_looking", ()), off]  # one may be entered again within
        return region

    return enter


def left_where_enabled(before: Callable[..., object]) -> Callable[..., object]:
    """As `entered_where_enabled`."""

    def leave(region: Any, *error: Any) -> object:
        return before(region, *error) if region._enabled else region._looking.pop().__exit__(*error)

    return leave


def in_place_of_none(before: Callable[[], object]) -> Callable[[], object]:
    """What transformers' `maybe_autocast` gives where autocast is on nowhere, as in an export: no region at all."""

    def make(*given: object) -> object:
        caller = sys._getframe(1)
        off = caller.f_code.co_name == "maybe_autocast" and not caller.f_locals["enabled"]
        return _Off() if off else before(*given)

    return make


class _Off(TorchFunctionMode):
    """Refuses what a run under autocast would do in 16 bits."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Calls it."""
        named = dict(kwargs or {})
        name = getattr(func, "__name__", "").partition(".")[0]
        exported = any(_narrowed(leaf) for leaf in _pytree.tree_leaves((args, named)))
        if _UNDER_AUTOCAST.get() and name in NARROWED and exported:
            raise UncapturableError(
                f"{calling_line()}: forward switches autocast off around {name}, which a run under autocast would do "
                "in 16 bits; plan with --precision float32 or bfloat16, or do it in a submodule of the model, which "
                "placer can run as it is (--opaque NAME)"
            )
        return func(*args, **named)


def _narrowed(leaf: object) -> bool:
    """Whether it is a tensor that is exported, of a type that autocast makes another: it leaves 64 bits as they are."""
    return isinstance(leaf, FakeTensor) and leaf.dtype in (torch.float32, torch.float16)
