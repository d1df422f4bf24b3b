"""What an export does not see: autograd functions with a backward of their own, hooks on gradients, calls that need
values.

An export keeps what such a function's forward computes, and torch would differentiate that. So they are refused; a
submodule in which they are called can be opaque, and then runs as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils import _pytree, checkpoint
from torch.utils.checkpoint import CheckpointFunction

from placer.errors import UncapturableError
from placer.io.usercode import calling_line, said

# Where operators that an export holds as they are have their backward.
_OPERATORS = ("torch._library.", "placer.")
_ELSEWHERE = (
    "call it in a submodule of the model, which placer can run as it is, or make it an operator of torch.library with "
    "register_fake and register_autograd"
)


class UnseenError(UncapturableError):
    """An export does not hold what the model does. module: the path of the module that does it, where it is known."""

    def __init__(self, message: str, module: str = "") -> None:
        super().__init__(message)
        self.module = module


@contextlib.contextmanager
def unseen_refused(model: nn.Module) -> Iterator[None]:
    """In the body `model` is exported. An autograd function or a hook on a gradient raises UnseenError.

    What a checkpoint runs is exported in its place, which is the same, unless it writes a buffer: twice, as it runs
    again in backward. torch 2.13 loses what becomes of gradients inside a region in which autocast is off; no autocast
    is on in an export, so that such regions are left out.
    """
    function, tensor = torch.autograd.Function, torch.Tensor
    before, hook = vars(function)["apply"], vars(tensor)["register_hook"]

    def apply(kind: type[torch.autograd.Function], *arguments: Any, **keywords: Any) -> Any:
        if kind is CheckpointFunction:
            run, _keeps_random_state, *given = arguments
            with _no_buffer_written(model):
                return run(*given)
        if kind.__module__.startswith(_OPERATORS) or not _exported((arguments, keywords)):
            return before.__func__(kind, *arguments, **keywords)
        hooked = kind is BackwardHookFunction
        _refuse(
            "a module's hook on its backward, which"
            if hooked
            else f"{kind.__name__}, an autograd.Function, whose backward"
        )

    def register_hook(value: torch.Tensor, called: object) -> object:
        return _refuse("a hook on a gradient, which") if _exported(value) else hook(value, called)

    def checkpointed(*_: object, **__: object) -> Iterator[None]:
        with _no_buffer_written(model):
            yield

    def enter(region: torch.autocast) -> object:
        return entered(region) if region._enabled else region

    def leave(region: torch.autocast, *error: Any) -> object:
        return left(region, *error) if region._enabled else None

    def differentiating(taken: Callable[..., object]) -> Callable[..., object]:
        def take(*given: Any, **keywords: Any) -> object:
            return _refuse("a derivative in forward, which") if _exported(given) else taken(*given, **keywords)

        return take

    entered: Callable[..., object] = torch.autocast.__enter__
    left: Callable[..., object] = torch.autocast.__exit__
    with (
        mock.patch.object(function, "apply", classmethod(apply)),
        mock.patch.object(tensor, "register_hook", register_hook),
        mock.patch.object(checkpoint, "_checkpoint_without_reentrant_generator", checkpointed),
        mock.patch.object(torch.autograd, "grad", differentiating(torch.autograd.grad)),
        mock.patch.object(torch.autograd, "backward", differentiating(torch.autograd.backward)),
        mock.patch.object(torch.autocast, "__enter__", enter),
        mock.patch.object(torch.autocast, "__exit__", leave),
    ):
        yield


@contextlib.contextmanager
def _no_buffer_written(model: nn.Module) -> Iterator[None]:
    before = {name: (buffer, buffer._version) for name, buffer in model.named_buffers()}
    yield
    for name, buffer in model.named_buffers():
        if name in before and (before[name][0] is not buffer or before[name][1] != buffer._version):
            raise UncapturableError(
                f"{calling_line()}: a checkpoint runs again in backward, and writes the buffer {name} twice; leave the "
                "checkpoint out, and placer runs blocks again where that helps (--pin recompute=yes)"
            )


def _exported(values: object) -> bool:
    """Whether there is a tensor among them that is being exported, and not one that an opaque part is tried on."""
    return any(isinstance(leaf, FakeTensor) for leaf in _pytree.tree_leaves(values))


def require_plain_gradients(model: nn.Module) -> None:
    """No parameter has hooks on its gradient. Raises UncapturableError naming the first that has."""
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise UncapturableError(
                f"the parameter {name} has a hook on its gradient, which a run cut into stages and pieces would not "
                "call as one device does; take it off, or do in forward or in the loss what it does"
            )


def unplayable(call: str, source: str, module: str, error: Exception) -> UnseenError:
    """A call of the graph that cannot be run on tensors without values."""
    return UnseenError(
        f"the model cannot be captured: {source}: {call} cannot be run without values ({said(error)}); {_ELSEWHERE}",
        module,
    )


def _refuse(what: str) -> NoReturn:
    raise UnseenError(f"the model cannot be captured: {calling_line()} has {what} an export does not see; {_ELSEWHERE}")
