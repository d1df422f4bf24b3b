"""Sizes of operators that torch leaves to the values of tensors, where a bound serves as well: on meta and on fake
tensors they are that bound.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_impls import register_op_impl

_LIBRARY = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]


def _ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, target_lengths: torch.Tensor,
    blank: int = 0, zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The losses of rows, and what is kept for backward: of targets as long as the longest may be."""
    rows, longest = input_lengths.shape[0], targets.shape[-1]
    return log_probs.new_empty((rows,)), log_probs.new_empty((rows, log_probs.shape[0], 2 * longest + 1))


@register_op_impl(torch.ops.aten._ctc_loss.Tensor)
def _fake_ctc_loss(_mode: object, _func: object, *given: torch.Tensor, **more: int) -> tuple[torch.Tensor, ...]:
    return _ctc_loss(*given, **more)  # type: ignore[arg-type]  # numbers among them


_LIBRARY.impl("_ctc_loss.Tensor", _ctc_loss, "Meta")  # type: ignore[no-untyped-call]
