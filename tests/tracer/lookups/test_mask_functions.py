"""transformers' masks of functions that a model gives beside the library's, which it maps from places by torch.vmap:
those that take each place by itself are captured and say what they say in the model, others are refused for what maps
them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers import masking_utils
from transformers.models.t5gemma2.modeling_t5gemma2 import sliding_window_mask_function

from placer.errors import CaptureError
from placer.tracer import capture, trace

pytestmark = pytest.mark.in_turns

TOKENS, WIDTH = 8, 6
Mask = Callable[..., Tensor]


def _own(row: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query - key < 3 + row


class _Attends(nn.Module):
    """Tokens that see those before them, those of their own image, and what `seen` says, within `window`."""

    def __init__(self, seen: Mask | None, window: Mask | None) -> None:
        super().__init__()
        self.layer, self.seen, self.window = nn.Linear(WIDTH, WIDTH), seen, window
        self.config = transformers.LlamaConfig(num_attention_heads=1, hidden_size=WIDTH)
        self.config._attn_implementation = "sdpa"

    def forward(self, x: Tensor, image: Tensor, shown: Tensor) -> Tensor:
        """A number."""
        seen = self.seen or masking_utils.blockwise_overlay(image - 1)
        mask = masking_utils.create_causal_mask(
            self.config, x, shown, None, or_mask_function=seen, and_mask_function=self.window
        )
        h = self.layer(x)[:, None]
        made: Tensor = functional.scaled_dot_product_attention(h, h, h, attn_mask=mask)
        return made.pow(2).mean()


def _batch(rows: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 3, (rows, TOKENS), generator=generator)
    shown = torch.ones(rows, TOKENS, dtype=torch.int64)
    shown[-1, -2:] = 0
    return {"x": torch.randn(rows, TOKENS, WIDTH, generator=generator), "image": image, "shown": shown}


@pytest.mark.parametrize(
    ("seen", "window"),
    [
        (None, None),
        (None, masking_utils.sliding_window_overlay(3)),
        (sliding_window_mask_function(6, is_causal=False), None),
        (sliding_window_mask_function(6, is_causal=False), masking_utils.sliding_window_overlay(6)),
    ],
    ids=["images", "images within a window", "both ways", "both ways within a window"],
)
def test_a_mask_of_places_is_that_of_the_model(seen: Mask | None, window: Mask | None) -> None:
    model, batch = _Attends(seen, window), _batch(4)
    traced = trace(model, batch)
    assert traced.graph.loss.reduction == "sum"
    for rows in (4, 3):
        given = _batch(rows)
        ours = torch.autograd.grad(traced.module(*given.values())[0], list(model.parameters()))
        theirs = torch.autograd.grad(model(**given), list(model.parameters()))
        assert all(torch.allclose(one, other, rtol=1e-5, atol=1e-7) for one, other in zip(ours, theirs, strict=True))


def test_a_mask_of_a_function_of_a_persons_own_is_refused_for_what_maps_it() -> None:
    batch = {name: tuple(one.shape) for name, one in _batch(4).items()}
    with pytest.raises(CaptureError, match=r"called by torch\.vmap"):
        capture(_Attends(_own, None), batch={**batch, "image": _batch(4)["image"], "shown": _batch(4)["shown"]})
