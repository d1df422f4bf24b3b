"""Running a part of a model by itself in the middle of an export, as if there were none.

What torch 2.13 has on then: dispatch modes (fake tensors, the recording), function modes, calls of modules that are
recorded, flags by which code knows that it is exported, a context of tracing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from unittest import mock

import torch
import torch._dynamo
from torch import nn
from torch._C import _len_torch_function_stack
from torch._guards import tracing
from torch.export._trace import DEFAULT_EXPORT_DYNAMO_CONFIG
from torch.fx import _symbolic_trace
from torch.fx.experimental import proxy_tensor
from torch.overrides import _pop_mode_temporarily
from torch.utils._python_dispatch import _disable_current_modes

# What stands in the place of torch's functions in an export now: their owner, their name, torch's own.
_REPLACED: list[tuple[object, str, object]] = []
# What dynamo is told outside of the export, as in a run.
_TOLD: dict[str, object] = {}


@contextlib.contextmanager
def replaced_in_export(owner: object, name: str, replacement: object) -> Iterator[None]:
    """In the body `replacement` stands in the place of a function of torch's, but outside of the export."""
    own = vars(owner)[name]
    _REPLACED.append((owner, name, own))
    try:
        with mock.patch.object(owner, name, replacement):
            yield
    finally:
        _REPLACED.remove((owner, name, own))


def forget_compiled() -> None:
    """Where `torch.cond` or its like was called under a mode dynamo remembers not to compile it, and it fails again."""
    torch._dynamo.reset()


@contextlib.contextmanager
def dynamo_remembered() -> Iterator[None]:
    """In the body, where an export tells dynamo to take all sizes for unknown, it is known what it was told before."""
    before = dict(_TOLD)
    _TOLD.update({name: getattr(torch._dynamo.config, name) for name in asdict(DEFAULT_EXPORT_DYNAMO_CONFIG)})
    try:
        yield
    finally:
        _TOLD.clear()
        _TOLD.update(before)


@contextlib.contextmanager
def outside_the_export() -> Iterator[None]:
    """In the body nothing is recorded, and code that asks whether it is compiled or exported hears that it is not."""
    with contextlib.ExitStack() as left:
        left.enter_context(_disable_current_modes())
        while _len_torch_function_stack():
            left.enter_context(_pop_mode_temporarily())
        for flag in ("_is_compiling_flag", "_is_exporting_flag"):
            left.enter_context(mock.patch.object(torch.compiler, flag, False))
        left.enter_context(mock.patch.object(_symbolic_trace, "_is_fx_tracing_flag", False))
        left.enter_context(mock.patch.object(nn.Module, "__call__", _symbolic_trace._orig_module_call))
        left.enter_context(mock.patch.object(nn.Module, "__getattr__", _symbolic_trace._orig_module_getattr))
        # torch.cond has its backward recorded as this tells it: as in an export, where its gradients are wrong.
        left.enter_context(mock.patch.object(proxy_tensor, "_CURRENT_MAKE_FX_TRACER", None))
        left.enter_context(tracing(None))
        left.enter_context(torch._dynamo.config.patch(_TOLD) if _TOLD else contextlib.nullcontext())
        for owner, name, own in _REPLACED:
            left.enter_context(mock.patch.object(owner, name, own))
        yield
