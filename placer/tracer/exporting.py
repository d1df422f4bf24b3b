"""torch.export of a model in training mode, at a fixed number of rows, with errors that name the model's source line.

The loss is part of the graph: `loss_fn(output, batch)` where given, else the output's own `loss`; a model without one
gives its output tensors.
"""

from __future__ import annotations

import contextlib
import inspect
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import fx, nn
from torch.utils import _pytree

from placer.errors import CaptureError

LossFunction = Callable[[object, dict[str, torch.Tensor]], torch.Tensor]

_OURS = str(Path(__file__).parent)
_TORCH = f"{Path(torch.__file__).parent}/"
_PYTHON = sysconfig.get_paths()["stdlib"]


class Training(nn.Module):
    """What is exported: the model followed by its loss."""

    def __init__(self, model: nn.Module, loss_fn: LossFunction | None):
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn

    def forward(self, **batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The loss alone where there is one, else every output tensor."""
        if self.loss_fn is not None:
            return (self.loss_fn(self.model(**_arguments(self.model, batch)), batch),)
        output = self.model(**batch)
        loss = getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor):
            return (loss,)
        return tuple(leaf for leaf in _pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor))


def _arguments(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What of the batch forward takes by name; the rest is for the caller's loss. Bare `**inputs` take everything."""
    formal = inspect.signature(model.forward).parameters.values()
    named = {one.name for one in formal if one.kind is not one.VAR_KEYWORD and one.kind is not one.VAR_POSITIONAL}
    takes_any = not named and any(one.kind is one.VAR_KEYWORD for one in formal)
    return batch if takes_any else {name: tensor for name, tensor in batch.items() if name in named}


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """What torch.export gave: the module, its placeholders' names in the batch's order, whether it ends in a loss."""

    module: fx.GraphModule
    wrapper: Training
    input_names: tuple[str, ...]


def export(wrapper: Training, batch: dict[str, torch.Tensor]) -> Raw:
    """The exported module for exactly these shapes. Raises CaptureError naming the model's source line."""
    try:
        module = _exported(wrapper, batch, None)
    except Exception as error:
        module = _with_default_device(wrapper, batch, error)
    if not isinstance(module, fx.GraphModule):
        raise CaptureError(f"torch.export gave a {type(module).__name__}, not a graph; report this as a bug of placer")
    return Raw(module=module, wrapper=wrapper, input_names=tuple(batch))


def _exported(wrapper: Training, batch: dict[str, torch.Tensor], device: torch.device | None) -> nn.Module:
    with _training(wrapper), _quiet(), device or contextlib.nullcontext():
        made: nn.Module = torch.export.export(wrapper, (), batch, strict=False).module(check_guards=False)
        return made


def _with_default_device(wrapper: Training, batch: dict[str, torch.Tensor], error: Exception) -> nn.Module:
    """A model that makes tensors without naming a device mixes devices on meta: there they are made on meta."""
    devices = {tensor.device for tensor in batch.values()}
    if devices != {torch.device("meta")}:
        raise capture_error(wrapper.model, error) from error
    try:
        return _exported(wrapper, batch, torch.device("meta"))
    except Exception:
        raise capture_error(wrapper.model, error) from error


def capture_error(model: nn.Module, error: Exception) -> CaptureError:
    """The error a person sees: where in the model, what torch said, what to do."""
    where = source_line(error)
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return CaptureError(
        f"{type(model).__name__} cannot be captured: {where or 'the line is not known'}: {said[:400]}. "
        "Export needs shapes and branches that do not depend on the values of tensors: "
        "replace the data-dependent branch, .item() or loop there by tensor operations such as torch.where"
    )


def source_line(error: BaseException) -> str:
    """`file:line (code)` of the innermost frame that is neither torch's nor placer's, "" where there is none."""
    found = ""
    seen: BaseException | None = error
    while seen is not None:
        for frame in traceback.extract_tb(seen.__traceback__):
            if _is_users(frame.filename):
                found = f"{frame.filename}:{frame.lineno} ({frame.line})"
        seen = seen.__cause__
    return found


def _is_users(filename: str) -> bool:
    if filename.startswith(_PYTHON) and "site-packages" not in filename:
        return False
    return not filename.startswith((_TORCH, _OURS, "<"))


@contextlib.contextmanager
def _training(wrapper: Training) -> Iterator[None]:
    modes = {module: module.training for module in wrapper.modules()}
    # Parts of a model (T5's decoder) have configurations of their own.
    configs = {id(config): config for config in (getattr(m, "config", None) for m in modes) if _caches(config)}
    try:
        wrapper.train()
        for config in configs.values():
            setattr(config, "use_cache", False)  # noqa: B010 - its type is the model's own
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for config in configs.values():
            setattr(config, "use_cache", True)  # noqa: B010 - its type is the model's own


def _caches(config: object) -> bool:
    """Whether a Hugging Face configuration asks for the cache of generation, which training has no use for."""
    return bool(getattr(config, "use_cache", False))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
