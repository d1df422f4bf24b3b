"""What the runs of an opaque part must have in common: the sizes of what it gives, whatever the numbers, and of the
same numbers what it gives and the plain values that it keeps, whichever call it is."""

from __future__ import annotations

import torch

from placer.errors import UncapturableError
from placer.tracer.export.state.model_values import Values

_Shapes = tuple[tuple[int, ...], ...]
# How near two results of the same numbers must be, relative to the largest: sums in another order leave less.
ALIKE = 1e-4


def alike(first: object, second: object) -> bool:
    """Whether two results are the same, but for what the order of sums makes of it."""
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) and first.shape == second.shape):
        return type(first) is type(second) and not isinstance(first, torch.Tensor)
    one, other = (torch.nan_to_num(tensor.detach().to(torch.complex128)) for tensor in (first, second))
    return not one.numel() or float((one - other).abs().max()) <= ALIKE * float(one.abs().max())


def unlike_sizes(name: str, of: str, shapes: _Shapes, then: str, other: _Shapes) -> str:
    """What is said of a part that gives tensors of other sizes for other numbers, "" of one that does not: branches on
    a size, and what is divided by it, would go by those it was tried on. of, then: what the numbers were."""
    if shapes == other:
        return ""
    return (
        f"{name} is opaque and gives tensors of other sizes by the numbers in its inputs: of {shapes} where "
        f"{of} and of {other} where {then}, and placer plans for sizes that are known before; pad "
        "them to a fixed one (pad_packed_sequence(..., total_length=x.shape[1]), a mask in the place of what it "
        "selects), or make a part around it and what takes them opaque"
    )


def require_no_counts(name: str, first: Values, second: Values) -> None:
    """Raise UncapturableError where a second call with the same numbers leaves another plain value, or a longer list,
    than the first: each device would count its own calls, one for each of its pieces of a step."""
    for kept, (earlier, now) in first.changed(second).items():
        raise UncapturableError(
            f"{name} is opaque and changes {kept}, which is no buffer, each time that it is called, from {earlier} to "
            f"{now} with the same numbers: a step is several calls on several devices, of which each would count its "
            "own; keep it in a buffer, which is written once a step"
        )
