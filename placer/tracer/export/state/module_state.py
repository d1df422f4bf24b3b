"""What a module keeps from one forward to the next beside its parameters, and an export would lose.

Buffers that forward assigns anew (`self.count = self.count + 1`) are written in place instead, which an export shows.
Those that it registers, and no state dict has, are caches as plain attributes are.
What is kept otherwise is refused where each step would find it another (`kept_values`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch
from torch import nn

from placer.errors import UncapturableError
from placer.io.usercode import calling_line
from placer.tracer.export.state.kept_values import Kept
from placer.tracer.export.state.model_values import of_kind, values_of

_Buffers = tuple[str, nn.Module, dict[str, torch.Tensor | None]]


@contextlib.contextmanager
def state_written(model: nn.Module, loss: object, kept: Kept, rows: int) -> Iterator[None]:
    """In the body `model`, and a loss beside it, run on so many rows. Raises UncapturableError for state that neither
    can be written nor stays."""
    buffers = [(path, module, dict(module._buffers)) for path, module in model.named_modules()]
    names = {name for name, _ in model.named_buffers()}
    trained = {name for name, _ in model.named_parameters()}
    parts = of_kind(model, nn.Module)
    kept.carry_over(model)
    before = values_of(model, loss)
    try:
        with _learning_kept(model):
            yield
    finally:
        _caches_taken_out(buffers)
    new = next((name for name, _ in model.named_buffers() if name not in names), None)
    if new is not None:
        raise UncapturableError(f"forward registers the buffer {new}; do so in __init__, where every rank finds it")
    made = next((name for name, _ in model.named_parameters() if name not in trained), None)
    if made is not None:
        raise UncapturableError(f"forward makes the parameter {made}; do so in __init__, where every rank finds it")
    other = next((name for name, part in of_kind(model, nn.Module).items() if parts.get(name) is not part), None)
    if other is not None:
        raise UncapturableError(f"forward makes the module {other}; do so in __init__, where every rank finds it")
    for path, module, held in buffers:
        for name, old in held.items():
            if old is not None and module._buffers.get(name) is not old:
                module._buffers[name] = _written(f"{path}.{name}".lstrip("."), old, module._buffers.get(name))
    kept.add(before, values_of(model, loss), rows, model.training)


def _caches_taken_out(buffers: list[_Buffers]) -> None:
    """Let buffers that forward registered, and that no state dict has, be attributes: those an export undoes, as it
    does other caches."""
    for _, module, held in buffers:
        for name, tensor in [*module._buffers.items()]:
            if tensor is None or held.get(name) is not None or name not in module._non_persistent_buffers_set:
                continue
            if name in held:
                module._buffers[name] = None
            else:
                del module._buffers[name]
                module._non_persistent_buffers_set.discard(name)
            vars(module)[name] = tensor


_REQUIRES_GRAD, _SET = vars(torch._C.TensorBase)["requires_grad"], torch.Tensor.requires_grad_


@contextlib.contextmanager
def _learning_kept(model: nn.Module) -> Iterator[None]:
    """In the body whoever freezes a parameter of the model, or lets one learn, gets an UncapturableError."""
    own = {id(parameter) for parameter in model.parameters()}

    def require(tensor: torch.Tensor, learns: bool) -> None:
        if id(tensor) in own and bool(learns) != tensor.requires_grad:
            raise UncapturableError(
                f"forward sets requires_grad of a parameter at {calling_line()}, which an export does not see; freeze "
                "it, or let it learn, before the model is planned, or detach() what it makes"
            )

    def assigned(tensor: torch.Tensor, learns: bool) -> None:
        require(tensor, learns)
        _REQUIRES_GRAD.__set__(tensor, learns)

    def called(tensor: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
        require(tensor, requires_grad)
        return _SET(tensor, requires_grad)

    watched = property(_REQUIRES_GRAD.__get__, assigned)
    with (
        mock.patch.object(torch.Tensor, "requires_grad", watched, create=True),
        mock.patch.object(torch.Tensor, "requires_grad_", called, create=True),
    ):
        yield


def _written(name: str, old: torch.Tensor, new: torch.Tensor | None) -> torch.Tensor:
    """`old`, the buffer, with what was assigned to its name."""
    if new is None or (new.shape, new.dtype) != (old.shape, old.dtype):
        raise UncapturableError(
            f"forward replaces the buffer {name} by one of another type or size; write into it with copy_ or keep what "
            "changes size outside of forward"
        )
    return old.copy_(new.detach())
