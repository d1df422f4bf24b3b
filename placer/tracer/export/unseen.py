"""What an export does not see: autograd functions with a backward of their own, hooks on gradients, calls that need
values.

An export keeps what such a function's forward computes, and torch would differentiate that. So they are refused; a
submodule in which they are called can be opaque, and then runs as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction

from placer.errors import UncapturableError
from placer.io.usercode import calling_line, said

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
def unseen_refused() -> Iterator[None]:
    """In the body a model is exported. An autograd function or a hook on a gradient raises UnseenError.

    A checkpoint in torch's older way is such a function too; what it runs is exported in its place, which is the same.
    """
    function, tensor = torch.autograd.Function, torch.Tensor
    before, hook = vars(function)["apply"], vars(tensor)["register_hook"]

    def apply(kind: type[torch.autograd.Function], *arguments: Any, **keywords: Any) -> Any:
        if kind is CheckpointFunction:
            run, _keeps_random_state, *given = arguments
            return run(*given)
        if kind.__module__.partition(".")[0] == "placer":
            return before.__func__(kind, *arguments, **keywords)
        _refuse(f"{kind.__name__} is an autograd.Function, whose backward")

    def register_hook(_: torch.Tensor, __: object) -> NoReturn:
        _refuse("a hook on a gradient, which")

    setattr(function, "apply", classmethod(apply))  # noqa: B010 - mypy does not let methods be assigned
    setattr(tensor, "register_hook", register_hook)  # noqa: B010 - as above
    try:
        yield
    finally:
        setattr(function, "apply", before)  # noqa: B010 - as above
        setattr(tensor, "register_hook", hook)  # noqa: B010 - as above


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
    raise UnseenError(f"the model cannot be captured: {calling_line()}: {what} an export does not see; {_ELSEWHERE}")
