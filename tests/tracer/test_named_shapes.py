"""A batch written in one line is read as shapes by name, one number without dims among them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from placer import tracer
from placer.errors import UsageError
from placer.tracer.inputs.named_shapes import named_shapes


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor, share: Tensor) -> Tensor:
        made: Tensor = share * self.layer(x).pow(2).mean()
        return made


def test_one_number_of_the_batch_is_written_by_its_type_alone() -> None:
    shapes = named_shapes("x=8x6,share=:float32")
    assert shapes == {"x": (8, 6), "share": ((), "float32")}
    model = Weighted()
    traced = tracer.trace(model, tracer.capture(model, batch=shapes))
    x, share = torch.randn(8, 6), torch.tensor(0.25)
    assert torch.equal(traced.module(x, share)[0], model(x, share))


@pytest.mark.parametrize("text", ["x=8x6,share=", "x=8x6,share=:", "x=8x6,share=0", "x=8x,share=:float32"])
def test_what_is_no_shape_is_told_how_one_number_is_written(text: str) -> None:
    with pytest.raises(UsageError, match="weight=:float32"):
        named_shapes(text)
