"""What kernels of a CPU keep, and what masks are made of, is what the ledger counts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.costs.kept_results import fuses_on_cpu
from placer.costs.memory.op_memory import NUMBERS_BYTES
from placer.rules import Call, Value
from placer.runtime.measuring.memory import Allocated
from placer.runtime.stages.dropout import kept

FUSED = 1  # torch.nn.attention.SDPBackend.FLASH_ATTENTION


@pytest.mark.in_turns
@settings(max_examples=100)
@given(data=st.data())
def test_a_cpu_fuses_the_attention_that_torch_says_it_does(data: st.DataObject) -> None:
    lead = data.draw(st.sampled_from(((2, 4), (4,))))
    widths = data.draw(st.sampled_from(((8, 8, 8), (8, 8, 4))))
    query, key, value = (torch.zeros(*lead, 6, width, requires_grad=True) for width in widths)
    mask = data.draw(st.sampled_from((None, (6, 6), (4, 6, 6), (2, 4, 6, 6), (2, 1, 1, 6))))
    made = None if mask is None else torch.zeros(mask, requires_grad=data.draw(st.booleans()))
    dropped = data.draw(st.sampled_from((0.0, 0.1)))
    if made is not None and made.dim() > query.dim():
        return
    call = Call(
        target="aten::scaled_dot_product_attention",
        arguments=(*map(_value, (query, key, value)), None if made is None else _value(made), dropped),
    )
    assert fuses_on_cpu(call) == (torch._fused_sdp_choice(query, key, value, made, dropped) == FUSED)


def test_a_keyed_mask_is_made_of_two_numbers_per_element() -> None:
    rows, elements = 64, 4096
    keys = torch.arange(rows)
    with Allocated((keys,)) as allocated:
        mask = kept(torch.Size((rows, elements)), 0.1, 0, keys)
    assert NUMBERS_BYTES * mask.numel() == pytest.approx(allocated.peak, rel=0.05)


def _value(tensor: torch.Tensor) -> Value:
    return Value(tuple(tensor.shape), tensor.element_size(), tensor.requires_grad)
