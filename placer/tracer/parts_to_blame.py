"""Which submodule an export failed in, and whether the model or the export is to blame.

An export that needs values, or does not see a backward, fails in a part that runs as it is. One that raised anything
else may have failed for a mistake of the model: what the model raises on meta without an export at the same line is
its own, and what the part raises there when it is tried by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping

import torch
from torch import nn

from placer.errors import CaptureError
from placer.io.usercode import source_line
from placer.rules.opaque import OpaqueCost
from placer.tracer.export.exporting import Training, line_raised, unexportable
from placer.tracer.export.opaque_trials import PartError
from placer.tracer.export.torchs_own.failures import EXPORT_NEEDS, RaisedError
from placer.tracer.export.torchs_own.outside import forget_compiled
from placer.tracer.export.unseen import UnseenError

#: Classes of libraries that compute each number of one input by itself, by code that no export looks into.
_BY_NUMBER = frozenset({"transformers.models.bloom.modeling_bloom.BloomGelu"})


def cost_of(part: nn.Module) -> OpaqueCost:
    """What is known of a part that nobody spoke of: whether it keeps rows apart, as a library's own code does."""
    kind = type(part)
    hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
    its_own = kind.forward.__module__ == kind.__module__ and "forward" not in vars(part) and not any(hooks)
    return OpaqueCost(rows_apart=its_own and f"{kind.__module__}.{kind.__qualname__}" in _BY_NUMBER)


def note(name: str, error: CaptureError) -> str:
    """What is said of a part that became opaque."""
    why = str(error)
    for advice in (EXPORT_NEEDS, ", when it was run on ", "; correct that line", "; make a part around it opaque"):
        why = why.partition(advice)[0]
    return f"{name} cannot be exported and is one opaque op, counted by running it once ({why})"


def raised_again(error: CaptureError, found: Mapping[str, CaptureError]) -> CaptureError | None:
    """What a part was taken for, where it raises by itself at the same line: a mistake of the model.

    Not where the export said that it is not the model's: what the part raises then says more."""
    first = found.get(error.part) if isinstance(error, PartError) else None
    if not isinstance(first, RaisedError) or EXPORT_NEEDS in str(first) or error.__cause__ is None:
        return None
    return first if source_line(error) == source_line(first) else None


def with_first(error: CaptureError, found: Mapping[str, CaptureError]) -> CaptureError | None:
    """The error of a part that nobody asked to be opaque with what it was taken for, which comes first; else None."""
    if not isinstance(error, PartError) or error.part not in found:
        return None
    why = str(found[error.part]).rstrip(".")
    return PartError(f"{why}. So {error.part} was tried as one opaque op, which fails too: {error}", error.part)


def mistaken(error: CaptureError, wrapper: Training, batch: dict[str, torch.Tensor]) -> bool:
    """Whether a model on meta raises by itself at the line of an error that is not said to be the export's.

    To try a part that is large takes minutes and its memory, so that a mistake of the model is refused before."""
    unsaid = isinstance(error, RaisedError) and EXPORT_NEEDS not in str(error)
    return unsaid and line_raised(wrapper, batch) == source_line(error)


def to_blame(
    model: nn.Module, error: CaptureError, found: Collection[str], given: Collection[str], failing: Callable[[], str]
) -> str:
    """The part for which an export failed; where it was found before and cannot be run by itself, or what fails is
    around its forward (hooks on its backward), the one around it. "" where it is the model itself.

    found: those that were found before. given: all that are opaque. failing: tries the export again, and says where.
    """
    if isinstance(error, PartError):
        return _around(model, error.part) if error.part in found else ""
    name = error.module if isinstance(error, UnseenError) else ""
    name = name or (failing() if unexportable(error) else "")
    forget_compiled()
    name = _around(model, name) if name in found else name
    return "" if any(part.startswith(f"{name}.") for part in given if part not in found) else name


def in_its_place(model: nn.Module, name: str, taken: Collection[str]) -> tuple[str, ...]:
    """The parts that are in other layers of a list what `name` is in its own, made alike: an export that fails in one
    fails in each, and would be made again and again to find the next. None that has one of `taken` in it or around."""
    place, made = _place(name), _made(model.get_submodule(name))
    others = (path for path, _ in model.named_modules() if path != name and _place(path) == place and None in place)
    return tuple(
        path
        for path in others
        if _made(model.get_submodule(path)) == made and not any(_meets(path, one) for one in taken)
    )


def _place(path: str) -> list[str | None]:
    """A path without the numbers of its layers."""
    return [None if name.isdigit() else name for name in path.split(".")]


def _made(part: nn.Module) -> list[Hashable]:
    """What a part is made of: classes, plain settings and the sizes of tensors."""
    return [
        (
            path,
            type(one),
            tuple((name, value) for name, value in vars(one).items() if isinstance(value, int | float | str)),
            tuple((name, tensor.shape) for name, tensor in (*one.named_parameters(), *one.named_buffers())),
        )
        for path, one in part.named_modules()
    ]


def _meets(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _around(model: nn.Module, name: str) -> str:
    """The submodule with a forward that holds the submodule `name`; "" where that is the model itself."""
    around = name.rpartition(".")[0]
    while around and type(model.get_submodule(around)).forward is nn.Module.forward:
        around = around.rpartition(".")[0]
    return around
