"""What torch makes of every graph and nothing here reads is left out of an export, a fifth of its time.

    Python code of each of the nine graphs on the way       made of those that are called
    the whole stack under each node, and the files' lines   the frames of `forward`, by file and number

What is exported is the same graph.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from unittest import mock

from torch import fx
from torch.fx import proxy
from torch.fx.graph import _PyTreeCodeGen

_compile = fx.GraphModule.recompile


@contextmanager
def sparing() -> Iterator[None]:
    """In the body graphs have code once they are called, and nodes the frames that lead to a line of the model."""
    with (
        mock.patch.object(fx.GraphModule, "recompile", _to_be_compiled),
        mock.patch.object(proxy, "CapturedTraceback", _Frames, create=True),
    ):
        yield


def _to_be_compiled(module: fx.GraphModule) -> None:
    """In place of `recompile`: what it says of inputs and results."""
    if isinstance(module.graph._codegen, _PyTreeCodeGen):
        info = module.graph._codegen.pytree_info
        module._in_spec, module._out_spec = info.in_spec, info.out_spec
    type(module).forward = _compiled_first


def _compiled_first(module: fx.GraphModule, *args: object, **kwargs: object) -> object:
    """In place of `forward`, until it is called."""
    _compile(module)
    return module(*args, **kwargs)


class _Frames:
    """In place of `CapturedTraceback`: of the frames those that a tracer keeps, the functions called `forward`."""

    def __init__(self, frames: list[traceback.FrameSummary]) -> None:
        self._frames = frames

    @classmethod
    def extract(cls) -> _Frames:
        """The frames that run now, the outermost first."""
        found: list[traceback.FrameSummary] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code.co_name == "forward":
                found.append(traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name, line=""))
            frame = frame.f_back
        return cls(found[::-1])

    def summary(self) -> traceback.StackSummary:
        """The frames as a tracer takes them."""
        return traceback.StackSummary.from_list(self._frames)
