"""What `table[place]` is in an export under torch's own mode for masks and scores made by functions of places.

transformers makes the masks of images in a text (Gemma 3) so: `torch.vmap` over places, in which torch's
TransformGetItemToIndex has `ids[row, place]` computed by ModIndex. That is an autograd.Function for the sake of its
kernel in compiled attention: what its forward computes is `aten.index`, whose own gradient is what its backward gives.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._dynamo import _trace_wrapped_higher_order_op as modes


def _indexed(_: object) -> Callable[[torch.Tensor, list[torch.Tensor]], torch.Tensor]:
    return modes.ModIndex.forward


#: What is put in the place of what, as the owner, the name and a function of what was there.
INDEXED: tuple[tuple[object, str, Callable[..., object]], ...] = ((modes, "mod_index", _indexed),)
