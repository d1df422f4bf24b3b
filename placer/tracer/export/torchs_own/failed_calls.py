"""A module whose call raises, which forward catches, is left as it was entered: torch's tracer stays in it.

try:
    x = layer(x, lengths=lengths)       what is exported is what runs: the second call
except TypeError:
    x = layer(x)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from torch import nn
from torch.fx.experimental.proxy_tensor import _ModuleStackTracer

_call = _ModuleStackTracer.call_module


@contextmanager
def failed_calls_left() -> Iterator[None]:
    """In the body a tracer has left the modules that raised."""
    with mock.patch.object(_ModuleStackTracer, "call_module", _left):
        yield


def _left(
    tracer: _ModuleStackTracer, module: nn.Module, forward: Callable[..., object],
    args: tuple[object, ...], kwargs: dict[str, object],
) -> object:  # fmt: skip
    """In place of `call_module`."""
    outside = tracer.module_stack.copy()
    try:
        return _call(tracer, module, forward, args, kwargs)
    except BaseException:
        tracer.module_stack = outside
        raise
