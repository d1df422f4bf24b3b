"""Calls that come again are not played again, and the Graph is the same as if they were."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from examples import models
from placer.tracer import capture
from placer.tracer.measure import call_cache as replaying

pytestmark = pytest.mark.in_turns


class Shared(nn.Module):
    """Views, writes into what needs gradients, several results of one storage, a value that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            first, second = layer(x).chunk(2, dim=-1)
            gate = torch.sigmoid(first.transpose(-1, -2).transpose(-1, -2))
            second = second.clone().mul_(gate)
            x = x + torch.cat((second, first.expand_as(second)), dim=-1)
        loss: torch.Tensor = (x.unsqueeze(0).squeeze(0) ** 2).mean()
        return loss


@pytest.mark.parametrize("name", ["shared", "gpt2", "qwen3_30b_a3b"])
def test_the_graph_is_the_same_when_calls_are_played_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Shared() if name == "shared" else models.MODELS[name][1]()
    batch = {"x": (4, 8)} if name == "shared" else models.example_batch(model, 4)
    again: Counter[object] = Counter()
    known = replaying.Replays._again

    def counted(self: replaying.Replays, *arguments: object) -> object:
        again["calls"] += 1
        return known(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(replaying.Replays, "_again", counted)
    found = capture(model, batch=batch)
    assert again["calls"] > 10
    monkeypatch.setattr(replaying, "_key", lambda *_: None)
    again.clear()
    assert capture(model, batch=batch) == found
    assert not again
